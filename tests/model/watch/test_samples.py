"""Answers to held-out questions while a stage trains, and the losses of an update's examples."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from infra.progress import Progress
from model.decode.config import DecodeConfig
from model.eval.predictions_file import read_predictions
from model.eval.run import predict
from model.files import DIGEST, METRICS, SAMPLES
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from model.watch import samples
from model.watch.row_losses import RowLoss, losses_of_rows
from model.watch.samples import Samples
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model

MODEL = tiny_model("parcel", (30, 64))
TRAIN = TrainConfig(
    batch_size=3,
    total_steps=5,
    text_len=16,
    save_steps=2,
    log_steps=1,
    sample_steps=2,
    warmup=0.0,
    peak_lr=3e-3,
)
SEEDS = Seeds.of(5)


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("given")
    return {
        "data": write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]}),
        "held_out": write_dataset(
            root / "held", {"color": [color_record(i) for i in range(20, 27)]}
        ),
        "tokenizer": write_tokenizer(root / "tokenizer.model"),
    }


def paths_of(root: Path, given: dict[str, str]) -> StagePaths:
    (root / "out").mkdir(parents=True, exist_ok=True)
    return StagePaths(
        data=given["data"],
        tokenizer=given["tokenizer"],
        scratch=str(root / "scratch"),
        out=str(root / "out"),
    )


def run(root: Path, given: dict[str, str], train: TrainConfig = TRAIN) -> Iterator[Progress]:
    looks = Samples(MODEL, train, data=given["held_out"], tokenizer=Tokenizer(given["tokenizer"]))
    return fit(MODEL, train, paths_of(root, given), SEEDS, {SAMPLES: looks})


@pytest.fixture(scope="module")
def trained(tmp_path_factory, given: dict[str, str]) -> Path:
    root = tmp_path_factory.mktemp("trained")
    list(run(root, given))
    return root


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_the_first_held_out_records_are_answered_as_an_evaluation_answers_them(
    trained: Path, given: dict[str, str], tmp_path: Path
):
    found = rows(trained / "out" / SAMPLES)
    assert [step for step, _ in itertools.groupby(found, lambda row: row["step"])] == [2, 4, 5]
    assert len(found) == 12
    out = {64: str(tmp_path)}
    config = DecodeConfig(batch_size=4, text_len=TRAIN.text_len)
    list(predict(str(trained / "out"), data=given["held_out"], config=config, out=out))
    answers = [(row["id"], row["prediction"]) for row in read_predictions(tmp_path)]
    assert [(row["id"], row["prediction"]) for row in found[-4:]] == answers[:4]
    assert {row["budget"] for row in found} == {64}


@pytest.mark.slow
def test_answers_change_no_parameter(trained: Path, given: dict[str, str], tmp_path: Path):
    list(fit(MODEL, TRAIN, paths_of(tmp_path, given), SEEDS))
    digests = [(root / "out" / DIGEST).read_text() for root in (trained, tmp_path)]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_device_without_room_for_answers_trains_on(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_room(*args: object, **more: object) -> Iterator[None]:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        yield

    monkeypatch.setattr(samples, "predict_loaded", no_room)
    list(run(tmp_path, given))
    (row,) = rows(tmp_path / "out" / SAMPLES)
    assert (row["step"], "out of memory" in row["error"]) == (2, True)
    assert (tmp_path / "out" / DIGEST).exists()


def losses(root: Path, given: dict[str, str], step: int, points: str = "") -> list[RowLoss]:
    paths = dataclasses.replace(paths_of(root, given), points=points)
    found = losses_of_rows(MODEL, TRAIN, paths, SEEDS, step)
    return [item for item in found if isinstance(item, RowLoss)]


@pytest.mark.slow
def test_the_losses_of_an_updates_examples_have_its_loss_as_their_mean(
    trained: Path, given: dict[str, str], tmp_path: Path
):
    logged = {row["step"]: row["loss"] for row in rows(trained / "out" / METRICS)}
    points = str(trained / "scratch" / "resume")  # Of steps 2 and 4: the newer one is too new.
    for found in (losses(tmp_path, given, 4), losses(tmp_path, given, 4, points)):
        assert len({row.loss for row in found}) == 3
        assert sum(row.loss for row in found) / 3 == pytest.approx(logged[4], rel=1e-4)
        assert all(row.record.startswith("color") and row.suffix for row in found)
    with contextlib.closing(losses_of_rows(MODEL, TRAIN, paths_of(tmp_path, given), SEEDS, 4)) as a:
        assert next(a) == Progress(done=0, total=3)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 6])
def test_a_step_that_is_none_of_the_trainings_is_refused(
    given: dict[str, str], tmp_path: Path, step: int
):
    with pytest.raises(ValueError, match=rf"step must be in 1\.\.5, the updates, got {step}"):
        losses(tmp_path, given, step)
