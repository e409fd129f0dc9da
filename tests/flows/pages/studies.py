"""A finished study in a store, without any training: real manifests, records and tables."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.lookup.runs import end_run_record
from flows.report.cells import CellKey, Plan
from flows.steps.kind import StepContext
from flows.steps.kinds.results import ResultsSpec, make
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model import files
from model.eval.items_file import write_items
from model.eval.predictions_file import write_predictions
from model.masks.codec import init_params
from model.masks.config import MaskCodecConfig
from pipelines.records.codes import format_mask
from pipelines.records.schema import Record
from tests.model.tiny_data import color_record, mask_record, write_dataset

RIGHT = {"vanilla": 2, "parcel": 3, "mqt": 5}
"""Of a method: every so many items it is wrong."""


def write_study(
    store: Store,
    *,
    name: str = "toy",
    benchmarks: Sequence[str] = ("colors", "shapes"),
    methods: Sequence[str] = ("vanilla", "parcel", "mqt"),
    budgets: Sequence[int] = (16, 64),
    seeds: Sequence[int] = (11, 23, 47),
    num_items: int = 30,
    also: tuple[Plan, ...] = (),
    metric: str = "exact_match",
) -> str:
    """Writes a study whose items of `shapes` are segmented, the others named; returns its run.

    With plans of other resolutions, its own is 224 px. Scores are the share of right answers,
    whatever the metric is called.
    """
    corpus = commit(store, "corpus", "corpus", {"a.txt": "pixels"})
    trained = Attempt(store, recipe("mask_codec", "mask codec"))
    np.savez(trained.path / files.MASK_CODEC, **init_params(MaskCodecConfig(width=8), 2))
    codec = trained.commit({})
    inputs: dict[str, Artifact] = {}
    plan = Plan(
        methods=tuple(methods),
        benchmarks=tuple(benchmarks),
        budgets=tuple(budgets),
        seeds=tuple(seeds),
        resolution=224 if also else None,
        also=also,
    )
    for one, benchmark in [(p, row) for p in (plan, *also) for row in p.benchmarks]:
        records = [
            mask_record(i) if benchmark == "shapes" else color_record(i, part=benchmark)
            for i in range(num_items)
        ]
        attempt = Attempt(store, recipe("dataset", f"prepare {benchmark}/test", raw=corpus))
        write_dataset(attempt.path / "made", {"test": records})
        for path in (attempt.path / "made").iterdir():
            path.rename(attempt.path / path.name)
        (attempt.path / "made").rmdir()
        data = attempt.commit({})
        for method, seed in itertools.product(one.methods, one.seeds):
            trained = commit(
                store,
                "checkpoint",
                f"transfer {method} {benchmark} seed={seed}",
                {files.METRICS: LOSSES, files.WATCH: LOOKS},
                data=data,
                mask_codec=codec,
            )
            for budget in (b for b in one.budgets if one.runs(method, b)):
                cell = CellKey(benchmark=benchmark, method=method, budget=budget, seed=seed)
                inputs[str(cell)] = commit_scores(
                    store,
                    str(cell),
                    answers_of(records, RIGHT.get(method, 4), seed),
                    metric=metric,
                    checkpoint=trained,
                    data=data,
                    **({"mask_codec": codec} if metric == "miou" else {}),
                )
    results = make_results(store, plan, inputs)
    config = {"name": name, "methods": [*methods], "transfers": {b: {} for b in benchmarks}}
    end_run_record(store, config, RUN, results=results.key, artifacts=[results.key], failed=())
    return f"{name}-{results.key.removeprefix('results-')}"


def make_results(store: Store, plan: Plan, inputs: Mapping[str, Artifact]) -> Artifact:
    """Runs the step of the table on scores that a store has."""
    asked = Recipe(
        kind="results",
        name="results",
        inputs={role: artifact.as_input for role, artifact in inputs.items()},
        config=ResultsSpec(plan=plan),
    )
    attempt = Attempt(store, asked)
    list(make(StepContext(asked, store, attempt.path, attempt.path)))
    return attempt.commit({"prefect": {"flow_run_id": RUN}})


RUN = "4a6e6bd0-5d4c-4a86-9f0e-000000000001"


MASK = format_mask(range(3, 19))
"""The text that the methods write for every mask."""


LOSSES = "".join(f'{{"step": {step}, "loss": {5 / step}}}\n' for step in range(1, 13))


LOOKS = "".join(
    json.dumps({"step": step, "task": task, "budget": budget, of: budget / step}) + "\n"
    for step in (4, 8, 12)
    for budget in (16, 64)
    for task, of in (("caption", "loss"), ("vqa", "loss"), ("probe", "score"))
)


def commit_scores(
    store: Store,
    cell: str,
    rows: Sequence[Mapping[str, Any]],
    metric: str = "exact_match",
    **inputs: Artifact,
) -> Artifact:
    """Commits the predictions of a cell, and their scores."""
    attempt = Attempt(store, recipe("predictions", f"evaluate {cell}", **inputs))
    texts = [{name: row[name] for name in row if name != "score"} for row in rows]
    write_predictions(attempt.path, texts)
    answered = attempt.commit({"prefect": {"flow_run_id": RUN}})
    read = {
        "predictions": answered,
        **{name: inputs[name] for name in inputs if name != "checkpoint"},
    }
    attempt = Attempt(store, recipe("scores", f"score {cell}", **read))
    write_items(attempt.path, rows)
    score = 100 * sum(row["score"] for row in rows) / len(rows)
    result = {"score": score, "metric": metric, "num": len(rows)}
    (attempt.path / files.SCORE).write_text(json.dumps(result))
    return attempt.commit({"prefect": {"flow_run_id": RUN}})


def answers_of(records: Sequence[Record], every: int, seed: int) -> list[dict[str, Any]]:
    """Items with their answers: each is right but for every `every`-th, shifted by the seed."""
    rows = []
    for i, record in enumerate(records):
        right = (i + seed) % every != 0
        wrong = "<loc0000><loc0000><loc0512><loc0512>" if record.masks else "<b>purple</b>"
        rows.append(
            {
                "id": record.id,
                "prefix": record.prefix,
                "prediction": record.suffixes[0].replace("<mask>", MASK) if right else wrong,
                "answers": list(record.answers),
                "score": float(right),
                "source": record.source,
                "source_sha256": record.source_sha256,
            }
        )
    return rows


def recipe(kind: str, name: str, **inputs: Artifact) -> Recipe:
    read = {role: artifact.as_input for role, artifact in inputs.items()}
    config = {"name": name, "decode": {}, "plan": {"seeds": []}}
    return Recipe(kind=kind, name=name, inputs=read, config=config, code="c0de" * 16)


def commit(
    store: Store, kind: str, name: str, texts: dict[str, str], **inputs: Artifact
) -> Artifact:
    attempt = Attempt(store, recipe(kind, name, **inputs))
    for path, text in {"name.txt": name, **texts}.items():
        Path(attempt.path, path).write_text(text, encoding="utf-8")
    return attempt.commit({"prefect": {"flow_run_id": RUN}})
