"""The paper's own scores as a finished run in a store: real artifacts, a real record, its config.

The paper prints its scores with one decimal and averages what it did not round. So the scores here
are chosen anew: each prints as the paper's does, and together they give the means that the paper
prints, as far as any such scores do.
"""

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from flows.config.benchmark import metric_of
from flows.graph.results_plan import results_plan
from flows.lookup.runs import end_run_record
from flows.report.cells import CellKey, Plan
from flows.study.load import load
from infra.store.store import Artifact, Attempt, Store
from model import files
from model.eval.items_file import write_items
from model.eval.predictions_file import write_predictions
from tests.flows.pages.studies import RUN, commit, make_results, recipe

ROOT = Path(__file__).parents[3]
SHARED = ROOT / ".." / "shared"
PAPER = SHARED / "paper"
SOURCE = SHARED / "reference" / "parcel_paper.tex"

METHODS = {"m3": "M3", "mqt": "MQT", "parcel": "PARCEL"}
GROUPS = {
    "video": "Video",
    "refcoco": "RefCOCO",
    "resolution_sensitive": "Resolution-sensitive",
    "general": "General",
    "all": "high-resolution suite",
    "video_top3": "Video, top 3",
    "resolution_top3": "Resolution-sensitive, top 3",
}
"""Name of a group in the paper's file of retentions -> ours."""

CONTRADICTIONS = {
    ("General", "parcel", 64): 98.6,
    ("General", "m3", 16): 97.3,
    ("General", "mqt", 16): 96.5,
}
"""Group, method, budget -> mean retention of the rows that the paper prints; it prints others."""

VATEX = {256: (78.7, 77.9, 78.4), 64: (78.8, 79.6, 79.5), 16: (79.6, 77.2, 77.8)}
"""Budget -> scores of M³, MQT and PARCEL, which the paper gives and leaves out of all means."""

_ABSENT = {"xGQA": 58.0, "MaRVL": 80.0}
"""Rows of the 27 whose scores the paper does not give -> a score of vanilla, chosen here.

The scores of the other methods are chosen so that the means over images come out.
"""

Cells = dict[tuple[str, str, int], tuple[float, float]]
"""(row, method, budget) -> mean and deviation over seeds; vanilla's has no deviation."""


def published(name: str) -> list[dict[str, str]]:
    """Returns the lines of one of the paper's files."""
    with (PAPER / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def table_rows(label: str) -> Iterator[list[str]]:
    """Yields the fields of each row of a table in the paper's source.

    A heading across all columns stands before the first field of the row below it.
    """
    source = SOURCE.read_text(encoding="utf-8")
    after = source[source.index(rf"\label{{{label}}}") :]
    body = after[after.index(r"\toprule") : after.index(r"\bottomrule")]
    heading = ""
    for line in body.split(r"\\"):
        first, *others = (" ".join(field.split()) for field in re.split(r"(?<!\\)&", line))
        if others:
            yield [f"{heading}{first}", *others]
        heading = "" if others else f"{heading}{first} "


class PaperScores:
    """Scores at one resolution that print as the paper's and have its means.

    Attributes:
      plan: the plan of the paper's config at this resolution.
      cells: the scores.
    """

    def __init__(self, plan: Plan, titles: Mapping[str, str], px: int) -> None:
        # titles: row of the study -> title in the paper's file, at this resolution.
        self.plan = plan
        rows = {title: row for row, title in titles.items()}
        self._lines = [
            line for line in published("detailed_scores.csv") if line["resolution"] == str(px)
        ]
        self._px = px
        self._printed = {
            (rows[line["benchmark"]], _ours(line["method"]), int(line["budget"])): (
                float(line["score_mean"]),
                float(line["score_std"] or 0),
            )
            for line in self._lines
        }
        vanilla = {rows[line["benchmark"]]: float(line["pg2_score"]) for line in self._lines}
        if px == 224:
            vanilla |= {rows[title]: score for title, score in _ABSENT.items()}
            # Where a mean of vanilla, or of what the others retain of it, is printed otherwise.
            shifts = {"RefCOCO (Avg.)": -0.02, "General": -0.025}
            for group, shift in shifts.items():
                for row in plan.groups[group]:
                    vanilla[row] += shift
        self.cells: Cells = {
            (row, "vanilla", plan.full): (score, 0.0) for row, score in vanilla.items()
        }
        for method, budget in itertools.product(METHODS, plan.budgets):
            self.cells |= self._solve(vanilla, method, budget)
        if px == 224:
            (vatex,) = plan.left_out
            self.cells[vatex, "vanilla", plan.full] = (80.5, 0.0)
            for budget, scores in VATEX.items():
                for method, score in zip(METHODS, scores, strict=True):
                    self.cells[vatex, method, budget] = (score, 1.0)

    def means(self, method: str, budget: int) -> Iterator[tuple[str, str, float]]:
        """Yields (group, "mean" or "retention" or "std", value) of the paper's means.

        They are those that it prints, but for `CONTRADICTIONS`.
        """
        theirs = METHODS[method]
        for line in published("group_retention.csv"):
            if (line["resolution"], line["budget"]) == (str(self._px), str(budget)):
                group = GROUPS[line["group"]]
                at = (group, method, budget)
                yield group, "retention", CONTRADICTIONS.get(at, float(line[theirs]))
        if self._px != 224:
            return
        for line in published("overall_summary.csv"):
            if (line["budget"], line["method"]) == (str(budget), theirs):
                group = {"image": "Image", "video": "Video"}[line["modality"]]
                yield group, "mean", float(line["macro_score"])
                yield group, "retention", float(line["retention_pct"])
        for title, fields in refcoco_means().items():
            mean, std = fields[method, budget]
            yield title, "mean", mean
            yield title, "std", std
        if method == "parcel":
            yield "main suite", "retention", float(full_ablation()[budget])

    def _solve(self, vanilla: Mapping[str, float], method: str, budget: int) -> Cells:
        """Returns a method's scores at a budget, as far from the ends of roundings as can be."""
        rows = [*vanilla]
        place = {row: i for i, row in enumerate(rows)}
        # Unknown are the means and the deviations of all rows, and last the distance to the ends.
        num = len(rows)
        limits, bounds = [], []

        def limit(weights: np.ndarray, printed: float) -> None:
            for sign in (1, -1):
                limits.append(([*(sign * weights), 1.0], sign * printed + 0.05))

        for group, what, printed in self.means(method, budget):
            weights = np.zeros(2 * num)
            members = self.plan.groups[group]
            for row in members:
                scale = 100 / vanilla[row] if what == "retention" else 1.0
                weights[place[row] + num * (what == "std")] = scale / len(members)
            limit(weights, printed)
        for row in rows:
            for shift, printed in zip(
                (0, num), self._printed.get((row, method, budget), ()), strict=False
            ):
                weights = np.zeros(2 * num)
                weights[place[row] + shift] = 1
                limit(weights, printed)
        bounds = [(0, None)] * (2 * num) + [(None, 0.05)]
        matrix, ends = zip(*limits, strict=True)
        found = linprog([0.0] * (2 * num) + [-1.0], A_ub=matrix, b_ub=ends, bounds=bounds)
        assert found.success, (method, budget, found.message)
        assert found.x[-1] > 1e-4, f"no scores print as the paper's: {method} at {budget}"
        return {
            (row, method, budget): (float(found.x[i]), float(found.x[i + num]))
            for row, i in place.items()
        }


def _ours(method: str) -> str:
    return next(name for name, theirs in METHODS.items() if theirs == method)


def refcoco_means() -> dict[str, dict[tuple[str, int], tuple[float, float]]]:
    """Returns row of Table 2 -> (method, budget) -> mean and deviation, of the three RefCOCOs."""
    found = {}
    for fields in table_rows("tab:detailed_video_refcoco_res_condensed"):
        if title := re.search(r"RefCOCO\S* \(Avg\.\)", fields[0]):
            cells = [re.findall(r"\d+\.\d", field) for field in fields[2:]]
            places = itertools.product((256, 64, 16), METHODS)
            found[title[0]] = {
                (method, budget): (float(mean), float(std))
                for (budget, method), (mean, std) in zip(places, cells, strict=True)
            }
    return found


def full_ablation() -> dict[int, str]:
    """Returns budget -> mean retention of PARCEL over the 27, in the paper's table of ablations."""
    line = next(line for line in published("ablations.csv") if line["configuration"] == "parcel")
    return {budget: line[str(budget)] for budget in (256, 64, 16)}


def write_paper_run(store: Store) -> str:
    """Writes the run of the paper's config with the paper's scores; returns its name."""
    config = load(ROOT / "configs" / "paper_448.yaml")
    plan = results_plan(config)
    inputs: dict[str, Artifact] = {}
    for view, one, px in zip(config.views, plan.views, (224, 448), strict=True):
        titles = {
            name: row.paper_row.titles[-1 if px == 448 else 0]
            for name, row in view.rows.items()
            if row.paper_row
        }
        scores = PaperScores(one, titles, px)
        inputs |= _commit_scores(
            store,
            scores,
            {
                name: metric_of(row.benchmark, view.transfers[row.benchmark])
                for name, row in view.rows.items()
            },
        )
    results = make_results(store, plan, inputs)
    name = "paper"
    end_run_record(
        store, {"name": name}, RUN, results=results.key, artifacts=[results.key], failed=()
    )
    return name


def _commit_scores(
    store: Store, paper: PaperScores, metrics: Mapping[str, str]
) -> dict[str, Artifact]:
    """Returns role -> scores of every cell and seed: seeds a deviation below, at and above a mean.

    All seeds of a row are so at once: the deviation of a mean over rows is the mean of theirs.
    """
    inputs = {}
    seeds = paper.plan.seeds
    for row, metric in metrics.items():
        data = commit(store, "dataset", f"prepare {row}/eval", {})
        checkpoint = commit(store, "checkpoint", f"transfer {row}", {}, data=data)
        asked = recipe("predictions", f"evaluate {row}", checkpoint=checkpoint, data=data)
        attempt = Attempt(store, asked)
        write_predictions(attempt.path, [])
        predictions = attempt.commit({})
        cells = [
            (method, budget, score)
            for (of, method, budget), score in paper.cells.items()
            if of == row
        ]
        for method, budget, (mean, std) in cells:
            steps = (0,) if len(seeds) == 1 else (-1, 0, 1)
            for seed, step in zip(seeds, steps, strict=True):
                cell = CellKey(benchmark=row, method=method, budget=budget, seed=seed)
                inputs[str(cell)] = _commit_score(
                    store, cell, mean + step * std, metric, predictions=predictions, data=data
                )
    return inputs


def _commit_score(
    store: Store, cell: CellKey, score: float, metric: str, **inputs: Artifact
) -> Artifact:
    attempt = Attempt(store, recipe("scores", f"score {cell}", **inputs))
    write_items(attempt.path, [])
    text = json.dumps({"score": score, "metric": metric, "num": 0})
    (attempt.path / files.SCORE).write_text(text, encoding="utf-8")
    return attempt.commit({"prefect": {"flow_run_id": RUN}})
