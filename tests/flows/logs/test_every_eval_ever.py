"""Logs of Every Eval Ever as other systems write them: what is read, and what is refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.logs.item_log import ItemLogError
from flows.logs.logs_report import read_logs, report_logs
from flows.report.cells import NO_BUDGET

# As converters of the format write it: two metrics of one task, the second one in percent.
EVALUATION = {
    "schema_version": "0.2.2",
    "evaluation_id": "chartqa/org/a/1",
    "eval_library": {"name": "inspect_ai", "version": "0.3"},
    "model_info": {"id": "org/a", "name": "a", "additional_details": {"seed": "3"}},
    "evaluation_results": [
        {
            "evaluation_result_id": "bleu",
            "evaluation_name": "chartqa",
            "source_data": {"dataset_name": "ChartQA", "source_type": "hf_dataset"},
            "metric_config": {"metric_id": "bleu", "lower_is_better": False, "max_score": 100},
            "score_details": {"score": 31.0},
        },
        {
            "evaluation_result_id": "relaxed",
            "evaluation_name": "chartqa",
            "source_data": {
                "dataset_name": "ChartQA",
                "source_type": "hf_dataset",
                "hf_split": "test",
            },
            "metric_config": {
                "metric_name": "relaxed",
                "metric_unit": "percent",
                "lower_is_better": False,
            },
            "score_details": {"score": 75.0},
        },
    ],
}
ANSWERS = ("4", "5\u2028", "x", "4")
SCORES = (1.0, 1.0, 0.0, 1.0)


def _row(number: int, result: str, score: float) -> dict[str, Any]:
    return {
        "evaluation_id": "chartqa/org/a/1",
        "evaluation_result_id": result,
        "sample_id": str(number),
        "sample_hash": f"{number:064x}",
        "interaction_type": "single_turn",
        "input": {"raw": "How many?", "reference": ["4"]},
        "output": {"raw": [ANSWERS[number]]},
        "evaluation": {"score": score, "is_correct": score == 1},
        "metadata": {"image_id": f"{number // 2}.png"},
    }


def write_evaluation(
    folder: Path, change: Callable[[dict[str, Any], list[Any]], None] | None = None
) -> Path:
    """Writes an evaluation with its items, after a change of both; returns the folder."""
    evaluation = copy.deepcopy(EVALUATION)
    rows = [_row(i, "bleu", 0.2) for i in range(4)]
    rows += [_row(i, "relaxed", score) for i, score in enumerate(SCORES)]
    if change:
        change(evaluation, rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "3f9a.json").write_text(json.dumps(evaluation))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "3f9a_samples.jsonl").write_bytes(lines.encode())
    return folder


def test_the_metric_is_the_first_that_is_the_mean_of_its_items(tmp_path: Path):
    (log,) = read_logs([write_evaluation(tmp_path / "data" / "chartqa" / "org" / "a")])
    assert (log.model, log.task, log.metric, log.split) == ("org/a", "chartqa", "relaxed", "test")
    # The seed of another system may be anybody's: only logs of `parcel results` have ours.
    assert (log.budget, log.seed) == (NO_BUDGET, 0)
    assert [(item.answer, item.score, item.source) for item in log.items] == [
        (answer, score, f"{i // 2}.png")
        for i, (answer, score) in enumerate(zip(ANSWERS, SCORES, strict=True))
    ]
    (section,) = report_logs([log]).sections
    assert section.cells[0].mean == 75


def test_an_answer_of_several_turns_is_the_last_that_was_taken(tmp_path: Path):
    def change(_: dict[str, Any], rows: list[Any]) -> None:
        rows[4] |= {
            "interaction_type": "multi_turn",
            "output": None,
            "answer_attribution": [{"extracted_value": "7"}, {"extracted_value": "9"}],
        }

    (log,) = read_logs([write_evaluation(tmp_path, change)])
    assert log.items[0].answer == "9"


@pytest.mark.parametrize(
    ("raw", "taken", "answer"),
    [
        (["I see 4 bars."], "4", "4"),
        # What does not stand in the answer was not taken from it.
        (["I see 5 bars."], "4", "I see 5 bars."),
        (["a", "b"], None, None),
        ([], "4", "4"),
    ],
)
def test_an_answer_is_what_was_taken_from_it(
    tmp_path: Path, raw: list[str], taken: str | None, answer: str | None
):
    def change(_: dict[str, Any], rows: list[Any]) -> None:
        rows[4] |= {"output": {"raw": raw}, "answer_attribution": [{"extracted_value": taken}]}

    (log,) = read_logs([write_evaluation(tmp_path, change)])
    assert log.items[0].answer == answer


def test_a_question_under_two_ids_is_one_draw(tmp_path: Path):
    def change(_: dict[str, Any], rows: list[Any]) -> None:
        for number, row in enumerate(rows):
            # Whatever the digest is of; and the choices are part of the question.
            row |= {"metadata": {}, "sample_hash": f"{number:064x}"}
            row["input"]["choices"] = [str(number % 4 // 2)]

    (log,) = read_logs([write_evaluation(tmp_path, change)])
    (section,) = report_logs([log]).sections
    assert [*section.cells[0].scores[0].items.values()] == [(100, 100), (0, 100)]


def test_lines_without_the_id_of_a_result_belong_to_the_only_one(tmp_path: Path):
    def change(evaluation: dict[str, Any], rows: list[Any]) -> None:
        del evaluation["evaluation_results"][0], rows[:4]
        for row in rows:
            del row["evaluation_result_id"]

    (log,) = read_logs([write_evaluation(tmp_path, change)])
    assert [item.score for item in log.items] == [*SCORES]


def _other_mean(evaluation: dict[str, Any], rows: list[Any]) -> None:
    evaluation["evaluation_results"][1]["score_details"]["score"] = 70


def _other_task(evaluation: dict[str, Any], rows: list[Any]) -> None:
    evaluation["evaluation_results"][0]["evaluation_name"] = "docvqa"


def _other_evaluation(evaluation: dict[str, Any], rows: list[Any]) -> None:
    rows[2]["evaluation_id"] = "b"


def _twice(evaluation: dict[str, Any], rows: list[Any]) -> None:
    rows[5]["sample_id"] = "0"


def _no_number(evaluation: dict[str, Any], rows: list[Any]) -> None:
    rows[4]["evaluation"]["score"] = "right"


def _no_model(evaluation: dict[str, Any], rows: list[Any]) -> None:
    del evaluation["model_info"]["id"]


def _no_seed(evaluation: dict[str, Any], rows: list[Any]) -> None:
    evaluation["eval_library"]["name"] = "parcel"
    evaluation["evaluation_results"][1]["generation_config"] = {
        "additional_details": {"budget": "sixty-four"}
    }


def _no_item(evaluation: dict[str, Any], rows: list[Any]) -> None:
    rows.clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _other_mean,
            r"3f9a_samples.jsonl: needs a metric .* score in 3f9a.json, got bleu, relaxed\.",
        ),
        (_other_task, r"must be of one evaluation_name, got docvqa, chartqa; write one file"),
        (_other_evaluation, r"line 3: evaluation_id must be 'chartqa/org/a/1' .* got 'b'\."),
        (_twice, r"line 6: sample_id 0 is there twice"),
        (_no_number, r"line 5: evaluation.score must be a number, got 'right'"),
        (_no_model, r"3f9a.json: model_info: id must be a text, got None"),
        (_no_seed, r"3f9a.json: budget must be a whole number as a text, got 'sixty-four'"),
        (_no_item, r"3f9a_samples.jsonl: has no item"),
    ],
)
def test_a_wrong_log_is_refused_with_its_place(tmp_path: Path, change: Any, message: str):
    with pytest.raises(ItemLogError, match=message):
        read_logs([write_evaluation(tmp_path, change)])


def test_items_without_their_evaluation_are_refused(tmp_path: Path):
    (write_evaluation(tmp_path) / "3f9a.json").unlink()
    with pytest.raises(ItemLogError, match=r"needs 3f9a\.json"):
        read_logs([tmp_path])
