"""Scores of files of answers: their bytes, their items by column, and files that do not fit."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from model.eval.items_file import ItemsFile, write_items
from model.eval.predictions_file import read_predictions, write_predictions
from model.eval.score import score
from pipelines.records.schema import Record
from tests.model.tiny_data import color_record, write_dataset

LANGUAGES = ("de", "de", "fr")


@pytest.fixture
def records() -> list[Record]:
    clips = [color_record(i, images=2, part="clips") for i in range(2)]
    plain = [dataclasses.replace(color_record(i), lang=LANGUAGES[i]) for i in range(3)]
    return [*clips, *plain]


@pytest.fixture
def data(tmp_path: Path, records: list[Record]) -> str:
    return write_dataset(tmp_path / "data", {"clips": records[:2], "color": records[2:]})


def predictions(folder: Path, records: Sequence[Record], wrong: Sequence[int] = (), **more) -> Path:
    """Writes right answers to records, but for some, into a new folder."""
    folder.mkdir()
    rows = [
        {
            "id": record.id,
            "prefix": record.prefix,
            "prediction": "no" if number in wrong else record.answers[0],
            "answers": list(record.answers),
            "source": record.source,
            "source_sha256": record.source_sha256,
            **more,
        }
        for number, record in enumerate(records)
    ]
    write_predictions(folder, rows[::-1])
    return folder


def result(folder: Path) -> Any:
    return json.loads((folder / "score.json").read_text())


def test_files_of_one_split_are_scored_side_by_side(tmp_path: Path, records, data: str):
    low = predictions(tmp_path / "low", records, wrong=(1, 4))
    high = predictions(tmp_path / "high", records)
    out = {low: tmp_path / "16", high: tmp_path / "64"}
    for folder in out.values():
        folder.mkdir()
    steps = list(score(out, data=data, metric="exact_match"))
    assert [(step.done, step.total) for step in steps] == [(5, 5)]
    assert result(tmp_path / "64") == {
        "metric": "exact_match",
        "num": 5,
        "score": 100.0,
        "sum": 5.0,
    }
    assert result(tmp_path / "16")["score"] == 60.0
    items = ItemsFile(tmp_path / "16")
    ids, scores = items.columns("id", "score")
    assert (ids, scores) == ([record.id for record in records], [1.0, 0.0, 1.0, 1.0, 0.0])
    assert not items.has_pseudo_values
    (answered,) = (row for row in read_predictions(low) if row["id"] == records[1].id)
    assert items.row(records[1].id) == {**answered, "score": 0.0}
    assert items.row("clips/0") is None
    assert {path.name for path in low.iterdir()} == {"predictions.jsonl"}
    # Another metric scores the same answers.
    list(score(out, data=data, metric="vqa_lower"))
    assert result(tmp_path / "16")["metric"] == "vqa_lower"


def test_a_mean_over_languages_has_pseudo_values(tmp_path: Path, records, data: str):
    folder = predictions(tmp_path / "low", records, wrong=(4,))
    list(score({folder: folder}, data=data, metric="vqa"))
    # Of English and of German 2 of 2 are right, of French 0 of 1.
    assert result(folder)["score"] == pytest.approx(200 / 3)
    items = ItemsFile(folder)
    assert items.has_pseudo_values
    (values,) = items.columns("pseudo_value")
    assert sum(values) / 5 == pytest.approx(2 / 3)


def test_predictions_of_an_earlier_version_are_scored_anew(tmp_path: Path, records, data: str):
    earlier = predictions(tmp_path / "earlier", records, score=0.0, pseudo_value=0.25)
    list(score({earlier: earlier}, data=data, metric="exact_match"))
    assert result(earlier)["score"] == 100.0
    assert ItemsFile(earlier).columns("score") == [[1.0] * 5]
    assert not ItemsFile(earlier).has_pseudo_values


def test_answers_to_other_records_are_refused(tmp_path: Path, records, data: str):
    few = predictions(tmp_path / "few", records[:3])
    with pytest.raises(ValueError, match=r"row for each record .*got None for 'color/"):
        list(score({few: few}, data=data, metric="exact_match"))
    other = predictions(tmp_path / "other", [color_record(7), *records])
    with pytest.raises(ValueError, match=r"records of the split, got 'color/007'"):
        list(score({other: other}, data=data, metric="exact_match"))
    # A probe answers the first records only.
    list(score({few: few}, data=data, metric="exact_match", limit=3))
    assert result(few)["num"] == 3


def test_equal_items_are_equal_bytes_and_are_read_across_groups_of_rows(tmp_path: Path):
    rows = [
        {"id": f"{i:05}", "prefix": "p", "prediction": "é", "answers": ["é"], "score": i % 2}
        for i in range(2500)
    ]
    files = []
    for name in "ab":
        (tmp_path / name).mkdir()
        write_items(tmp_path / name, rows)
        files.append((tmp_path / name / "items.parquet").read_bytes())
    assert files[0] == files[1]
    items = ItemsFile(tmp_path / "a")
    for number in (0, 1023, 1024, 2499):
        row = items.row(f"{number:05}")
        assert row is not None
        assert (row["score"], row["answers"]) == (number % 2, ["é"])
    assert [row["id"] for row in items.spread(5)] == ["00000", "00500", "01000", "01500", "02000"]


def test_scoring_texts_does_not_import_jax():
    code = "import sys, model.eval.score, flows.steps.kinds.scores; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
