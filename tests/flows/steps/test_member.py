"""A stage trained by several processes is the stage of one, and survives what befalls them."""

import contextlib
import dataclasses
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from flows.steps.kinds.checkpoint import (
    AUTOTUNING,
    FitSpec,
    Stage,
    train,
    train_with_processes,
)
from flows.steps.registry import code_digest
from infra.gang.local import LocalGang
from infra.gang.messages import PEER_LOST
from infra.gang.supervise import GangFailedError
from infra.progress import Progress
from infra.store.digest import file_sha256
from model.eval.config import EvalConfig
from model.files import METRICS, WATCH
from model.train.config import TrainConfig
from model.watch.config import ProbeConfig, WatchConfig
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model, without_compiling
from tests.nodes.machines import skip_without_namespaces
from tests.processes import LOOPBACK, command_line, listened
from tests.slices import deep_slice

pytestmark = pytest.mark.usefixtures("fast_compiler")

TRAIN = TrainConfig(
    batch_size=4,
    total_steps=8,
    text_len=16,
    save_steps=2,
    log_steps=1,
    warmup=0.0,
    peak_lr=3e-3,
    dropout=0.2,
)
SPEC = FitSpec(model=tiny_model(), train=TRAIN)
LEAVING = "its machine is taken away; the state was saved"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("inputs")
    data = write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]})
    write_tokenizer(root / "tokenizer.model")
    return {"data": (data,), "tokenizer": str(root)}


@pytest.fixture(scope="module", autouse=True)
def _as_tests_compile(tmp_path_factory) -> Iterator[None]:
    """Members compile as this process does, and find what others have compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("NPROC", "2")
        yield


def stage(root: Path, inputs: dict[str, Any], spec: FitSpec = SPEC, **more: Any) -> Stage:
    for name in ("scratch", "out"):
        (root / name).mkdir(parents=True, exist_ok=True)
    given = dict(inputs, init=None, mask_codec=None, code=code_digest("checkpoint", spec)) | more
    return Stage(
        spec=spec,
        seed=5,
        scratch=str(root / "scratch"),
        out=str(root / "out"),
        points=str(root / "points"),
        **given,
    )


def together(one: Stage) -> Iterator[Progress]:
    root = Path(one.scratch).parent
    place = root / f"gang-{len(list(root.glob('gang-*')))}"
    return without_compiling(train_with_processes(one, 2, str(place), root / "logs"))


def member(rank: int) -> psutil.Process:
    """The process of a rank."""
    children = psutil.Process().children(recursive=True)
    return next(p for p in children if f"--rank {rank}" in command_line(p))


def digest(root: Path) -> str:
    return (root / "out/digest.txt").read_text()


def rows(root: Path, *, seconds: bool = False) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (root / "out" / METRICS).read_text().splitlines()]
    timed = {"seconds", "tokens_per_second", "mfu", "lost", "goodput"}
    return [{k: v for k, v in row.items() if seconds or k not in timed} for row in found]


def points(root: Path) -> dict[int, Path]:
    """Returns the complete checkpoints from which the stage can resume, by step."""
    whole = {
        path.parent for path in root.glob("points/*/1.json") if (path.parent / "0.json").exists()
    }
    return {int(path.name.partition("-")[0]): path for path in whole}


def losses(items: Iterator[Progress]) -> list[float]:
    return [item.loss for item in items]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, inputs: dict[str, Any]) -> Path:
    """The stage by two processes, to whom nothing happens."""
    root = tmp_path_factory.mktemp("undisturbed")
    found = list(together(stage(root, inputs)))
    assert [p.done for p in found] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {p.devices for p in found} == {2}  # Two processes, each with devices of its CPU.
    assert 2 <= sum(p.resumable for p in found) <= 3  # The last may be whole when all is done.
    # The oldest goes when the last is known to be whole, which may be after the end.
    assert set(points(root)) - {2} == {4, 6}
    return root


@pytest.mark.deep
def test_two_processes_train_what_one_does(tmp_path: Path, inputs: dict[str, Any]):
    train_longer = dataclasses.replace(TRAIN, total_steps=20, save_steps=20, batch_size=8)
    spec = FitSpec(model=tiny_model("parcel", (30, 64)), train=train_longer)
    two, heard = [], set()
    for progress in together(stage(tmp_path / "two", inputs, spec)):
        two.append(progress.loss)
        heard = heard or listened([member(0), member(1)])
    one = losses(without_compiling(train(stage(tmp_path / "one", inputs, spec))))
    assert len(one) == 20
    assert heard
    assert heard <= LOOPBACK
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert [r["step"] for r in rows(tmp_path / "two")] == list(range(1, 21))  # Each once.
    drawn = [
        [(r["budget"], r["learning_rate"]) for r in rows(tmp_path / n)] for n in ("one", "two")
    ]
    assert drawn[0] == drawn[1]


GANG = """
import pathlib, sys, time
from infra.gang.local import LocalGang
folder = pathlib.Path(sys.argv[1])
gang = LocalGang(lambda rank, at: [sys.executable, "-c", sys.argv[2], at, str(rank)], 2, folder)
while None in gang.exit_codes().values():
    time.sleep(0.05)
print(*((folder / f"{rank}.log").read_text() for rank in range(2)))
"""
MEMBER = """
import os, sys
from flows.steps.member import join_gang
join_gang(sys.argv[1], 2, int(sys.argv[2]))
import jax, psutil
from jax.experimental.multihost_utils import process_allgather
from tests.processes import listened
assert process_allgather(jax.numpy.ones(3)).shape == (2, 3)
print("listens on", *listened([psutil.Process()]), flush=True)
process_allgather(jax.numpy.ones(3))
os._exit(0)
"""


@pytest.mark.slow
def test_a_gang_on_one_machine_listens_on_loopback_wherever_its_name_leads(tmp_path: Path):
    skip_without_namespaces()
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n192.0.2.9 elsewhere\n")
    rename = (
        "ip link set lo up; ip addr add 192.0.2.9/32 dev lo; hostname elsewhere; "
        f'mount --bind {tmp_path}/hosts /etc/hosts; exec "$@"'
    )
    command = [sys.executable, "-c", GANG, str(tmp_path), MEMBER]
    done = subprocess.run(
        ["unshare", "--uts", "--mount", "--net", "sh", "-ec", rename, "sh", *command],
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = re.findall("listens on (.*)", done.stdout)
    assert len(lines) == 2, done.stdout + done.stderr
    for line in lines:
        assert line
        assert set(line.split()) <= LOOPBACK


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param((0,), marks=pytest.mark.night),
        pytest.param((1,), marks=pytest.mark.night),
        pytest.param((0, 1), marks=pytest.mark.deep),
    ],
)
def test_killed_members_change_no_bit(
    tmp_path: Path, inputs: dict[str, Any], undisturbed: Path, victims: tuple[int, ...]
):
    killed, told = {3: True, 6: True}, []
    for progress in together(stage(tmp_path, inputs)):
        told.append(progress)
        if killed.pop(progress.done, False):
            for process in [member(rank) for rank in victims]:
                process.kill()
    assert sum("SIGKILL" in p.note for p in told) == 2
    assert digest(tmp_path) == digest(undisturbed)
    assert rows(tmp_path) == rows(undisturbed)


@pytest.mark.night
def test_killed_at_drawn_moments_it_ends_with_the_same_bits(
    tmp_path: Path, inputs: dict[str, Any], undisturbed: Path
):
    drawn, ended, killed = random.Random(20261123), threading.Event(), []

    def kill() -> None:
        for longest in (4, 25, 25, 25, 25, 25):  # No gang has ended within the first four seconds.
            if ended.wait(drawn.uniform(1, longest)):
                return
            for rank in drawn.choice([(0,), (1,), (0, 1)]):
                with contextlib.suppress(StopIteration, psutil.NoSuchProcess):
                    member(rank).kill()
                    killed.append(rank)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        for _ in range(3):
            with contextlib.suppress(GangFailedError):  # Lost three times before it got further.
                list(together(stage(tmp_path, inputs)))
                break
    finally:
        ended.set()
        killing.join()
    assert killed
    assert digest(tmp_path) == digest(undisturbed)
    assert rows(tmp_path) == rows(undisturbed)


@pytest.mark.deep
def test_a_run_that_is_left_goes_on_and_skips_a_spoilt_checkpoint(
    tmp_path: Path, inputs: dict[str, Any], undisturbed: Path
):
    for progress in together(stage(tmp_path, inputs)):
        if progress.done == 6:  # What was begun at step 4 is whole before step 6 is begun.
            for process in [member(0), member(1)]:
                process.kill()  # So that they do not save once more.
            break
    *_, before, newest = sorted(points(tmp_path))
    parts = points(tmp_path)[newest].glob("*.safetensors")
    path = max(parts, key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    told = list(together(stage(tmp_path, inputs)))
    spoilt = [p.note for p in told if f"checkpoint of step {newest} is not used" in p.note]
    assert len(spoilt) == 1
    assert "damaged" in spoilt[0]
    assert [p.done for p in told if not p.happened] == list(range(before + 1, 9))
    assert digest(tmp_path) == digest(undisturbed)


@pytest.mark.night
def test_on_another_number_of_processes_it_goes_on_in_the_same_order(
    tmp_path: Path, inputs: dict[str, Any], undisturbed: Path
):
    for progress in train(stage(tmp_path, inputs)):
        if progress.done == 4:
            break
    assert [p.done for p in together(stage(tmp_path, inputs))] == [5, 6, 7, 8]
    expected = rows(undisturbed)
    for row, other in zip(rows(tmp_path), expected, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert (row["step"], row["budget"]) == (other["step"], other["budget"])


@pytest.mark.deep
def test_a_notice_to_one_member_has_all_save_at_once(tmp_path: Path, inputs: dict[str, Any]):
    never = dataclasses.replace(TRAIN, total_steps=100, save_steps=1000)
    spec = dataclasses.replace(SPEC, train=never)
    list(together(stage(tmp_path / "undisturbed", inputs, spec)))
    told, was_sent = [], False
    for progress in together(stage(tmp_path / "noticed", inputs, spec)):
        told.append(progress)
        if progress.done == 3 and not was_sent:
            was_sent = True
            member(1).send_signal(signal.SIGTERM)
    (noticed,) = (i for i, p in enumerate(told) if LEAVING in p.note)
    assert 0 < told[noticed + 1].done - told[noticed].done < 3
    assert digest(tmp_path / "noticed") == digest(tmp_path / "undisturbed")


@pytest.mark.deep
@pytest.mark.parametrize("rank", deep_slice([0, 1], 1))
def test_a_member_that_stands_still_is_missed_within_seconds(
    tmp_path: Path, inputs: dict[str, Any], undisturbed: Path, rank: int
):
    stopped, seconds = 0.0, 0.0
    for progress in together(stage(tmp_path, inputs)):
        if progress.done == 3 and not stopped:
            stopped = time.monotonic()
            member(rank).suspend()
        if "was lost" in progress.note:
            seconds = time.monotonic() - stopped
    print(f"rank {rank} stood still, missed after {seconds:.1f} s")
    assert 2 < seconds < 30
    assert digest(tmp_path) == digest(undisturbed)


@pytest.mark.deep
@pytest.mark.parametrize("victim", deep_slice([0, 1], 1))
def test_a_member_that_nobody_watches_ends_at_once_with_the_one_it_lost(
    tmp_path: Path, inputs: dict[str, Any], victim: int
):
    long = dataclasses.replace(SPEC, train=dataclasses.replace(TRAIN, total_steps=100_000))
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps(stage(tmp_path, inputs, long)))
    words = [str(task), file_sha256(task), "--of", "2"]

    def command(rank: int, coordinator: str) -> list[str]:
        own = ["--rank", str(rank), "--coordinator", coordinator]
        return [sys.executable, "-m", "flows.steps.member", *words, *own]

    gang = LocalGang(command, 2, tmp_path)
    try:
        while '"done": 2,' not in (tmp_path / "0.log").read_text():
            assert set(gang.exit_codes().values()) == {None}, (tmp_path / "0.log").read_text()
            time.sleep(0.1)
        member(victim).kill()
        began = time.monotonic()
        while gang.exit_codes()[1 - victim] is None:
            time.sleep(0.01)
        seconds, code = time.monotonic() - began, gang.exit_codes()[1 - victim]
    finally:
        gang.kill()
    print(f"rank {victim} was killed, the other ended after {seconds:.2f} s with {code}")
    # Without the coordinator, JAX itself aborts.
    assert code in (PEER_LOST, -signal.SIGABRT)
    assert seconds < 8


@pytest.mark.deep
def test_a_loss_that_is_no_number_ends_the_gang_and_names_the_records(
    tmp_path: Path, inputs: dict[str, Any]
):
    spec = dataclasses.replace(SPEC, train=dataclasses.replace(TRAIN, peak_lr=1e38))
    with pytest.raises(GangFailedError, match=r"step \d: the loss .*; its records: color/\d"):
        list(together(stage(tmp_path, inputs, spec)))


_WORKER = """
import pickle, sys
from pathlib import Path
from flows.steps.kinds.checkpoint import train_with_processes
from flows.steps.worker import import_step_code
from infra.gang.local import LocalGang
from infra.gang.supervise import GangFailedError
from infra.gang.messages import PEER_LOST
stage = pickle.loads(Path(sys.argv[1]).read_bytes())
import_step_code("checkpoint", stage.spec)
try:
    for progress in train_with_processes(stage, 2, sys.argv[2], Path(sys.argv[2])):
        print(f"{progress.done} done on {progress.devices} devices")
except GangFailedError as error:
    print(error)
from jax._src import xla_bridge
print("devices:", xla_bridge.backends_are_initialized())
"""


@pytest.mark.slow
def test_what_xla_timed_is_noted_where_it_decides_bits(tmp_path: Path, inputs: dict[str, Any]):
    timed = Path(os.environ["JAX_COMPILATION_CACHE_DIR"], "xla_gpu_per_fusion_autotune_cache_dir")
    timed.mkdir(exist_ok=True)
    (timed / "3oIYgq7V.textproto").write_text("triton { block_m: 64 }")
    train_config = dataclasses.replace(TRAIN, total_steps=1)
    spec = dataclasses.replace(SPEC, train=train_config, deterministic=False)
    list(train(stage(tmp_path, inputs, spec)))
    digests = json.loads((tmp_path / "out" / AUTOTUNING).read_text())
    assert digests == {"3oIYgq7V": file_sha256(timed / "3oIYgq7V.textproto")}


@pytest.mark.slow
def test_the_worker_of_a_gang_takes_no_device(tmp_path: Path, inputs: dict[str, Any]):
    given = dict(inputs, data=(str(tmp_path / "nothing"),))
    (tmp_path / "stage").write_bytes(pickle.dumps(stage(tmp_path, given)))
    worker = [sys.executable, "-c", _WORKER, str(tmp_path / "stage"), str(tmp_path / "gang")]
    done = subprocess.run(worker, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert "rank " in done.stdout, done.stderr  # The members got so far as to miss the data.
    assert done.stdout.startswith("0 done on 2 devices\n")  # They count, though they did nothing.
    assert done.stdout.endswith("devices: False\n")


@pytest.mark.slow
def test_members_refuse_other_code(tmp_path: Path, inputs: dict[str, Any]):
    with pytest.raises(GangFailedError, match="code 00000000, "):
        list(together(stage(tmp_path, inputs, code="0" * 64)))


@pytest.mark.deep
def test_losses_on_held_out_records_and_a_probe_are_told_once(
    tmp_path: Path, inputs: dict[str, Any]
):
    short = dataclasses.replace(TRAIN, total_steps=2)
    decode = EvalConfig(batch_size=2, text_len=short.text_len)
    probe = ProbeConfig(model=SPEC.model, train=short, decode=decode, examples=3)
    watch = WatchConfig(every=2, examples=4, budgets=(64,), probe=probe)
    spec = dataclasses.replace(SPEC, train=short, watch=watch)
    looked_at = {"held_out": inputs["data"], "probe": (inputs["data"][0],) * 2}
    list(together(stage(tmp_path / "two", inputs, spec, **looked_at)))
    list(train(stage(tmp_path / "one", inputs, spec, **looked_at)))
    two, one = (
        [json.loads(line) for line in (tmp_path / n / "out" / WATCH).read_text().splitlines()]
        for n in ("two", "one")
    )
    assert [row["task"] for row in one] == ["color", "probe"]
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-5)
    assert {**two[0], "loss": 0} == {**one[0], "loss": 0}
    assert two[1] == one[1]
    assert one[1]["num"] == 3


@pytest.mark.slow
def test_nobody_is_left_behind():
    children = psutil.Process().children(recursive=True)
    assert not [p for p in children if "flows.steps.member" in command_line(p)]


def test_a_spec_as_recorded_has_the_numbers_of_its_training():
    auto = dataclasses.replace(SPEC, train=dataclasses.replace(TRAIN, microbatch="auto", pack=9))
    then = auto.as_recorded({"steps": 4, "microbatch": 2, "pack": 7}).train
    assert (then.microbatch, then.pack) == (2, 7)
    # What a record does not have was none.
    assert auto.as_recorded({"steps": 4}).train.pack is None
