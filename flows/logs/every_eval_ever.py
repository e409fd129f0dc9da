"""Reads logs in the format of Every Eval Ever, of other systems and of `parcel results`.

    UUID.json             an evaluation: model, results with their metrics
    UUID_samples.jsonl    a line per item, or per item and result

Source: Every Eval Ever 0.3.0 (github.com/evaleval/every_eval_ever, eval.schema.json and
instance_level_eval.schema.json).
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from flows.logs.log_checks import (
    MEAN_TOLERANCE,
    is_number,
    object_member,
    optional_object,
    parse_object,
    picture_of,
    sorted_items,
    text_of,
)
from flows.logs.settings import SCORER, may_be_lower_better, stated_settings
from flows.report.every_eval_ever_files import LIBRARY, SAMPLES_END

FILES = f"*{SAMPLES_END} beside *.json"
"""What is read, for a message."""

_PSEUDO_TOLERANCE = 1e-5
"""As `MEAN_TOLERANCE`, where the items have pseudo-values, which are derivatives."""

_Row = tuple[str, dict[str, Any]]
"""Place of a line, such as "FILE line 3", and the line's object."""


def find_logs(folder: Path) -> list[Path]:
    """Returns the files of samples below a folder, in order of path."""
    return sorted(folder.rglob(f"*{SAMPLES_END}"))


def read_log(path: Path) -> ItemLog:
    """Returns the items of one model on one task.

    The task is the name of the evaluation. Of several results the first counts that has a number
    for every one of its items, whose mean is the result's own; one of which lower is better comes
    last. Scores are in 0-1 unless the result says that its metric is unbounded. Logs of
    `parcel results` have a budget and a seed, too.

    Raises:
      ItemLogError: if a file lacks what is read, is of several tasks, or no metric can be read item
        by item.
    """
    evaluation_file = path.with_name(path.name.removesuffix(SAMPLES_END) + ".json")
    if not evaluation_file.is_file():
        raise ItemLogError(f"{path}: needs {evaluation_file.name} beside it, which has the model.")
    evaluation = parse_object(evaluation_file.read_bytes(), str(evaluation_file))
    model = object_member(evaluation, "model_info", evaluation_file)
    name = _log_text_member(model, "id", f"{evaluation_file}: model_info")
    results = evaluation.get("evaluation_results")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise ItemLogError(f"{evaluation_file}: evaluation_results must be a list of objects.")

    rows = [
        (f"{path} line {number}", parse_object(line, f"{path} line {number}"))
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1)
        if line.strip()
    ]
    if not rows:
        raise ItemLogError(f"{path}: has no item.")
    for place, row in rows:
        if row.get("evaluation_id") != evaluation.get("evaluation_id"):
            raise ItemLogError(
                f"{place}: evaluation_id must be {evaluation.get('evaluation_id')!r} as in "
                f"{evaluation_file.name}, got {row.get('evaluation_id')!r}."
            )
    tasks = list(dict.fromkeys(str(result.get("evaluation_name")) for result in results))
    if len(tasks) != 1:
        raise ItemLogError(
            f"{evaluation_file}: evaluation_results must be of one evaluation_name, got "
            f"{', '.join(tasks) or 'none'}; write one file for each."
        )
    result, result_rows = _readable_result(evaluation, results, rows, path, evaluation_file)
    own = _own_fields(evaluation, result, str(evaluation_file))
    object_member(result, "source_data", f"{evaluation_file}: evaluation_results")
    settings = _result_settings(evaluation, result, len(result_rows))
    return ItemLog(
        file=str(path),
        model=name,
        task=tasks[0],
        metric=_metric_name(result),
        split=str(settings.pop("split", "")),
        items=sorted_items(
            ((at, _every_eval_item(row, at)) for at, row in result_rows), "sample_id"
        ),
        settings=settings,
        **own,
    )


def _result_settings(
    evaluation: Mapping[str, Any], result: Mapping[str, Any], num: int
) -> dict[str, Any]:
    """Returns the settings that an evaluation states for a result with a number of items."""
    library = optional_object(evaluation, "eval_library")
    uncertainty = optional_object(optional_object(result, "score_details"), "uncertainty")
    total = uncertainty.get("num_samples")
    metric = optional_object(result, "metric_config")
    scorer = _inspect_scorer(evaluation, result)
    is_guess = optional_object(metric, "additional_details").get("polarity") == "unknown" or (
        scorer is not None and may_be_lower_better(_metric_name(result), {SCORER: scorer})
    )
    if is_guess and metric.get("lower_is_better") is False:
        # Converters write it where they know no direction, since the format asks for one.
        metric = {name: value for name, value in metric.items() if name != "lower_is_better"}
    return stated_settings(
        {
            "evaluator": " ".join(
                str(library[of]) for of in ("name", "version") if library.get(of)
            ),
            # Where the score is over more items than the file has.
            "limit.samples": total if isinstance(total, int) and total > num else None,
            "version": optional_object(library, "additional_details").get("task_version"),
            SCORER: scorer or None,
            **{name: result.get(name) for name in ("source_data", "generation_config")},
            "metric_config": metric,
        }
    )


def _inspect_scorer(evaluation: Mapping[str, Any], result: Mapping[str, Any]) -> str | None:
    """Returns the scorer of a result of inspect_ai, "" if it has no name; None of other systems.

    Source: every_eval_ever, converters/inspect: an `evaluation_result_id` is SCORER:METRIC in
    0.3.0; before, an `evaluation_name` was TASK - SCORER.
    """
    library, origin = (
        optional_object(evaluation, of) for of in ("eval_library", "source_metadata")
    )
    if "inspect_ai" not in (library.get("name"), origin.get("source_name")):
        return None
    scorer, colon, _ = str(result.get("evaluation_result_id")).rpartition(":")
    return scorer if colon else str(result.get("evaluation_name")).partition(" - ")[2]


def _readable_result(
    evaluation: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    rows: Sequence[_Row],
    path: Path,
    evaluation_file: Path,
) -> tuple[Mapping[str, Any], list[_Row]]:
    """Returns the first result whose score is the mean of its items' scores, and their lines."""
    named = [(_metric_name(result), result) for result in results]
    named.sort(
        key=lambda pair: may_be_lower_better(pair[0], _result_settings(evaluation, pair[1], 0))
    )
    for _, result in named:
        result_id = result.get("evaluation_result_id")
        of_result = [
            (place, row)
            for place, row in rows
            # Lines without the id of a result count for all; they have one score.
            if row.get("evaluation_result_id") in (None, result_id)
        ]
        metric, score = result.get("metric_config"), result.get("score_details")
        if not of_result or not isinstance(metric, dict) or not isinstance(score, dict):
            continue
        mean = score.get("score")
        if not is_number(mean):
            continue
        # Items are in 0-1; some state their mean in percent.
        in_percent = metric.get("max_score") == 100 or metric.get("metric_unit") == "percent"
        mean = mean / 100 if in_percent else mean
        values = [_score_or_pseudo_value(row, place) for place, row in of_result]
        bounded = metric.get("max_score") != "Infinity" and not _has_pseudo_values(of_result)
        if bounded and not all(0 <= value <= 1 for value in values):
            continue
        tolerance = _PSEUDO_TOLERANCE if _has_pseudo_values(of_result) else MEAN_TOLERANCE
        if math.isclose(statistics.fmean(values), mean, abs_tol=tolerance):
            return result, of_result
    raise ItemLogError(
        f"{path}: needs a metric with a number in 0-1 for every item whose mean is the "
        f"score in {evaluation_file.name}, got {', '.join(dict(named)) or 'none'}."
    )


def _own_fields(
    evaluation: Mapping[str, Any], result: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """Returns how a log's answers were made, if `parcel results` wrote it; {} of others.

    Others may have a seed as well, but what was drawn from it is not known.
    """
    library = evaluation.get("eval_library")
    if not isinstance(library, dict) or library.get("name") != LIBRARY:
        return {}
    generation = object_member(result, "generation_config", place)
    training = object_member(
        object_member(evaluation, "model_info", place), "additional_details", place
    )
    decoding = object_member(generation, "additional_details", place)
    texts = {
        "budget": decoding.get("budget"),
        "seed": training.get("seed"),
        "pretraining": training.get("pretraining"),
    }
    for name, text in texts.items():
        if not isinstance(text, str) or not (text.isascii() and text.isdigit()):
            raise ItemLogError(f"{place}: {name} must be a whole number as a text, got {text!r}.")
    numbers = {name: int(str(text)) for name, text in texts.items()}
    checkpoint = training.get("checkpoint_sha256") or training.get("checkpoint")
    return {**numbers, "checkpoint": text_of(checkpoint)}


def _every_eval_item(row: Mapping[str, Any], place: str) -> LoggedItem:
    question = object_member(row, "input", place)
    text = _log_text_member(question, "raw", f"{place}: input", empty=True)
    prompt, digest = text_of(question.get("formatted") or text), text_of(row.get("sample_hash"))
    return LoggedItem(
        id=_log_text_member(row, "sample_id", place),
        source=picture_of(optional_object(row, "metadata")),
        question=digest,
        prompt=prompt,
        text=text,
        target=_one_text(question.get("reference")),
        alike=json.dumps(question, sort_keys=True) if prompt else digest,
        answer=_logged_answer(row),
        score=_score_or_pseudo_value(row, place),
    )


def _logged_answer(row: Mapping[str, Any]) -> str | None:
    """Returns the value extracted from the last turn; without one, the answer of a single turn."""
    raw = optional_object(row, "output").get("raw")
    if isinstance(raw, list) and len(raw) == 1:
        raw = raw[0]
    taken = row.get("answer_attribution")
    last = taken[-1] if isinstance(taken, list) and taken else {}
    value = last.get("extracted_value") if isinstance(last, dict) else None
    # What was taken from an answer stands in it; anything else is another's answer.
    if isinstance(value, str) and (not isinstance(raw, str) or value in raw):
        return value
    return raw if isinstance(raw, str) else None


def _one_text(texts: Any) -> str:
    """Returns the only text of a list, or a longer list as JSON; "" without one."""
    if isinstance(texts, list) and len(texts) == 1:
        return str(texts[0])
    return json.dumps(texts, ensure_ascii=False) if texts else ""


def _score_or_pseudo_value(row: Mapping[str, Any], place: str) -> float:
    """Returns an item's score, or its pseudo-value where the metric is no mean of items."""
    score = object_member(row, "evaluation", place).get("score")
    if not is_number(score):
        raise ItemLogError(f"{place}: evaluation.score must be a number, got {score!r}.")
    text = optional_object(row, "metadata").get("pseudo_value")
    if text is None:
        return float(score)
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ItemLogError(f"{place}: metadata.pseudo_value must be a number, got {text!r}.")
    return value


def _has_pseudo_values(rows: Sequence[_Row]) -> bool:
    return all("pseudo_value" in optional_object(row, "metadata") for _, row in rows)


def _metric_name(result: Mapping[str, Any]) -> str:
    metric = optional_object(result, "metric_config")
    name = metric.get("metric_id") or metric.get("metric_name")
    return str(name or metric.get("evaluation_description") or "score")


def _log_text_member(
    values: Mapping[str, Any], name: str, place: str, *, empty: bool = False
) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ItemLogError(f"{place}: {name} must be a text, got {value!r}.")
    return value
