"""A loss or a parameter that is no number stops a stage, which names the step and its records."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from infra.progress import COMPILING, Progress
from model.data.loader import Examples, samples_of_step
from model.seeds import Seeds
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from model.train.losses import Losses, NotFiniteError
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model

TRAIN = TrainConfig(
    batch_size=3,
    total_steps=9,
    text_len=16,
    save_steps=4,
    log_steps=4,
    warmup=0.0,
    schedule="constant",
)
SEEDS = Seeds.of(5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("inputs")
    data = write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]})
    return {"data": (data,), "tokenizer": write_tokenizer(root / "tokenizer.model")}


def run(root: Path, inputs: dict[str, Any], train: TrainConfig) -> Iterator[Progress]:
    (root / "out").mkdir(exist_ok=True)
    paths = StagePaths(scratch=str(root / "scratch"), out=str(root / "out"), **inputs)
    return fit(tiny_model(), train, paths, SEEDS)


def saved(root: Path) -> set[str]:
    return {path.parent.name.partition("-")[0] for path in root.glob("scratch/resume/*/0.json")}


def ids(inputs: dict[str, Any], train: TrainConfig, step: int) -> str:
    return ", ".join(i for i, *_ in samples_of_step(inputs["data"], train.batches, SEEDS, step))


@pytest.mark.slow
def test_the_first_loss_that_is_no_number_is_named_though_it_is_read_later(tmp_path, inputs):
    train = dataclasses.replace(TRAIN, peak_lr=1e37)
    with pytest.raises(NotFiniteError) as raised:
        list(run(tmp_path, inputs, train))
    named = next(n for n in range(1, 9) if f"step {n + 1}: the loss is" in str(raised.value))
    assert named in (1, 2)  # Looked at only at step 4.
    assert f"; its records: {ids(inputs, train, named)}. The last" in str(raised.value)
    assert saved(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize("total_steps", [1, 2])
def test_parameters_that_are_no_numbers_are_not_saved(tmp_path, inputs, total_steps: int):
    train = dataclasses.replace(TRAIN, peak_lr=1e39, save_steps=1, total_steps=total_steps)
    with pytest.raises(NotFiniteError, match=r"^step 1: the loss is finite, .*parameters"):
        list(run(tmp_path, inputs, train))
    assert saved(tmp_path) == set()
    assert not (tmp_path / "out/digest.txt").exists()


@pytest.mark.slow
def test_the_last_good_state_is_kept(tmp_path: Path, inputs: dict[str, Any]):
    told = list(run(tmp_path, inputs, TRAIN))
    assert len(told) >= 5
    assert [p.note == COMPILING for p in told[:2]] == [True, False]
    assert saved(tmp_path) == {"4", "8"}
    with pytest.raises(NotFiniteError, match=r"^step 9: .* lower train.peak_lr"):
        list(run(tmp_path, inputs, dataclasses.replace(TRAIN, peak_lr=1e39)))
    assert saved(tmp_path) == {"4", "8"}


def test_a_loss_that_jumps_is_told_with_its_records(inputs: dict[str, Any]):
    examples = Examples(inputs["data"], TRAIN.batches, SEEDS)
    losses = Losses(examples)
    told = []
    # Noise is no jump, nor is a fall; a high loss is one, if enough came before it.
    values = [2.0 + 0.1 * (step % 3) for step in range(30)]
    for step, value in {**dict(enumerate(values)), 4: 9.0, 25: 3.5, 28: 0.5}.items():
        losses.add(step, jnp.float32(value))
        told += losses.read()
    assert told == [
        "step 26: the loss jumps to 3.5, from 2.1 in the steps before; its records: "
        + ids(inputs, TRAIN, 25)
    ]
    assert losses.take_jumps() == {"26": 3.5}
    assert losses.take_jumps() == {}
