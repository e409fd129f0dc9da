"""Runs as trackers are told of them, for tests of each tracker."""

import dataclasses

from flows.run.tracked_run import Point, Table, TrackedRun

STAGE = TrackedRun(
    id="checkpoint-0a1b2c3d-4e5f",
    name="stage1 vanilla",
    type="stage",
    began=1_750_000_000.0,
    ended=1_750_000_060.0,
    config={"train.optimizer.peak_lr": 1e-3, "methods": ["vanilla", "parcel"], "seed": 7},
    facts={"key": "checkpoint-0a1b2c3d-4e5f", "method": "vanilla"},
    page="http://127.0.0.1:4200/v2/runs/flow-run/one",
    curves=[
        Point(step, 1_750_000_000.0 + step, {"loss": 5.0 / step, "tokens_per_second": 11.0 * step})
        for step in (1, 2, 5)
    ],
    scores={"steps": 5},
)
STUDY = TrackedRun(
    id="study-77aa",
    name="smallest",
    type="study",
    began=1_750_000_000.0,
    ended=1_750_000_300.0,
    outcome="with holes",
    config={"name": "smallest", "budgets": [16, 64], "seed": 3},
    facts={"outcome": "with holes", "run": "smallest-0123"},
    page="http://127.0.0.1:4200/v2/runs/flow-run/two",
    scores={"chartqa@448/parcel/64/mean": 51.25, "chartqa@448/parcel/64/low": 40.5},
    tables={
        "results": Table(("benchmark", "score"), [("chartqa@448", "51.25"), ("msvd, all", "")])
    },
)


def completed(run: TrackedRun) -> TrackedRun:
    """Returns a study as a later run of it leaves it: with another page and one more score."""
    return dataclasses.replace(
        run,
        outcome="complete",
        page="http://127.0.0.1:4200/v2/runs/flow-run/three",
        facts={**run.facts, "outcome": "complete"},
        scores={**run.scores, "msvd/parcel/64/mean": 30.0},
    )
