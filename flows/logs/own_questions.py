"""Finds the questions of another system's log among those of a benchmark of our own."""

import ast
import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from model.eval.items_file import ItemsFile
from model.eval.metrics.scores import Fields
from model.eval.scorer import Scorer

_COMMAND = re.compile(r"answer \S+ ")
"""What prompts of our own begin with, before the question: "answer en "."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnQuestion:
    """An item of a benchmark of our own.

    Attributes:
      source: digest of its picture or video.
      prefix: what the model is given.
      answers: accepted answers; empty if unknown.
    """

    id: str
    source: str
    prefix: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        """The question without the command before it, with single spaces."""
        return _plain_item_text(_COMMAND.sub("", self.prefix, count=1))


def read_questions(folder: Path) -> tuple[OwnQuestion, ...]:
    """Returns the questions of a `scores` artifact, sorted by id.

    Raises:
      ValueError: if it has no table of items.
    """
    columns = ItemsFile(folder).columns("id", "prefix", "answers", "source_sha256")
    return tuple(
        OwnQuestion(id=name, source=source, prefix=prefix or "", answers=tuple(answers or ()))
        for name, prefix, answers, source in zip(*columns, strict=True)
    )


def score_again(log: ItemLog, metric: str, fields: Mapping[str, Fields]) -> ItemLog:
    """Returns an aligned log whose answers have our own metric's scores.

    Raises:
      KeyError: if an item has no fields, or lacks one that the metric reads.
      ValueError: if an answer is no text, or the metric refuses one.
    """
    scorer = Scorer(metric)
    for item in log.items:
        if item.answer is None:
            raise ValueError(f"the answer to {item.id} is no text.")
        scorer.add(item.answer, fields[item.id])
    scores = scorer.finish().items
    items = (
        dataclasses.replace(item, score=scored.score)
        for item, scored in zip(log.items, scores, strict=True)
    )
    # How the log's own scores came about is settled.
    settings = {name: v for name, v in log.settings.items() if not name.startswith("metric.")}
    return dataclasses.replace(log, items=tuple(items), settings=settings)


def align_log(log: ItemLog, benchmarks: Mapping[str, Sequence[OwnQuestion]]) -> list[ItemLog]:
    """Returns a log with the names, ids and sources of each benchmark whose questions it has.

    Questions are the same if their ids are, and the log's target is an accepted answer, and its
    question is in the prompt; or, with other ids, if question and target are those of exactly one
    question, and every question has one.

    Args:
      log: the log; one whose task is a benchmark's name is that benchmark's.
      benchmarks: benchmark -> its questions.

    Raises:
      ItemLogError: if no benchmark has its questions; the message names the first that is not
        found in the benchmark that has most of them.
    """
    named = {log.task: benchmarks[log.task]} if log.task in benchmarks else benchmarks
    matches, misses = [], []
    for name, questions in named.items():
        places = _Matching(questions).places(log.items)
        if miss := places.miss:
            misses.append((places.num, f"{log.file}: is not of {name}: {miss}"))
            continue
        # What was compared with ours is ours from here on: each system writes it in its own way.
        items = [
            dataclasses.replace(
                item,
                id=question.id,
                source=question.source,
                question=question.text,
                target="\n".join(question.answers) or item.target,
            )
            for item, question in zip(log.items, places.questions, strict=True)
        ]
        matches.append(
            dataclasses.replace(log, task=name, items=tuple(sorted(items, key=lambda i: i.id)))
        )
    if not matches:
        raise ItemLogError(max(misses, key=lambda entry: entry[0])[1])
    return matches


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Places:
    """The questions of a log's items, in their order; or why one has none.

    Attributes:
      miss: sentence that names the first item without a question; "" if all have one.
      num: number of items that have one.
    """

    questions: Sequence[OwnQuestion] = ()
    miss: str = ""
    num: int = 0


class _Matching:
    """Finds items among the questions of a benchmark."""

    def __init__(self, questions: Sequence[OwnQuestion]) -> None:
        self._questions = questions
        self._by_id = {question.id: question for question in questions}
        self._by_text: dict[str, list[OwnQuestion]] = {}
        for question in questions:
            self._by_text.setdefault(question.text, []).append(question)

    def places(self, items: Sequence[LoggedItem]) -> _Places:
        """Returns the question of each item."""
        if len(items) != len(self._questions):
            return _Places(miss=f"it must have {len(self._questions)} questions, got {len(items)}.")
        by_id = all(item.id in self._by_id for item in items)
        found: dict[str, LoggedItem] = {}
        questions = []
        for item in items:
            place = self._of_id(item) if by_id else self._of_text(item)
            if isinstance(place, str):
                return _Places(miss=f"{place}.", num=len(found))
            if other := found.get(place.id):
                return _Places(
                    miss=f"items {other.id} and {item.id} are both question {place.id}.",
                    num=len(found),
                )
            found[place.id] = item
            questions.append(place)
        return _Places(questions=questions)

    def _of_id(self, item: LoggedItem) -> OwnQuestion | str:
        question = self._by_id[item.id]
        asked = item.text or item.prompt
        if not asked and not item.target:
            return f"item {item.id} has neither a question nor a target to compare"
        if asked and question not in self._of_same_text(item, [question]):
            return (
                f"question of item {item.id} must be {question.text!r:.80} as in {question.id}, "
                f"got {_plain_item_text(asked)!r:.80}"
            )
        if not _accepts_logged_target(question, item):
            return _other_target(item, question)
        return question

    def _of_text(self, item: LoggedItem) -> OwnQuestion | str:
        asked = item.text or item.prompt
        lines = dict.fromkeys(_plain_item_text(text) for text in (asked, *asked.splitlines()))
        same = [question for line in lines for question in self._by_text.get(line, ())]
        if not same:
            text = _plain_item_text(asked)
            return f"question of item {item.id} is none of its own, got {text!r:.80}"
        accepting = [question for question in same if _accepts_logged_target(question, item)]
        if not accepting:
            return _other_target(item, same[0])
        if len(accepting) > 1:
            return (
                f"item {item.id} may be {accepting[0].id} or {accepting[1].id}, whose question and "
                f"target are the same, {item.text or item.prompt!r:.60}; give the log's items the "
                f"ids of ours"
            )
        return accepting[0]

    def _of_same_text(
        self, item: LoggedItem, questions: Sequence[OwnQuestion]
    ) -> list[OwnQuestion]:
        # A question alone is part of our prompt; ours is part of a whole prompt of theirs.
        text, prompt = _plain_item_text(item.text), _plain_item_text(item.prompt)
        return [
            question
            for question in questions
            if (text and text in _plain_item_text(question.prefix)) or question.text in prompt
        ]


def _accepts_logged_target(question: OwnQuestion, item: LoggedItem) -> bool:
    """Returns whether a target is an accepted answer; unknown ones are not compared."""
    answers = {_plain_item_text(answer).casefold() for answer in question.answers}
    targets = {_plain_item_text(target).casefold() for target in _parse_logged_targets(item.target)}
    return not answers or not targets or bool(answers & targets)


def _other_target(item: LoggedItem, question: OwnQuestion) -> str:
    return (
        f"target of item {item.id} must be one of {', '.join(question.answers)!r:.80} as in "
        f"{question.id}, got {item.target!r:.80}"
    )


def _parse_logged_targets(text: str) -> list[str]:
    """Returns the targets in a text: a line each, or a list as Python writes it."""
    if text.startswith("["):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            if values := ast.literal_eval(text):
                return [str(value) for value in values]
    return [text, *text.splitlines()] if text.strip() else []


def _plain_item_text(text: str) -> str:
    return " ".join(text.split())
