"""Updates over virtual shards have the same bytes on any number of devices, and after resizes."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from infra.gang.local import LocalGang
from infra.store.digest import identity_json
from model.train.config import ProgramConfig, TrainConfig
from model.train.exact import _num_pairs
from model.train.packing import deal, is_packed, packed_shards, text_lengths
from model.train.step import LENGTH, NUMBER
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer

ROOT = Path(__file__).parents[3]

DEVICES = """
import dataclasses
import jax
import numpy as np
jax.config.update("jax_disable_most_optimizations", True)
from model.train import exact
from model.train.config import TrainConfig
from model.train.exact import ExactPrograms
from model.train.lora_config import LoraConfig
from model.train.packing import packed_shards
from model.train.start import starting_params
from model.train.step import Rates, StepPrograms, dropout_key, make_state, mesh_of
from model.sharding import make_mesh
from tests.model.tiny_model import tiny_model

model = tiny_model("parcel", (30, 64))

def batch_of(step):
    rng = np.random.default_rng(step)
    learned = (np.arange(7) >= rng.integers(1, 7, (16, 1))).astype(np.int32)
    return {
        "image": rng.integers(0, 255, (16, 1, 32, 32, 3), dtype=np.uint8),
        "text": rng.integers(3, 1400, (16, 7), dtype=np.int32),
        "mask_ar": learned,
        "mask_loss": learned * (np.arange(7) < rng.integers(3, 8, (16, 1))).astype(np.int32),
    }

def updated(train, mesh, programs):
    state = make_state(model, starting_params(model, None, 0), train.program, mesh)
    losses = []
    for step in range(3):
        batch = batch_of(step)
        if train.text_places and train.exact_shards:
            passes = train.num_passes(train.rows_of_part(1))
            places = train.rows_of_part(1) // passes * train.text_places
            batch = packed_shards(batch, train.exact_shards, passes, places)
        rates = Rates(1e-2, 0.0, dropout_key(train, 0, step))
        state, metrics = programs(state, batch, 30, rates)
        losses.append(float(metrics.loss))
        assert set(metrics.norms) <= {"connector", "lora", "projector", "text", "vision"}
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((state.trained, state.optimizer))]
    return [np.array(losses), *leaves]

def exactly(train, devices):
    mesh = mesh_of(model, train, jax.devices()[:devices])
    assert mesh.size == devices
    return updated(train, mesh, ExactPrograms(model, train.program, mesh))

def num_equal(some, others):
    return sum(np.array_equal(a, b) for a, b in zip(some, others, strict=True))

plain = TrainConfig(batch_size=16, text_len=6, exact_shards=4, pack=None)
changes = [
    {"dropout": 0.2, "microbatch": 2, "freeze_vision": True},
    # Shards whose texts do not fit into five places an example are padded, the others packed.
    {"dropout": 0.2, "pack": 5, "loss_weights": "tokens", "lora": LoraConfig(rank=2, alpha=2)},
]
for change in changes:
    train = dataclasses.replace(plain, **change)
    one, two, four = (exactly(train, devices) for devices in (1, 2, 4))
    assert num_equal(one, two) == num_equal(one, four) == len(one) > 20
    # It is the ordinary update, up to rounding.
    usual = dataclasses.replace(train, exact_shards=None, pack=None)
    mesh = make_mesh(jax.devices()[:1])
    losses = updated(usual, mesh, StepPrograms(model, usual.program, mesh))[0]
    np.testing.assert_allclose(one[0], losses, rtol=2e-4)
    np.testing.assert_allclose(one[0][0], losses[0], rtol=1e-6)

# A sum in the devices' own order is another one.
exact._exchange = lambda sums, size: jax.tree.map(
    lambda leaf: jax.lax.pcast(jax.lax.psum(leaf, "shard"), "shard", to="varying"), sums
)
train = dataclasses.replace(plain, exact_shards=4, **changes[0])
assert num_equal(exactly(train, 4), exactly(train, 1)) < 20
"""


def environment_of(devices: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


@pytest.mark.slow
def test_updates_on_one_two_and_four_devices_have_the_same_bytes():
    done = subprocess.run([sys.executable, "-c", DEVICES], env=environment_of(4), cwd=ROOT)
    assert done.returncode == 0


STAGE = """
import json
import sys
import jax
jax.config.update("jax_disable_most_optimizations", True)
if len(sys.argv) > 2:
    jax.distributed.initialize(sys.argv[3], 2, int(sys.argv[2]))
from model.seeds import Seeds
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from model.train.lora_config import LoraConfig
from tests.model.tiny_model import tiny_model

given = json.loads(sys.argv[1])
lora = given["train"].pop("lora", None)
train = TrainConfig(**given["train"], budgets=(30,), lora=lora and LoraConfig(**lora))
paths = StagePaths(**given["paths"])
for progress in fit(tiny_model("parcel", (30, 64)), train, paths, Seeds.of(5)):
    print(progress.done, progress.resumable, flush=True)
"""

TRAIN = {
    "batch_size": 8,
    "total_steps": 8,
    "text_len": 16,
    "save_steps": 1,
    "log_steps": 1,
    "peak_lr": 3e-3,
    "exact_shards": 4,
    "pack": None,
}


def paths_of(root: Path, inputs: Path) -> dict[str, str]:
    (root / "out").mkdir(parents=True, exist_ok=True)
    (root / "scratch").mkdir(exist_ok=True)
    return {
        "data": str(inputs / "data"),
        "tokenizer": str(inputs / "tokenizer.model"),
        "scratch": str(root / "scratch"),
        "out": str(root / "out"),
        "points": str(root / "points"),
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]})
    write_tokenizer(root / "tokenizer.model")
    return root


def missed_each_other(root: Path) -> bool:
    late = "Gloo context initialization failed: DEADLINE_EXCEEDED"
    return any(late in path.read_text() for path in root.glob("[01].log"))


def run_stage(
    root: Path, inputs: Path, train: dict, devices: int, processes: int = 1, kill_at: int = 99
) -> None:
    """Trains on some devices in one or two processes, killed once update `kill_at` is saved.

    Processes on a machine with much other work may not find each other within Gloo's 30 s: that is
    one more interruption, and they begin again.
    """
    given = json.dumps({"train": train, "paths": paths_of(root, inputs)})

    def command(rank: int, coordinator: str) -> list[str]:
        of_gang = [] if processes == 1 else [str(rank), coordinator]
        return [sys.executable, "-c", STAGE, given, *of_gang]

    flags = environment_of(devices // processes)["XLA_FLAGS"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", flags)
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(inputs / "compiled"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        gang = LocalGang(command, processes, root)
    is_again = False
    try:
        while None in (codes := gang.exit_codes()).values():
            if is_again := processes > 1 and missed_each_other(root):
                break
            told = [line.split() for line in (root / "0.log").read_text().splitlines()]
            saved = [int(line[0]) for line in told if line[1:] == ["True"]]
            if saved and saved[-1] >= kill_at:
                break
            time.sleep(0.05)
        else:
            assert set(codes.values()) == {0}, (root / "0.log").read_text()[-3000:]
            assert kill_at > train["total_steps"], "it ended before it was killed"
    finally:
        gang.kill()
    if is_again:
        run_stage(root, inputs, train, devices, processes, kill_at)


def digest_of(root: Path) -> str:
    return (root / "out/digest.txt").read_text()


@pytest.mark.slow
def test_a_stage_that_loses_devices_ends_with_the_bytes_of_one_that_did_not(
    tmp_path: Path, inputs: Path
):
    train = {**TRAIN, "dropout": 0.2, "total_steps": 6}
    run_stage(tmp_path / "whole", inputs, train, 4)
    resized = tmp_path / "resized"
    run_stage(resized, inputs, train, 4, kill_at=2)
    run_stage(resized, inputs, train, 2, processes=2, kill_at=4)
    run_stage(resized, inputs, train, 1)
    assert digest_of(resized) == digest_of(tmp_path / "whole")


KINDS = (
    {},
    {"dropout": 0.2, "freeze_vision": True},
    {"lora": {"rank": 2, "alpha": 2.0}, "dropout": 0.1},
    {"microbatch": 1, "pack": 9},
)


@pytest.mark.night
def test_twenty_seeded_resizes_change_no_byte(tmp_path: Path, inputs: Path):
    for kind, change in enumerate(KINDS):
        train = {**TRAIN, **change}
        whole = tmp_path / f"{kind}"
        run_stage(whole, inputs, train, 4)
        for number in range(5):
            rng, root = random.Random(10 * kind + number), tmp_path / f"{kind}-{number}"
            kills = sorted(rng.sample(range(1, 7), 2))
            for kill_at in [*kills, 99]:
                devices = rng.choice((1, 2, 4))
                processes = rng.choice((1, 2)) if devices > 1 else 1
                run_stage(root, inputs, train, devices, processes, kill_at)
            assert digest_of(root) == digest_of(whole), (change, number)


def test_shards_are_packed_each_for_itself():
    learned = np.zeros((8, 12), np.int32)
    learned[np.arange(8), [3, 9, 2, 2, 11, 11, 1, 5]] = 1
    batch = {"mask_loss": learned, "text": np.arange(96).reshape(8, 12)}
    # Two shards of four rows, in two parts each; the second has a part of 22 tokens.
    packed = packed_shards(batch, 2, 2, places=12, first=16)
    assert not is_packed(packed)
    assert set(packed[NUMBER][:4]) == {16, 17, 18, 19}
    np.testing.assert_array_equal(packed[LENGTH][4:], -1)
    lengths = text_lengths(learned)
    np.testing.assert_array_equal(packed[LENGTH][:4], lengths[packed[NUMBER][:4] - 16])
    np.testing.assert_array_equal(packed["text"], batch["text"][packed[NUMBER] - 16])
    assert is_packed(packed_shards(batch, 2, 2, places=22))
    # What other shards hold changes nothing.
    alone = packed_shards({name: rows[:4] for name, rows in batch.items()}, 1, 2, 12, first=16)
    for name, rows in alone.items():
        np.testing.assert_array_equal(rows, packed[name][:4])
    assert deal(lengths[:4], 2).shape == (2, 2)


def test_sums_are_added_as_soon_as_two_of_one_size_are_there():
    kept: list[str] = []
    for turn in range(8):
        kept.append(str(turn))
        for _ in range(_num_pairs(turn)):
            right = kept.pop()
            kept.append(f"({kept.pop()}+{right})")
    assert kept == ["(((0+1)+(2+3))+((4+5)+(6+7)))"]


def test_rows_at_a_time_and_packing_count_where_bytes_do_not_depend_on_devices():
    def identity(**changes: object) -> str:
        return identity_json(TrainConfig(batch_size=8, **changes))  # type: ignore[arg-type]

    assert identity() == identity(microbatch=2) == identity(pack=5)
    exact = [identity(exact_shards=4, **c) for c in ({}, {"microbatch": 2}, {"pack": 5})]
    assert len({identity(), identity(exact_shards=8), *exact}) == 5


@pytest.mark.parametrize("shards", [0, 3, 16, True])
def test_shards_that_a_batch_does_not_have_are_refused(shards: int):
    match = r"exact_shards must be one of 1, 2, 4, 8 for batch_size=24, or null, got"
    with pytest.raises(ValueError, match=match):
        ProgramConfig(batch_size=24, exact_shards=shards)


def test_what_fits_is_not_asked_of_the_devices():
    with pytest.raises(ValueError, match="microbatch must be a number or null with exact_shards"):
        ProgramConfig(exact_shards=4, microbatch="auto")
    assert dataclasses.replace(ProgramConfig(), microbatch="auto").exact_shards is None
