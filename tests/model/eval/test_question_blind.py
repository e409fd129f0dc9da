"""The score of one answer to all questions on a picture."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from model.eval.question_blind import question_blind_score
from pipelines.records.rle import encode_mask
from pipelines.records.schema import Record
from tests.model.tiny_data import color_record, mask_record, write_dataset


def asked(picture: str, prefix: str, *answers: str, number: int = 0) -> Record:
    return dataclasses.replace(
        color_record(number),
        id=f"{picture}/{prefix}",
        source_sha256=picture * 64,
        prefix=prefix,
        suffixes=answers[:1],
        answers=answers,
    )


def score_of(folder: Path, records: list[Record], metric: str) -> float | None:
    return question_blind_score(write_dataset(folder / "data", {"color": records}), metric)


def test_it_is_the_best_one_answer_to_each_picture(tmp_path: Path):
    records = [
        asked("a", "left?", "red"),
        asked("a", "right?", "blue"),  # One of two.
        asked("b", "left?", "red"),
        asked("b", "right?", "red"),  # Both.
        asked("b", "middle?", "green"),
    ]
    assert score_of(tmp_path, records, "exact_match") == pytest.approx(100 * 3 / 5)


def test_any_right_answer_of_a_picture_may_be_the_best(tmp_path: Path):
    records = [asked("a", "one?", "red", "blue"), asked("a", "two?", "green", "blue")]
    assert score_of(tmp_path, records, "anls") == 100.0


@pytest.mark.parametrize("metric", ["exact_match", "cider"])
def test_there_is_none_without_several_questions_and_for_captions(tmp_path: Path, metric: str):
    records = [asked("a", "left?", "red"), asked("b", "right?", "blue")]
    if metric == "cider":
        records.append(asked("a", "right?", "blue"))
    assert score_of(tmp_path, records, metric) is None


def test_of_masks_the_best_one_counts_by_its_overlap(tmp_path: Path):
    masks = np.zeros((2, 32, 32), bool)
    masks[0, :8, :8], masks[1, :8, :4] = True, True
    records = [
        dataclasses.replace(
            mask_record(0), id=f"{n}", prefix=f"segment {n}", masks=(encode_mask(mask),)
        )
        for n, mask in enumerate(masks)
    ]
    assert score_of(tmp_path, records, "miou") == pytest.approx(75.0)


def test_the_step_writes_it_beside_the_guess_without_pixels(tmp_path: Path):
    from flows.steps.kinds import chance

    data = write_dataset(
        tmp_path / "data",
        {"color": [asked("a", "left?", "red"), asked("a", "right?", "blue")]},
    )

    class Work:
        places = {"train": data, "eval": data}  # noqa: RUF012
        config, out, counts = "exact_match", tmp_path, {}

    list(chance.make(Work()))  # pyright: ignore[reportArgumentType]
    written = json.loads((tmp_path / "chance.json").read_text())
    assert written == {"score": 100.0, "without_question": 50.0}
