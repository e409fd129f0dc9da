"""A study in small whose certificate holds: what is scored was answered, and scored by our code."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.lookup.promise import promise_of
from flows.lookup.runs import begin_run_record, close_dead_records, end_run_record
from flows.report.cells import CellKey, Plan
from flows.steps.kind import StepContext
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.scores import ScoreSpec, make
from infra.source_code import checkout
from infra.store.digest import file_sha256, listing_sha256
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model.decode.config import DecodeConfig
from model.eval.predictions_file import write_predictions
from model.files import PREDICTIONS
from model.train.config import TrainConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.records.schema import Record
from tests.flows.pages.studies import make_results
from tests.model.tiny_data import color_record, write_dataset
from tests.model.tiny_model import tiny_model

SEEDS = (11, 23, 47)
TEST = [dataclasses.replace(color_record(i), source_sha256=f"{i:064x}") for i in range(7)]
TRAIN = [dataclasses.replace(color_record(i), source_sha256=f"{99 + i:064x}") for i in range(5)]
STEPS = 3
PLAN = Plan(
    methods=("vanilla", "parcel"),
    benchmarks=("colors",),
    budgets=(16, 64),
    seeds=SEEDS,
    groups={"main suite": ("colors",), "Image": ("colors",)},
)


def write_study(
    store: Store,
    run: str = "first",
    *,
    name: str = "honest",
    plan: Plan = PLAN,
    promised: Plan | None = None,
    train: Sequence[Record] = TRAIN,
    split: str = "test",
    promised_split: str = "test",
    metric: str = "exact_match",
    steps: int = STEPS,
) -> str:
    """Writes a study that ran, and what its run promised; returns the run's full name."""
    config = {"name": name, "num_seeds": len(plan.seeds), "methods": [*plan.methods]}
    asked = (promised or plan, {"colors": ("exact_match", _data_spec(promised_split))})
    earlier = close_dead_records(store)
    with store.pin_run(run):
        begin_run_record(
            store, config, run, artifacts=(), given="", promised=promise_of(*asked), earlier=earlier
        )
        learned = put_dataset(store, "colors/train", train, "train")
        scored = put_dataset(store, "colors/eval", TEST, split)
        cells: dict[str, Artifact] = {}
        for method in plan.methods:
            for seed in plan.seeds:
                trained = put_checkpoint(store, method, seed, learned, steps)
                for budget in (b for b in plan.budgets if plan.runs(method, b)):
                    cell = CellKey(benchmark="colors", method=method, budget=budget, seed=seed)
                    cells[str(cell)] = put_scores(store, cell, trained, scored, metric)
        results = make_results(store, plan, cells)
        end_run_record(store, config, run, results=results.key, artifacts=[], failed=())
    return f"{name}-{run}"


def put_dataset(store: Store, name: str, records: Sequence[Record], split: str) -> Artifact:
    recipe = _recipe(store, "dataset", f"prepare {name}", _data_spec(split))

    def write(folder: Path) -> None:
        for path in Path(write_dataset(folder / "made", {"color": records})).iterdir():
            path.rename(folder / path.name)
        (folder / "made").rmdir()

    return _commit(store, recipe, write)


def put_checkpoint(store: Store, method: str, seed: int, data: Artifact, steps: int) -> Artifact:
    spec = FitSpec(model=tiny_model(method), train=TrainConfig(total_steps=STEPS, batch_size=2))
    recipe = _recipe(store, "checkpoint", f"transfer {method} colors seed={seed}", spec, seed=seed)
    recipe = dataclasses.replace(
        recipe, inputs={"data/0": data.as_input}, labels={"action": "transfer", "seed": seed}
    )
    weights = f"{method} {seed} {steps}"
    write = lambda folder: (folder / "params").write_text(weights)  # noqa: E731
    return _commit(store, recipe, write, {"steps": steps})


def put_scores(
    store: Store, cell: CellKey, trained: Artifact, data: Artifact, metric: str
) -> Artifact:
    spec = EvaluateSpec(budget=cell.budget, decode=DecodeConfig())
    recipe = _recipe(store, "predictions", f"evaluate {cell}", spec, checkpoint=trained, data=data)
    attempt = Attempt(store, recipe)
    write_predictions(attempt.path, answers_of(cell))
    # As the kind does: equal answers of two checkpoints are two artifacts.
    digest = file_sha256(attempt.path / PREDICTIONS)
    attempt.content = listing_sha256({PREDICTIONS: digest, "checkpoint": trained.manifest.content})
    answered = store.find(recipe.key) or attempt.commit({})
    score = ScoreSpec(benchmark="colors", budget=cell.budget, metric=metric)
    recipe = _recipe(store, "scores", f"score {cell}", score, predictions=answered, data=data)
    if found := store.find(recipe.key):
        return found
    attempt = Attempt(store, recipe)
    work = StepContext(recipe, store, attempt.path, attempt.path)
    list(make(work))
    attempt.counts |= work.counts
    return attempt.commit({})


def answers_of(cell: CellKey) -> list[dict[str, Any]]:
    """Answers of which some are wrong, by method, budget and seed."""
    every = (2 if cell.method == "vanilla" else 4) + cell.budget // 64
    return [
        {
            "id": record.id,
            "prefix": record.prefix,
            "prediction": "purple" if (i + cell.seed) % every == 0 else record.answers[0],
            "answers": list(record.answers),
            "source": record.source,
            "source_sha256": record.source_sha256,
        }
        for i, record in enumerate(TEST)
    ]


def _data_spec(split: str) -> DatasetSpec:
    return DatasetSpec(reader="chartqa", path="", split=split, prepare=PrepareConfig())


def _recipe(
    store: Store, kind: str, name: str, config: Any, seed: int | None = None, **inputs: Artifact
) -> Recipe:
    read = {role: artifact.as_input for role, artifact in inputs.items()}
    tree = {name: checkout().files[name] for name in ("flows/__init__.py",)}
    return Recipe(
        kind=kind, name=name, inputs=read, config=config, seed=seed, source=store.save_source(tree)
    )


def _commit(
    store: Store, recipe: Recipe, write: Any, counts: Mapping[str, int] | None = None
) -> Artifact:
    if found := store.find(recipe.key):
        return found
    attempt = Attempt(store, recipe)
    write(attempt.path)
    attempt.counts |= counts or {}
    return attempt.commit({})


def record_of(store: Store, run: str) -> tuple[Path, dict[str, Any]]:
    path = store.state / "runs" / f"{run}.json"
    return path, json.loads(path.read_text())
