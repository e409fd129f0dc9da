"""Tables of VLMEvalKit: every form and kind, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.report.foreign import vlmevalkit
from flows.report.foreign.item_log import ItemLogError
from flows.report.foreign.logs_report import read_logs, report_logs
from tests.flows.report.foreign.vlmevalkit_tables import write_results, write_table

SCORES = [1.0, 0.0, 0.5, 1.0, 0.0]


@pytest.mark.parametrize("form", [".xlsx", ".tsv", ".json", ".csv"])
def test_every_form_has_the_same_items(tmp_path: Path, form: str):
    write_results(tmp_path, "org-a_b", SCORES, form=form, extra={"image_path": "7.jpg", "A": "Two"})
    (log,) = read_logs([tmp_path])
    assert (log.model, log.task, log.metric) == ("org-a_b", "ChartQA_TEST", "eval_score")
    assert [item.score for item in log.items] == SCORES
    assert [item.id for item in log.items] == ["0", "1", "2", "3", "4"]
    third = log.items[2]
    assert (third.answer, third.target, third.source) == ("0.5\u00e9, or\nso", "4", "7.jpg")
    assert (third.question, third.text) == ("How many? 2\nA. Two", "How many? 2")


@pytest.mark.parametrize(
    ("kind", "column", "means_kind", "means", "metric"),
    [
        ("exact_matching_result", "hit", "acc", {"split": "none", "Overall": 0.5}, "hit by {}"),
        ("auxmatch", "score", "score", {"split": "Overall", "Overall": 91, "acc": 50}, "score"),
    ],
)
def test_every_kind_agrees_with_its_means(
    tmp_path: Path, kind: str, column: str, means_kind: str, means: dict, metric: str
):
    # A dataset whose name another's begins with lies beside it.
    write_results(tmp_path, "a", [1.0], dataset="Bench_DEV")
    write_results(
        tmp_path, "a", SCORES, dataset="Bench_DEV_V11", kind=kind, column=column,
        means=[means], means_kind=means_kind,
    )  # fmt: skip
    logs = {log.task: log for log in read_logs([tmp_path])}
    assert sorted(logs) == ["Bench_DEV", "Bench_DEV_V11"]
    assert logs["Bench_DEV_V11"].metric == metric.format("exact_matching")


@pytest.mark.parametrize("form", [".xlsx", ".json"])
@pytest.mark.parametrize(
    ("metric", "scores"),
    [("anls of eval_match", [1.0, 0.5, 0.0]), ("best of eval_match", [1, 1, 1])],
)
def test_a_score_of_several_answers_is_computed_as_there(
    tmp_path: Path, form: str, metric: str, scores: list[float]
):
    path = write_results(
        tmp_path, "a", [0.0] * 3, form=form, means=[{"Overall": 100 * sum(scores) / 3}]
    )
    matches = [[1.0, 0.0], [0.5, 1.0], [0.75, 1.0]]
    rows = [
        {"index": n, "eval_score": 0.9, "eval_match": each if form == ".json" else str(each)}
        for n, each in enumerate(matches)
    ]
    write_table(path, rows)
    (log,) = read_logs([tmp_path])
    assert log.metric == metric
    assert [item.score for item in log.items] == scores


def test_means_of_splits_are_weighted(tmp_path: Path):
    means = [{"split": "dev", "Overall": 1.0}, {"split": "test", "Overall": 0.375}]
    splits = ["dev", "test", "test", "test", "test"]
    write_results(
        tmp_path, "a", SCORES, kind="openai_result", column="hit", means=means, splits=splits
    )
    (log,) = read_logs([tmp_path])
    assert (log.split, log.metric) == ("dev, test", "hit by openai")


def test_a_run_that_the_models_folder_links_to_is_read_once(tmp_path: Path):
    write_results(tmp_path, "a", SCORES)
    run = tmp_path / "a" / "T20261127_Gab12cd34"
    shutil.copytree(tmp_path / "a", run)
    assert len(read_logs([tmp_path])) == 1
    for path in (tmp_path / "a").glob("a_*"):
        path.unlink()
    (log,) = read_logs([tmp_path])
    assert log.model == "a"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"question": "Count."}, r"question of item 0 must be 'How many\? 0' as in .*'Count\. 0'"),
        ({"answer": "5"}, r"target of item 0 must be '4' as in .*, got '5'"),
        ({"kind": "gpt4_results"}, r"metric must be 'eval_score' as in .*'eval_score by gpt4'"),
        ({"splits": ["val"] * 5}, r"split must be 'test' as in .*, got 'val'"),
        ({"scores": [1.0], "splits": ()}, r"questions must be those of .*, got 1 and 5"),
    ],
)
def test_another_question_is_refused_with_what_differs(tmp_path: Path, other: dict, message: str):
    shared: dict[str, Any] = {"scores": SCORES, "splits": ["test"] * 5}
    write_results(tmp_path, "a", **shared)
    write_results(tmp_path, "b", **{**shared, **other})
    with pytest.raises(ItemLogError, match=message):
        report_logs(read_logs([tmp_path]))


def test_means_of_other_answers_are_refused(tmp_path: Path):
    path = write_results(tmp_path, "a", SCORES, means=[{"Overall": 0.7}])
    with pytest.raises(ItemLogError, match=r"whose mean is the task's own, got hit, eval_score"):
        read_logs([tmp_path])
    (path.parent / "a_ChartQA_TEST_acc.csv").unlink()
    with pytest.raises(ItemLogError, match=r"needs a_ChartQA_TEST_acc\.csv or .*_score\.csv"):
        read_logs([tmp_path])


@pytest.mark.parametrize("form", [".xlsx", ".tsv", ".json"])
def test_a_damaged_table_is_named(tmp_path: Path, form: str):
    path = write_results(tmp_path, "a", SCORES, form=form)
    path.write_bytes(path.read_bytes()[:-60] + b'"\xff')
    with pytest.raises(ItemLogError, match=rf"_results\{form}.*(damaged|is not JSON)"):
        read_logs([tmp_path])


def test_rows_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_results(tmp_path, "a", SCORES, form=".json")
    write_table(path, [{"index": 1, "eval_score": 0.5}, {"index": 1, "eval_score": 0.5}])
    with pytest.raises(ItemLogError, match=r"row 2: index 1 is there twice"):
        read_logs([tmp_path])
    write_table(path, [{"index": None, "eval_score": 0.5}])
    with pytest.raises(ItemLogError, match=r"row 1: index is missing"):
        read_logs([tmp_path])
    path.write_text("[3]")
    with pytest.raises(ItemLogError, match=r"must be a list of objects, got \[3\]"):
        read_logs([tmp_path])
    monkeypatch.setattr(vlmevalkit, "MAX_BYTES", 2)
    with pytest.raises(ItemLogError, match=r"must be at most 2 bytes, got 3"):
        read_logs([tmp_path])
