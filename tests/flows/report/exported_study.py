"""A study in a store whose items have every odd text, for the tests of what goes out of it."""

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from flows.lookup.runs import end_run_record
from flows.report.cells import CellKey, Plan
from flows.steps.kinds.results import ResultsSpec
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model import files
from model.eval.items_file import write_items
from tests.flows.pages.studies import RUN, commit, recipe

NUM_ITEMS = 5000
ODD_TEXTS = (
    "a\nb\r\nc", "a\u2028b\u2029c\u0085d\x0b\x1ce", 'say "no", \\n', "NaN", "null", "-Infinity",
    "1e999", "", " ", "\x00", "=1+1", "a,b;c\td", "日本語 \U0001f600", "e\u0301", "<b>&amp;</b>",
    "[1]",
)  # fmt: skip
PLAN = Plan(
    methods=("vanilla", "parcel"),
    benchmarks=("okvqa", "nocaps"),
    budgets=(16, 64),
    seeds=(11, 23),
    pretrainings=(0, 1),
    budgets_of={"vanilla": (64,), "parcel": (16, 64)},
    trainings={"nocaps": "okvqa"},
)
DATA = {
    "okvqa": {"reader": "okvqa", "split": "val", "prepare": {"limit": None}},
    "nocaps": {"reader": "nocaps", "split": "val", "prepare": {"limit": 40}},
}
METRICS = {"okvqa": "vqa", "nocaps": "cider"}


def write_exported_study(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Writes the study `sent`; returns cell -> the rows of its items.

    Items of `okvqa` share pictures by twos and have scores as human consensus gives them. Scores of
    `nocaps` are no plain mean of its items, exceed 1 and have pseudo-values.
    """
    rows_of: dict[str, list[dict[str, Any]]] = {}
    inputs: dict[str, Artifact] = {}
    # Both benchmarks are scored with the same checkpoints.
    checkpoints = {
        (method, seed): commit(
            store, "checkpoint", f"transfer {method} seed={seed}", {"params": f"{method} {seed}"}
        )
        for method, seed in itertools.product(PLAN.methods, PLAN.seeds)
    }
    for benchmark in PLAN.benchmarks:
        asked = Recipe(
            kind="dataset", name=f"prepare {benchmark}/eval", config=DATA[benchmark], code="c" * 64
        )
        data = _committed(store, asked, {"dataset.json": benchmark})
        for (method, seed), checkpoint in checkpoints.items():
            for budget in budgets_of(benchmark, method):
                cell = CellKey(benchmark=benchmark, method=method, budget=budget, seed=seed)
                rows = _rows(cell, NUM_ITEMS if benchmark == "okvqa" else 40)
                rows_of[str(cell)] = rows
                inputs[str(cell)] = _commit_scores(store, cell, rows, checkpoint, data)
    asked = Recipe(
        kind="results",
        name="results",
        inputs={role: artifact.as_input for role, artifact in inputs.items()},
        config=ResultsSpec(plan=PLAN),
        code="c" * 64,
    )
    results = _committed(store, asked, {"results.md": ""})
    end_run_record(
        store, {"name": "sent"}, RUN, results=results.key, artifacts=[results.key], failed=()
    )
    return rows_of


def budgets_of(benchmark: str, method: str) -> tuple[int, ...]:
    """Returns the budgets that are scored: one cell of `okvqa` is missing."""
    return (64,) if benchmark == "okvqa" else PLAN.budgets_of[method]


def _rows(cell: CellKey, num: int) -> list[dict[str, Any]]:
    rng = random.Random(str(cell))
    rows = []
    for i in range(num):
        odd, other = ODD_TEXTS[i % len(ODD_TEXTS)], ODD_TEXTS[(i // 7) % len(ODD_TEXTS)]
        row = {
            "id": f"{cell.benchmark}/{i:05d}{odd}",
            "prefix": f"answer en {other}",
            "prediction": ODD_TEXTS[rng.randrange(len(ODD_TEXTS))],
            "answers": [odd] if i % 3 else [other, odd, "4"],
            "source": f"picture {i // 2}{odd}.jpg",
            "source_sha256": f"{i // 2:064x}",
            "score": rng.choice((0.0, 0.3, 0.6, 0.9, 1.0, 1 / 3)),
        }
        if cell.benchmark == "nocaps":
            row |= {"score": rng.uniform(0, 3), "pseudo_value": rng.uniform(-1, 4)}
        if cell.benchmark == "nocaps" and i == 7:  # As predictions of earlier versions are.
            row |= {"prefix": None, "answers": None, "source": None}
        rows.append(row)
    return sorted(rows, key=lambda row: row["id"])


def _commit_scores(
    store: Store,
    cell: CellKey,
    rows: Sequence[Mapping[str, Any]],
    checkpoint: Artifact,
    data: Artifact,
) -> Artifact:
    predictions = commit(
        store, "predictions", f"evaluate {cell}", {}, checkpoint=checkpoint, data=data
    )
    read = {"predictions": predictions, "data": data}
    attempt = Attempt(store, recipe("scores", f"score {cell}", **read))
    write_items(attempt.path, rows)
    values = [row.get("pseudo_value", row["score"]) for row in rows]
    score = {
        "score": 100 * math.fsum(values) / len(rows),
        "metric": METRICS[cell.benchmark],
        "num": len(rows),
    }
    (attempt.path / files.SCORE).write_text(json.dumps(score))
    return attempt.commit({"prefect": {"flow_run_id": RUN}})


def _committed(store: Store, asked: Recipe, texts: Mapping[str, str]) -> Artifact:
    attempt = Attempt(store, asked)
    for name, text in texts.items():
        (attempt.path / name).write_text(text)
    return attempt.commit({"prefect": {"flow_run_id": RUN}})
