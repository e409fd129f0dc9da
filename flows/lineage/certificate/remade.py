"""The level *re-made*: cells and trainings that a verifier draws are made again and compared."""

import math
import random
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from flows.lineage.certificate.level import REMADE, Level, level_of
from flows.lineage.replay import ReplayOutcome, replay_artifacts
from flows.lookup.target import LookupTarget
from flows.report.cells import CellKey
from flows.report.gather import trained_checkpoint
from flows.steps.kind import Step
from flows.steps.registry import kind_of
from flows.steps.remake import RemakeError
from infra.errors import ConfigError
from infra.store.lineage import inputs_first
from infra.store.store import Store


def check_remade(
    predicate: Mapping[str, Any],
    store: Store,
    *,
    share: float,
    seed: int,
    tolerance: float,
    steps: Mapping[str, Step],
    log: Callable[[str], None],
) -> Level:
    """Makes a share of a table's cells and of its trainings again, each from its inputs.

    Args:
      predicate: the certificate's predicate.
      store: the store of the run, or a copy of it.
      share: share of the cells, and of the trainings, of each at least one [fraction].
      seed: seed of the draw, which who made the certificate cannot know.
      tolerance: largest difference of a score on another kind of machine [points].
      steps: name -> step as its run had it; see `replay_artifacts`.
      log: is told each outcome, in a line.
    """
    # Cells and trainings are drawn apart: a training is behind many cells, and one drawn cell alone
    # is scored and answered again, but not trained again.
    results = store.get_cached(predicate["results"])
    cells = sorted(role for role in results.manifest.inputs if CellKey.of_role(role))
    history = [store.get_cached(key) for key in sorted(predicate["manifests"])]
    trainings = [each.key for each in history if kind_of(each.manifest).draws_batches]
    draw = random.Random(seed)
    drawn_cells = draw.sample(cells, math.ceil(share * len(cells)))
    drawn = set(draw.sample(trainings, math.ceil(share * len(trainings))))
    num_trainings = len(drawn)
    for role in drawn_cells:
        drawn |= _keys_of_cell(store, results.manifest.inputs[role].key)
    outcomes: list[ReplayOutcome] = []
    try:
        with tempfile.TemporaryDirectory(prefix="parcel-verify-") as temporary:
            # Each is made again after those that it reads, from the author's inputs otherwise.
            reads = {
                key: {e.key for e in store.get_cached(key).manifest.inputs.values()} & drawn
                for key in drawn
            }
            artifacts = tuple(map(store.get_cached, inputs_first(reads)))
            target = LookupTarget(name=results.key, artifacts=artifacts)
            for outcome in replay_artifacts(
                store, target, Store(temporary), from_raw=False, steps=steps
            ):
                log(outcome.line())
                outcomes.append(outcome)
    except (ConfigError, RemakeError) as error:
        return Level(name=REMADE, state="not checked", detail=str(error))
    problems = [outcome.line() for outcome in outcomes if not outcome.is_near(tolerance)]
    same = sum(outcome.is_same for outcome in outcomes)
    detail = (
        f"seed {seed}: {len(drawn_cells):,} of {len(cells):,} cells and {num_trainings:,} of "
        f"{len(trainings):,} trainings; {same:,} of {len(outcomes):,} artifacts are the same"
    )
    if others := [outcome for outcome in outcomes if not outcome.is_same]:
        why = ", ".join(f"{d.what} {d.was} → {d.now}" for d in others[0].elsewhere)
        scored = [each for each in others if each.score is not None]
        detail += (
            f"; elsewhere ({why}) {len(scored):,} scores are within {tolerance} points, and "
            f"{len(others) - len(scored):,} without a score are not compared"
        )
    return level_of(REMADE, problems, detail)


def _keys_of_cell(store: Store, scores: str) -> set[str]:
    """Returns the keys of a score, of its answers, and of their checkpoint where that is pruned."""
    predictions = store.get_cached(store.get_cached(scores).manifest.inputs["predictions"].key)
    keys = {scores, predictions.key}
    checkpoint = predictions.manifest.inputs["checkpoint"].key
    if store.find_pruned(checkpoint) is not None:
        keys |= {checkpoint, trained_checkpoint(predictions.manifest, store.get_cached).key}
    return keys
