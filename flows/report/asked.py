"""Scores by what was asked: counts, places, colors and so on, told by the question's own words."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flows.report.cells import CHANCE, Plan, Report, Section
from flows.report.interval import Paired, estimate
from flows.report.items import Items, by_source, mean_of, num_items
from flows.report.render import to_csv_lines
from infra.store.store import Artifact
from model import files

ASKED_COLUMNS = (
    "benchmark",
    "asked",
    "method",
    "budget",
    "seeds",
    "items",
    "score",
    "low",
    "high",
    "chance",
)

_QUESTION = re.compile(r"\b(how many|how much|how|what|which|whose|who|where|when|why)\b")
_YES_OR_NO = re.compile(
    r"(is|are|was|were|am|does|do|did|has|have|had|can|could|will|would|should|may|must)\b"
)


def asked(prefix: str) -> str:
    """Returns what a prompt asks for: "how many", "what", …, "yes or no", or "other".

    Only English questions are told apart; of a question in another language the language is
    returned, "answer th", and of another task its name, "segment" or "caption en". A text that is
    no question, such as RefCOCO's, is an "expression".

    Args:
      prefix: prompt as the model reads it, "answer en How many bars are there?".
    """
    task, *words = prefix.lower().split() or [""]
    if task == "caption" or (task == "answer" and words[:1] != ["en"]):
        return " ".join([task, *words[:1]])
    if task in ("detect", "ocr", "segment"):
        return task
    question = " ".join(words[1:] if task == "answer" else [task, *words])
    if _YES_OR_NO.match(question):
        return "yes or no"
    is_question = "?" in question
    found = _QUESTION.search(question) if is_question else _QUESTION.match(question)
    if found:
        return found[1]
    return "other" if is_question else "expression"


def asked_to_csv(
    report: Report, plan: Plan, inputs: Mapping[str, Artifact], get: Callable[[str], Artifact]
) -> str:
    """Returns one line per benchmark, kind of question, method and budget that has scores.

    `items` counts the questions of a kind, `chance` is the score of the best guess for them. The
    interval is over seeds and items, as in the results table. Benchmarks whose score is no mean
    over items, such as CIDEr, have no lines.

    Args:
      report: the report whose scores are split.
      plan: the report's plan.
      inputs: role -> input artifact of the report.
      get: function from a key to its artifact, files included.
    """
    numbers = {seed: n for p in (plan, *plan.also) for seed, n in p.pretraining_of.items()}
    rows = [row for section in report.sections for row in _rows(section, numbers, inputs, get)]
    return to_csv_lines(ASKED_COLUMNS, rows)


def _rows(
    section: Section,
    numbers: Mapping[int, int],
    inputs: Mapping[str, Artifact],
    get: Callable[[str], Artifact],
) -> Iterator[dict[str, object]]:
    """Yields the lines of a benchmark, by kind of question, then in the order of its table."""
    found = {
        (cell.method, cell.budget): {
            score.seed: _read(get(score.artifact))
            for score in cell.scores
            if score.plain and score.items
        }
        for cell in section.cells
    }
    runs = [run for by_seed in found.values() for run in by_seed.values()]
    if not runs:
        return
    kind_of = {row["id"]: asked(row["prefix"]) for row in runs[0]}
    guess = _read(inputs[role]) if (role := f"{CHANCE}{section.benchmark}") in inputs else []
    for kind in sorted(set(kind_of.values())):

        def items(run: list[dict[str, Any]], kind: str = kind) -> Items:
            return by_source(
                (row["source_sha256"], row["score"]) for row in run if kind_of[row["id"]] == kind
            )

        for (method, budget), by_seed in found.items():
            if not by_seed:
                continue
            split = [items(run) for run in by_seed.values()]
            paired = Paired.of([mean_of(run) for run in split], split)
            interval = estimate([paired], [numbers[seed] for seed in by_seed])
            yield {
                "benchmark": section.benchmark,
                "asked": kind,
                "method": method,
                "budget": budget,
                "seeds": len(by_seed),
                "items": num_items(split[0]),
                "score": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "chance": mean_of(items(guess)) if guess else None,
            }


def _read(answers: Artifact) -> list[dict[str, Any]]:
    """Returns the items of a file of predictions, in its order."""
    with (answers.path / files.PREDICTIONS).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
