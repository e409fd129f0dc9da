"""Trainings on their pages, and on those of their runs, finished or not."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flows.pages.chart import LossReader, curves_chart, training_charts
from flows.pages.curves import Log, log_of
from flows.pages.overview import Overview, RunningNode, RunUnderWay
from flows.pages.record_cards import Card, Cards
from flows.steps.registry import KINDS
from infra.store.manifest import SHOWN, kind_of_key
from infra.store.scratch import RECIPE, Scratch
from infra.store.store import Store
from model.files import METRICS, SAMPLES

_ANSWERS = 6
"""Most answers of a training to one question that its page has, the newest."""
_DRAWN = 4
"""Most running trainings whose charts a run's page has; the others have their own page."""
_LISTED = 30
"""Most finished trainings, nodes and failures of a run that its page names."""


class Training(NamedTuple):
    """A training, whatever became of it.

    Attributes:
      key: key of its checkpoint.
      name: name of its step.
      is_finished: whether there is a checkpoint.
      inputs: role -> key of an artifact that it reads.
      log: its logs.
    """

    key: str
    name: str
    is_finished: bool
    inputs: Mapping[str, str]
    log: Log


def find_training(store: Store, key: str) -> Training | None:
    """Returns a training; None if the store knows none of that key.

    One without a checkpoint is under way or failed, and known by its progress: on this machine, or
    as it was when it was last saved.

    Raises:
      ValueError: if the key has not the form of one.
    """
    kind = KINDS.get(kind_of_key(key))
    if kind is None or not kind.draws_batches:
        return None
    if (artifact := store.find(key) or store.find_pruned(key)) is not None:
        inputs = {role: entry.key for role, entry in artifact.manifest.inputs.items()}
        return Training(key, artifact.manifest.name, True, inputs, log_of(artifact))
    progress = Scratch(store.files, key, "reader")
    try:
        recipe = json.loads(progress.read(RECIPE))
    except FileNotFoundError:  # It never began, or ends just now.
        return None

    def read_log(name: str) -> list[Mapping[str, object]]:
        try:
            text = progress.read(name)
        except FileNotFoundError:
            return []
        # The last line of a log that grows may not be complete yet.
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    inputs = {role: entry["key"] for role, entry in recipe["inputs"].items()}
    return Training(key, recipe["name"], False, inputs, read_log)


def training_values(cards: Cards, training: Training) -> Mapping[str, Any]:
    """Returns the curves, jumps and answers on a training's page; a failed one has them, too."""
    jumps = [row["jumps"] for row in training.log(METRICS) if "jumps" in row]
    answered: dict[str, Card] = {}
    told = ""
    for row in training.log(SAMPLES):
        if told := row.get("error", ""):
            continue
        data, item = training.inputs[SHOWN], row["id"]
        card = answered[item] = answered.get(item) or cards.of(data, item)
        codec = training.inputs.get("mask_codec", "")
        card.add(f"step {row['step']}, {row['budget']} tokens", None, [(0, row)], codec)
        card.columns[:] = card.columns[-_ANSWERS:]
    return {
        "training": training,
        "charts": training_charts(training.log),
        "jumps": {step: loss for of in jumps for step, loss in of.items()},
        "answered": list(answered.values()),
        "not_answered": told,
    }


def unfinished_values(
    store: Store, cards: Cards, facts: Overview, training: Training
) -> Mapping[str, Any]:
    """Returns the values of the page of a training that is under way, or has failed."""
    at_work: tuple[RunUnderWay, RunningNode] | None = next(
        (
            (run, node)
            for run in facts.running
            for node in run.running
            if node.progress and node.progress.key == training.key
        ),
        None,
    )
    return {
        "template": "training",
        "at_work": at_work,
        "inputs": {
            role: (key, store.get_cached(key).manifest.name)
            for role, key in sorted(training.inputs.items())
        },
        **training_values(cards, training),
    }


def run_values(
    store: Store, losses: LossReader, facts: Overview, run: str, record: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns the values of the page of a run that is under way, or ended without a table."""
    going = next((r for r in facts.running if r.flow_run_id == record["flow_run_id"]), None)
    at_work = [node.progress.key for node in going.running if node.progress] if going else []
    known = {*record["artifacts"], *(going.keys if going else ())}
    trainings = {
        key: training
        for key in [*at_work, *sorted(known.difference(at_work))]
        if (training := find_training(store, key))
    }
    running = [trainings[key] for key in at_work if key in trainings]
    done = sorted((t for t in trainings.values() if t.is_finished), key=lambda t: t.name)
    points = {t.name: losses.points(t.key) for t in done[:_LISTED]}
    return {
        "template": "run",
        "run": run,
        "record": record,
        "going": going,
        "running": [(t, training_charts(t.log)) for t in running[:_DRAWN]],
        "done": done[:_LISTED],
        "left_out": len(done[_LISTED:]),
        "chart": curves_chart("loss", points),
        "most": _LISTED,
    }
