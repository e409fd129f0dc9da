"""Scores by what was asked: how many, what, where, yes or no, ..., told by the question's words."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean

from flows.report.cells import CHANCE, Plan, Report, Section
from flows.report.interval import estimate_interval
from flows.report.items import (
    Items,
    guess_rows,
    is_percentage,
    items_by_source,
    mean_item_score,
    num_items,
)
from flows.report.paired_scores import PairedScores
from flows.report.render import to_csv_lines
from infra.store.manifest import Input
from infra.store.store import Artifact
from model.eval.items_file import ItemsFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeScore:
    """The score of a method on one type of question; its fields are the columns of the CSV.

    Attributes:
      asked: type of the questions, as `question_type` returns it.
      seeds: number of seeds.
      pretrainings: number of pretrainings that these seeds start from.
      items: number of questions of this type.
      score: mean over seeds of the mean over items, 0-100.
      low: lower end of its 95 % interval.
      high: upper end of that interval.
      chance: score of the benchmark's blind guess on these questions; None if there is no guess.
    """

    benchmark: str
    asked: str
    method: str
    budget: int
    seeds: int
    pretrainings: int
    items: int
    score: float
    low: float | None
    high: float | None
    chance: float | None


_QUESTION = re.compile(r"\b(how many|how much|how|what|which|whose|who|where|when|why)\b")
_YES_OR_NO = re.compile(
    r"(is|are|was|were|am|does|do|did|has|have|had|can|could|will|would|should|may|must)\b"
)
# What follows one of these is not the question's.
_AFTER_QUESTION = re.compile(r" (?:context|options|choose from): ")


def question_type(prefix: str) -> str:
    """Returns the kind of a question: "how many", "what", …, "yes or no", or "other".

    Only English questions are told apart; of a question in another language the language is
    returned, "answer th", and of another task its name, "segment" or "caption en". A text that is
    no question, such as RefCOCO's, is an "expression".

    Args:
      prefix: prompt as the model reads it, "answer en How many bars are there?".
    """
    # By the prompt's first word, its task; only questions are split further, by their own words:
    #
    #   answer en How many bars are there?     how many
    #   answer en Is the cat black?            yes or no
    #   answer th …                            answer th
    #   caption en                             caption en
    #   detect cat                             detect
    #   the man on the left                    expression
    task, *words = prefix.lower().split() or [""]
    if task == "caption" or (task == "answer" and words[:1] != ["en"]):
        return " ".join([task, *words[:1]])
    if task in ("detect", "ocr", "segment"):
        return task
    question = " ".join(words[1:] if task == "answer" else [task, *words])
    question = _AFTER_QUESTION.split(question.removeprefix("question: "))[0]
    is_question = "?" in question
    if (is_question or task == "answer") and _YES_OR_NO.match(question):
        return "yes or no"
    match = _QUESTION.search(question) if is_question else _QUESTION.match(question)
    if match:
        return match[1]
    return "other" if is_question else "expression"


def question_types_to_csv(
    report: Report, plan: Plan, inputs: Mapping[str, Input], get: Callable[[str], Artifact]
) -> str:
    """Returns one line per benchmark, kind of question, method and budget that has scores.

    `items` counts the questions of a kind, `chance` is what the benchmark's blind guess scores on
    them, `score` the mean of the seeds' means. The interval is over seeds and items, as in the
    results table. Benchmarks whose score is no mean over items, such as CIDEr, have no lines.

    Args:
      report: the report whose scores are split.
      plan: the report's plan.
      inputs: role -> input of the results artifact.
      get: function from a key to its artifact, files included.
    """
    numbers = plan.pretraining_in_any_view
    rows = [
        row for section in report.sections for row in _type_scores(section, numbers, inputs, get)
    ]
    columns = [field.name for field in dataclasses.fields(TypeScore)]
    return to_csv_lines(columns, map(vars, rows))


def _type_scores(
    section: Section,
    numbers: Mapping[int, int],
    inputs: Mapping[str, Input],
    get: Callable[[str], Artifact],
) -> Iterator[TypeScore]:
    """Yields the lines of a benchmark, by kind of question, then in the order of its table."""
    scores = {
        (cell.method, cell.budget): [s for s in cell.scores if s.plain and s.items]
        for cell in section.cells
    }
    scores = {key: runs for key, runs in scores.items() if runs}
    if not scores:
        return
    first = next(iter(scores.values()))[0]  # All runs have the same questions.
    questions = zip(*ItemsFile(get(first.artifact).path).columns("id", "prefix"), strict=True)
    kinds = {item: question_type(prefix) for item, prefix in questions}
    # Each run's items by type of question: [seed][type] -> items.
    split = {
        key: [_items_by_type(_score_rows(get(score.artifact)), kinds) for score in runs]
        for key, runs in scores.items()
    }
    # Chance of a type is the guess's mean over the questions of that type, so that a type whose
    # answer is easily guessed shows it.
    guess = inputs.get(f"{CHANCE}{section.benchmark}")
    guessed = _items_by_type(guess_rows(get(guess.key).path, _FIELDS), kinds) if guess else {}
    for kind in sorted(set(kinds.values())):
        chance = mean_item_score(guessed[kind]) if guessed else None
        for (method, budget), runs in split.items():
            items = [run[kind] for run in runs]
            seeds = [score.seed for score in scores[method, budget]]
            # The same estimate as the table's, over the items of one type only.
            paired = PairedScores.of(
                [mean_item_score(run) for run in items],
                items,
                is_percentage=is_percentage(section.metric),
            )
            interval = estimate_interval([paired], [numbers[seed] for seed in seeds])
            yield TypeScore(
                benchmark=section.benchmark,
                asked=kind,
                method=method,
                budget=budget,
                seeds=len(seeds),
                pretrainings=interval.pretrainings,
                items=num_items(items[0]),
                score=fmean(paired.values),
                low=interval.low,
                high=interval.high,
                chance=chance,
            )


_FIELDS = ("id", "source_sha256", "score")


def _score_rows(scores: Artifact) -> Iterable[tuple[str, str, float]]:
    return zip(*ItemsFile(scores.path).columns(*_FIELDS), strict=True)


def _items_by_type(
    rows: Iterable[tuple[str, str, float]], kinds: Mapping[str, str]
) -> dict[str, Items]:
    """Returns kind of question -> its items; `kinds` has the kind of each item's id."""
    items = defaultdict(list)
    for item, source, score in rows:
        items[kinds[item]].append((source, score))
    return {kind: items_by_source(rows) for kind, rows in items.items()}
