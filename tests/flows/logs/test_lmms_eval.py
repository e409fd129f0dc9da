"""Item logs of lmms-eval: the same statistics as our own, and what is refused."""

import random
from pathlib import Path
from typing import Any

import pytest

from flows.logs.item_log import ItemLogError
from flows.logs.logs_report import read_logs, report_logs
from flows.lookup.results import show_logs
from flows.report.cells import Cell
from infra.errors import ConfigError
from tests.flows.logs.lmms_logs import change_rows, write_logs


def _width(cell: Cell) -> float:
    assert cell.low is not None
    assert cell.high is not None
    return cell.high - cell.low


def _scores(seed: int, num: int = 200) -> list[float]:
    rng = random.Random(seed)
    return [float(rng.random() < 0.6) for _ in range(num)]


def test_five_thousand_items_are_read_without_loss(tmp_path: Path):
    scores = _scores(1, 5000)
    write_logs(tmp_path, "org/a", scores)
    (log,) = read_logs([tmp_path])
    assert (log.model, log.task, log.metric, log.split) == ("org/a", "chartqa", "relaxed", "test")
    assert {int(item.id): item.score for item in log.items} == dict(enumerate(scores))
    assert {item.answer for item in log.items} == {"4\u00e9"}


def test_two_models_are_paired_by_item(tmp_path: Path):
    # The second one differs in ten items only: unpaired, that difference would not stand.
    first = _scores(2)
    wrong = [number for number, score in enumerate(first) if not score][:10]
    second = [1.0 if number in wrong else score for number, score in enumerate(first)]
    write_logs(tmp_path, "a", first)
    write_logs(tmp_path, "b", second)
    report = report_logs(read_logs([tmp_path]))
    (comparison,) = report.sections[0].comparisons
    assert (comparison.method, comparison.other, comparison.items) == ("b", "a", 200)
    assert comparison.mean == pytest.approx(5)
    assert comparison.low is not None
    assert comparison.low > 0


def test_items_that_share_a_picture_are_one_draw(tmp_path: Path):
    scores = [score for score in _scores(3, 50) for _ in range(4)]
    alone = write_logs(tmp_path / "alone", "a", scores)
    shared = write_logs(tmp_path / "shared", "a", scores, per_picture=4)
    narrow, wide = (report_logs(read_logs([f])).sections[0].cells[0] for f in (alone, shared))
    assert narrow.mean == wide.mean
    assert _width(wide) > 1.7 * _width(narrow)
    assert any("chartqa do not name" in n for n in report_logs(read_logs([alone])).notes)


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_question_under_two_ids_is_one_draw(tmp_path: Path, has_digest: bool):
    def twice(number: int, row: dict[str, Any]) -> None:
        row |= {"doc_hash": f"{number % 40:064x}", "input": f"How many {number % 40}?"}
        if not has_digest:
            del row["doc_hash"]

    scores = _scores(4, 40) * 2
    once = write_logs(tmp_path / "once", "a", scores)
    for model in "ab":
        change_rows(write_logs(tmp_path / "twice", model, scores), twice)
    if has_digest:  # What one log says of the questions holds for the other's, too.
        change_rows(tmp_path / "twice" / "b", lambda _, row: row.pop("doc_hash"))
    narrow, wide = (
        report_logs(read_logs([folder])).sections[0].cells[0]
        for folder in (once, tmp_path / "twice")
    )
    assert narrow.mean == wide.mean
    assert _width(wide) > 1.3 * _width(narrow)
    text = show_logs([tmp_path / "twice"], "md")
    assert "| 1 | 1 | 80 | 40 |" in text
    assert "only those with the same digest, else question and target, count as one." in text


def test_the_same_words_about_other_data_are_two_draws(tmp_path: Path):
    write_logs(tmp_path, "a", _scores(4, 40))  # Whose digests differ.
    assert "| 1 | 1 | 40 | 40 |" in show_logs([tmp_path], "md")


def test_items_of_two_tasks_share_no_draw(tmp_path: Path):
    for task in ("charts", "plans"):
        write_logs(tmp_path / task, "a", _scores(5, 40), task=task)
    sections = report_logs(read_logs([tmp_path])).sections
    assert len({source for s in sections for source in s.cells[0].scores[0].items}) == 80


def _two_filters(root: Path, **means: float) -> None:
    """Writes a log that has each line twice, as each of two filters left its answer."""

    def change(results: dict[str, Any]) -> None:
        results["results"]["chartqa"] = {f"relaxed,{name}": mean for name, mean in means.items()}

    def half(number: int, row: dict[str, Any]) -> None:
        row |= {"doc_id": number % 2, "filter": "strict" if number < 2 else "none"}

    change_rows(write_logs(root, "a", [0.0, 0.0, 1.0, 0.0], change=change), half)


@pytest.mark.parametrize(("filters", "mean"), [({"none": 0.5}, 50), ({"strict": 0.0}, 0)])
def test_lines_are_those_of_the_filter_of_the_metric(
    tmp_path: Path, filters: dict[str, float], mean: float
):
    _two_filters(tmp_path, **filters)
    (section,) = report_logs(read_logs([tmp_path])).sections
    assert section.cells[0].mean == mean


def test_lines_of_another_filter_than_the_metrics_are_refused(tmp_path: Path):
    _two_filters(tmp_path, flexible=0.5)
    with pytest.raises(ItemLogError, match=r"filter of a .* means, flexible, got 'strict'\.$"):
        read_logs([tmp_path])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"metric": "exact"}, r"metric must be 'relaxed' as in .*, got 'exact'"),
        ({"split": "val"}, r"split must be 'test' as in .*, got 'val'"),
        ({"prompt": "Count."}, r"prompt of item 0 must be 'How many\?' as in .*, got 'Count\.'"),
        ({"scores": [1.0, 0.0]}, r"questions must be those of .*, got 2 and 3"),
    ],
)
def test_other_questions_are_refused_with_what_differs(tmp_path: Path, other: dict, message: str):
    write_logs(tmp_path, "a", [1.0, 0.0, 1.0])
    values: dict[str, Any] = {"scores": [1.0, 0.0, 1.0]} | other
    write_logs(tmp_path, "b", **values)
    with pytest.raises(ItemLogError, match=message):
        report_logs(read_logs([tmp_path]))


def test_a_model_twice_is_refused(tmp_path: Path):
    folder = write_logs(tmp_path, "a", [1.0, 0.0, 1.0])
    with pytest.raises(ItemLogError, match=r"a has chartqa in .*too"):
        report_logs(read_logs([tmp_path, folder]))


def test_a_mean_that_is_not_the_items_is_refused(tmp_path: Path):
    write_logs(tmp_path, "a", [1.0, 0.0], mean=0.7)
    with pytest.raises(ItemLogError, match=r"got relaxed\."):
        read_logs([tmp_path])


def test_a_broken_line_is_named(tmp_path: Path):
    folder = write_logs(tmp_path, "a", [1.0, 0.0])
    with (folder / "20261127_101500_samples_chartqa.jsonl").open("a") as file:
        file.write('{"doc_id": 2')
    with pytest.raises(ItemLogError, match=r"chartqa\.jsonl line 3 is not JSON"):
        read_logs([tmp_path])


def test_a_folder_without_logs_says_what_is_read(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--predictions: .*no item log; .*lmms-eval"):
        show_logs([tmp_path], "md")
    write_logs(tmp_path, "a", [1.0, 0.0, 1.0])
    with pytest.raises(ConfigError, match=r"--format .*--predictions .*'cells'"):
        show_logs([tmp_path], "cells")
    assert "chartqa" in show_logs([tmp_path], "md")
