"""The processes of each training: one on each host of the topology, started by a launcher."""

import re
import shlex
from pathlib import Path

import pytest

from flows.graph.explain import Explanation
from flows.graph.graph import Phase, graph_of
from flows.study.load import load
from flows.study.processes import describe_processes
from infra.chips.topology import Topology
from infra.errors import ConfigError
from infra.store.store import Store
from tests.docs.pages import ROOT, blocks, commands_of
from tests.flows.graph.test_explain import fill

CONFIGS = ROOT / "configs"
PLANNED = [path.stem for path in sorted(CONFIGS.glob("*.yaml")) if load(path).compute.topology]
LAUNCHERS = {
    "srun": ["compute.launcher=srun --nodes=64"],
    "mpirun": ["compute.launcher=mpirun"],
    "ray": ["compute.launcher=ray", "compute.ray_address=auto"],
    "tpu-vm": ["compute.launcher=tpu-vm --name pod --zone z"],
}
TWO_HOSTS = ["compute.topology=v4:2x2x2", "compute.gpus_per_stage=0", "compute.gpus_per_cell=0"]


def test_the_configs_of_chips_name_them():
    assert {"paper_224", "paper_448", "pali3b_8gpu", "pali3b_1gpu", "llava15"} <= {*PLANNED}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", PLANNED)
def test_each_stage_of_a_shipped_config_has_a_process_on_each_host(name: str, launcher: str):
    compute = load(CONFIGS / f"{name}.yaml", LAUNCHERS[launcher]).compute
    assert compute.topology is not None
    hosts = Topology.parse(compute.topology).num_hosts
    assert hosts == 64 or not name.startswith("paper")
    for resources in (compute.of_stage, compute.of_cell):
        assert resources["processes"] == hosts
        assert resources["launcher"].startswith(launcher)
    assert compute.of_transfer["processes"] == 1


def test_the_commands_of_a_pod_start_a_process_on_each_of_its_hosts():
    page = ROOT / "docs/tutorials/pod.md"
    commands = [shlex.split(line) for block in blocks(page) for line in commands_of(block)]
    runs = [words for words in commands if words[:2] in (["parcel", "run"], ["parcel", "deploy"])]
    settings = [[word for word in words if word.startswith("compute.")] for words in runs]
    # The launchers of its table, as options of the command.
    rows = re.findall(r"`(compute\.launcher=.*?)`", page.read_text())
    settings += [shlex.split(row) for row in rows]
    launchers = []
    for own in settings:
        compute = load(CONFIGS / "paper_224.yaml", own).compute
        assert (compute.stage_processes, compute.cell_processes) == (64, 64)
        assert not compute.lacks_launcher
        launchers.append((compute.launcher or "").partition(" ")[0])
    assert len(runs) == 3
    assert {*launchers} == {*LAUNCHERS}


@pytest.mark.parametrize(
    ("topology", "hosts", "each"),
    [
        ("v4:8x8x4", 64, 4),
        ("v4:2x2x1", 1, 4),
        ("v5e:2x4", 1, 8),
        ("v5e:16x16", 64, 4),
        ("v6e:4x4", 4, 4),
        ("h100:8", 1, 8),
        ("h100:24", 3, 8),
        ("a100:1", 1, 1),
    ],
)
def test_a_topology_knows_its_hosts(topology: str, hosts: int, each: int):
    parsed = Topology.parse(topology)
    assert (parsed.num_hosts, parsed.chips_per_host) == (hosts, each)


def test_each_process_has_the_chips_of_its_host_and_ray_knows_the_slice():
    own = ["compute.topology=h100:16", "compute.launcher=srun", "compute.cpus_per_cell=5"]
    compute = load(overrides=own).compute
    assert (compute.of_stage["gpus"], compute.of_cell["gpus"]) == (8, 8)
    assert compute.of_transfer == {"cpus": 5, "gpus": 1, "processes": 1, "launcher": "srun"}
    ray = load(overrides=["compute.topology=v5e:4x4", *LAUNCHERS["ray"]]).compute
    assert ray.of_stage["launcher"] == (
        "ray --cpus 2 --gpus 4 --wait 900 --topology 4x4 --accelerator TPU-V5LITEPOD --chips 4"
    )
    gpus = load(overrides=["compute.topology=h100:16", *LAUNCHERS["ray"]]).compute
    assert gpus.of_stage["launcher"] == "ray --cpus 2 --gpus 8 --wait 900"


@pytest.mark.parametrize(
    ("words", "stage", "cell", "transfer", "evaluation"),
    [
        # A process has all TPUs of its host, whatever the slice.
        (["topology=v4:4x4x4"], "v4:4x4x4", "v4:4x4x4", "v4:2x2x1", "v4:2x2x1"),
        (["topology=v5e:4x4"], "v5e:4x4", "v5e:4x4", "v5e:2x2", "v5e:2x2"),
        (["topology=v5e:2x4"], *["v5e:2x4"] * 4),
        (
            ["topology=v4:2x2x2", "launcher=srun", "processes_per_cell=4"],
            "v4:2x2x2", "v4:4x2x2", "v4:4x2x2", "v4:2x2x1",
        ),
        # One host that nothing names several times is one host.
        (["topology=v4:2x2x1", "cpus_per_cell=2", "gpus_per_cell=2", "processes_per_cell=2"],
         *["v4:2x2x1"] * 4),
        # GPUs are asked for, and a host has no more than it has.
        (["topology=h100:8"], *["h100:1"] * 4),
        (["topology=h100:2", "gpus_per_stage=8", "gpus_per_cell=2"], *["h100:2"] * 4),
        (
            ["topology=h100:8", "gpus_per_stage=8", "gpus_per_cell=4", "gpus_per_evaluation=2"],
            "h100:8", "h100:4", "h100:4", "h100:2",
        ),
        (["topology=h100:16", "launcher=srun"], "h100:16", "h100:16", "h100:1", "h100:1"),
        (["topology=h100:16"], "h100:16", "h100:16", "h100:1", "h100:1"),
        (
            ["topology=h100:16", "launcher=srun", "processes_per_cell=2"],
            "h100:16", "h100:16", "h100:16", "h100:1",
        ),
    ],
)  # fmt: skip
def test_each_step_has_the_chips_of_its_processes(
    words: list[str], stage: str, cell: str, transfer: str, evaluation: str
):
    compute = load(overrides=[f"compute.{word}" for word in words]).compute
    chips = (
        compute.chips_of_stage,
        compute.chips_of_cell,
        compute.chips_of_transfer,
        compute.chips_of_evaluation,
    )
    assert [str(each.topology) for each in chips] == [stage, cell, transfer, evaluation]
    assert {each.share for each in chips} == {1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["processes_per_stage=3"], "processes_per_stage must be 2, one for each host of topology"),
        (["processes_per_stage=1"], "got 1; left out, it is 2"),
        (["processes_per_cell=3"], "processes_per_cell must be 2, one for each host of topology"),
        (
            ["launcher=ray --topology 2x2x1", "ray_address=auto"],
            "launcher ray must have --topology 2x2x2, that of topology=v4:2x2x2, got 2x2x1",
        ),
        (
            ["topology=h100:16", "gpus_per_stage=4"],
            "gpus_per_stage must be 8, the GPUs of a host of topology=h100:16, got 4",
        ),
        (["topology=h100:12"], "or whole hosts of 8; got 'h100:12'"),
        (["topology=v4:3x1x2"], "or whole hosts of 4; got 'v4:3x1x2'"),
    ],
)
def test_what_contradicts_the_topology_is_refused(words: list[str], told: str):
    with pytest.raises(ConfigError) as refused:
        load(overrides=[*TWO_HOSTS, *(f"compute.{word}" for word in words)])
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_batch_that_the_hosts_cannot_share_is_refused():
    told = "must divide stage1.batch_size=63, got 2, the hosts of v4:2x2x2"
    with pytest.raises(ConfigError, match=told):
        load(overrides=[*TWO_HOSTS, "stage1.batch_size=63"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "processes: 1 for stage1, intermediary, each transfer"),
        (
            ["compute.topology=v4:2x2x2", "compute.launcher=srun -N 2"],
            "processes: 2 for stage1, intermediary, one on each host of v4:2x2x2, by srun; "
            "1 for each transfer",
        ),
        (
            ["compute.topology=h100:8", "compute.launcher=srun", "compute.processes_per_stage=4"],
            "processes: 4 for stage1, one on each host of 4 x h100:8, by srun; "
            "1 for intermediary, each transfer",
        ),
        (
            ["compute.processes_per_stage=2", "compute.gpus_per_stage=0"],
            "processes: 2 for stage1, all on one machine; 1 for intermediary, each transfer",
        ),
        (
            ["compute.launcher=srun"],
            "processes: 1 for stage1, intermediary, each transfer. compute.launcher starts none of "
            "them: neither compute.topology nor compute.processes_per_stage is of several hosts.",
        ),
    ],
)
def test_a_line_tells_the_processes_and_what_starts_them(words: list[str], line: str):
    assert describe_processes(load(overrides=words)) == line


NEEDED = (
    "compute.launcher must be what starts a process on each of the 2 hosts of "
    "compute.topology=v4:2x2x2, got none: srun, mpirun, ray or tpu-vm (docs/howto/gang.md)"
)


@pytest.mark.parametrize(("until", "is_refused"), [("prepare", False), ("train", True)])
def test_several_hosts_without_a_launcher_are_refused_before_anything_runs(
    until: Phase, is_refused: bool, tmp_path: Path
):
    config = load(overrides=TWO_HOSTS)
    explanation = Explanation(Store(tmp_path).snapshot(), graph_of(config, until))
    (line,) = (line for line in explanation.lines(config.keep) if line.startswith("processes: "))
    assert NEEDED in line
    if is_refused:
        with pytest.raises(ConfigError) as refused:
            explanation.check(1.0, ())
        assert str(refused.value).startswith(NEEDED)
    else:
        explanation.check(1.0, ())
    launched = load(overrides=[*TWO_HOSTS, "compute.launcher=mpirun"])
    Explanation(Store(tmp_path).snapshot(), graph_of(launched, until)).check(1.0, ())
    # What is there already needs no launcher.
    store = Store(tmp_path)
    fill(store, graph_of(launched, until))
    Explanation(store.snapshot(), graph_of(config, until)).check(1.0, ())
