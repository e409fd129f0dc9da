"""Time of the results pages of a large study.

    python -m perf.pages --cells 10000 --seeds 3

A study of that many cells is written into a store of its own, its scores drawn and without items,
and each page is made twice, as `parcel serve` makes it: first with nothing in memory, then again.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np

from flows.lookup.runs import end_run_record
from flows.pages.page import Page, address
from flows.pages.site import Site
from flows.report.build import build_report
from flows.report.cells import Plan, Report, Score
from flows.report.render import to_json
from flows.steps.kinds.results import ResultsSpec
from infra.store.manifest import Recipe
from infra.store.records import run_records
from infra.store.store import Attempt, Store

_METHODS, _BUDGETS = 10, tuple(range(16, 176, 16))
_FLOW_RUN = "00000000-0000-0000-0000-000000000001"


def draw_report(num_cells: int, num_seeds: int, artifact: str) -> tuple[Plan, Report]:
    """Draws a report: ten methods at ten budgets on as many benchmarks as the cells need.

    Args:
      num_cells: number of cells, about a tenth fewer, since a reference has one budget.
      num_seeds: number of seeds of each.
      artifact: key of all scores.
    """
    rng = np.random.default_rng(0)
    plan = Plan(
        methods=tuple(f"method{n}" for n in range(_METHODS)),
        benchmarks=tuple(f"benchmark{n}" for n in range(num_cells // _METHODS // len(_BUDGETS))),
        budgets=_BUDGETS,
        seeds=tuple(range(num_seeds)),
        reference="method0",
    )
    places = itertools.product(plan.benchmarks, plan.methods, plan.budgets, plan.seeds)
    scores = [
        Score(
            benchmark=benchmark,
            method=method,
            budget=budget,
            seed=seed,
            score=float(rng.uniform(40, 60)),
            metric="accuracy",
            artifact=artifact,
        )
        for benchmark, method, budget, seed in places
        if plan.runs(method, budget)
    ]
    return plan, build_report(plan, scores, {})


def write_study(store: Store, num_cells: int, num_seeds: int) -> str:
    """Writes the drawn report as a run's results; returns the run's name."""
    scored = Recipe(kind="scores", name="scores", inputs={}, config=None)
    plan, report = draw_report(num_cells, num_seeds, Attempt(store, scored).commit({}).key)
    recipe = Recipe(kind="results", name="results", inputs={}, config=ResultsSpec(plan=plan))
    attempt = Attempt(store, recipe)
    (attempt.path / "results.json").write_text(to_json(report))
    results = attempt.commit({})
    config = {"name": "large", "methods": list(plan.methods)}
    keys = [results.key]
    end_run_record(store, config, _FLOW_RUN, results=results.key, artifacts=keys, failed=())
    (run,) = run_records(store.files)
    return run


def main() -> None:
    """Writes the study and prints a line for each page."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder, "store"))
        run = write_study(store, given.cells, given.seeds)
        pages = [Page("results", (run,)), Page("results", (run,), (("page", "2"),))]
        for page in pages:
            site = Site(store, address)
            for what in ("first", "again"):
                began, used = time.perf_counter(), time.process_time()
                text = site.html(page)
                wall, cpu = time.perf_counter() - began, time.process_time() - used
                name = "/".join((page.kind, *(value for _, value in page.query)))
                print(
                    f"{name:40} {what:5} {wall:5.2f} s, {cpu:5.2f} s of processor time, "
                    f"{len(text) / 1e6:.2f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
