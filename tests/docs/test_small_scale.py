"""The study at small scale: what its page says is what its files hold, and they fit its config."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

import pytest

from flows.config.load import load
from flows.report.cells_file import CELL_COLUMNS
from flows.report.render import COMPARISON_COLUMNS
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs/studies/small_scale"
PAGE = FOLDER.with_suffix(".md").read_text()
STUDY = load(ROOT / "configs/small_scale.yaml")


def rows(name: str) -> list[dict[str, str]]:
    return [*csv.DictReader((FOLDER / f"{name}.csv").open())]


CELLS = rows("cells")


def lines() -> Iterator[str]:
    """Yields the page's lines of scores, as the cells have them."""
    scores = defaultdict(list)
    for cell in CELLS:
        scores[cell["benchmark"], cell["method"], int(cell["budget"])].append(cell)
    for benchmark, method in dict.fromkeys(key[:2] for key in scores):
        found = [scores[benchmark, method, budget] for budget in STUDY.budgets]
        num = len({cell["seed"] for cells in found for cell in cells})
        of = len({cell["pretraining"] for cells in found for cell in cells})
        means = [f"{mean_of(cells):.1f}" if cells else "" for cells in found]
        yield f"| {benchmark} | {method} | {of} | {num} | {' | '.join(means)} |"


def mean_of(cells: list[dict[str, str]]) -> float:
    return fmean(float(cell["score"]) for cell in cells)


def test_the_page_has_the_scores_and_no_others():
    expected = sorted(lines())
    assert expected
    shown = [line for line in PAGE.splitlines() if re.match(r"\| \w+ \| \w+ \| \d \|", line)]
    assert sorted(shown) == expected


def test_the_page_knows_how_many_scores_there_would_be():
    budgets = sum(len(STUDY.budgets_of(method)) for method in STUDY.methods)
    total = budgets * len(STUDY.seed_pairs) * len(STUDY.rows)
    assert f"of the config's {total:,} scores" in PAGE


def test_the_model_is_the_demos():
    assert STUDY.model == load().model


def test_the_page_has_the_scores_of_each_pretraining():
    scores = defaultdict(list)
    for cell in CELLS:
        if cell["benchmark"] == "refcoco":
            scores[cell["method"], cell["pretraining"], int(cell["budget"])].append(cell)
    for method in dict.fromkeys(method for method, *_ in scores):
        served = [budget for budget in STUDY.budgets if budget in STUDY.budgets_of(method)]
        columns = [
            " / ".join(f"{mean_of(scores[method, number, budget]):.0f}" for budget in served)
            for number in "012"
        ]
        assert f"| {method} | {' | '.join(columns)} |" in PAGE


def test_the_page_has_its_differences_from_the_file():
    told = [
        f"| {row['method']} − {row['other']} | {row['budget']} | {float(row['mean']):+.1f} "
        f"[{float(row['low']):.1f}, {float(row['high']):.1f}] |"
        for row in rows("comparisons")
        if row["benchmarks"] == "refcoco"
    ]
    shown = [line for line in PAGE.splitlines() if " − " in line and line.startswith("| ")]
    assert shown
    assert set(shown) <= set(told)


def test_the_differences_are_those_of_the_scores_both_have():
    scores = defaultdict(dict)
    for cell in CELLS:
        key = cell["benchmark"], cell["method"], cell["budget"]
        scores[key][cell["pretraining"], cell["seed"]] = float(cell["score"])
    for row in rows("comparisons"):
        assert set(row) <= set(COMPARISON_COLUMNS)
        one, other = (
            scores[row["benchmarks"], row[name], row["budget"]] for name in ("method", "other")
        )
        drawn = defaultdict(list)
        for pretraining, seed in one.keys() & other.keys():
            key = pretraining, seed
            drawn[pretraining].append(one[key] - other[key])
        assert float(row["mean"]) == pytest.approx(fmean(map(fmean, drawn.values())), abs=2e-4)


def test_the_page_has_the_scores_by_what_was_asked_from_their_file():
    scores = defaultdict(dict)
    for row in rows("asked"):
        if row["benchmark"] != "refcoco":  # All of its texts are expressions.
            key = row["benchmark"], row["asked"], row["items"], f"{float(row['chance']):.0f}"
            scores[key][row["method"], row["budget"]] = f"{float(row['score']):.0f}"
    methods = ("m3", "mqt", "parcel")
    for key, found in scores.items():
        columns = [" / ".join(found[m, str(b)] for b in STUDY.budgets) for m in methods]
        line = " | ".join((*key, found["vanilla", "256"], *columns))
        assert f"| {line} |" in PAGE


def test_every_cell_is_one_of_the_config():
    seeds = {str(seed): str(number) for number, seed in STUDY.seed_pairs}
    for cell in CELLS:
        assert set(cell) == set(CELL_COLUMNS)
        method = cell["method"]
        train = STUDY.fine_tuning_of(cell["benchmark"].partition(":")[0], method)
        assert cell["connector"] == STUDY.connector_of(method)
        assert cell["drawn"] == (" ".join(map(str, train.budgets or ())) or "all")
        assert int(cell["steps"]) == train.total_steps
        assert seeds[cell["seed"]] == cell["pretraining"]
        assert int(cell["budget"]) in STUDY.budgets_of(method)
        assert float(cell["low"]) <= float(cell["score"]) <= float(cell["high"])
    assert len({(c["benchmark"], c["method"], c["budget"], c["seed"]) for c in CELLS}) == len(CELLS)


def test_the_page_has_the_spectra_from_their_file():
    first, pooled = defaultdict(list), defaultdict(list)
    for row in rows("spectra"):
        name = f"{row['label']} {row['what']}" + (f" at {row['budget']}" if row["budget"] else "")
        if row["radius"] == "1":
            first[name].append(float(row["normalized_power"]))
        if row["radius"] == "4":
            pooled[name].append(float(row["cumulative_power"]))
    table = PAGE.partition("## Spectra")[2].partition("\n## ")[0]
    shown = [line for line in table.splitlines() if line.startswith(("| parcel", "| mqt", "| m3"))]
    assert shown == [f"| {n} | {spread(first[n])} | {spread(pooled[n])} |" for n in first]


def test_the_page_of_auto_has_its_table_from_the_file():
    page = (ROOT / "docs/explanation/auto_budget.md").read_text()
    for row in rows("auto"):

        def around(name: str, row: dict[str, str] = row) -> str:
            low, high = (float(row[f"{name}_{end}"]) for end in ("low", "high"))
            return f"{float(row[name]):+.1f} [{low:.1f}, {high:.1f}]"

        plain = [f"{float(row[name]):.1f}" for name in ("tokens", "score", "mixture")]
        oracle = [f"{float(row[name]):.1f}" for name in ("oracle", "oracle_other_seed")]
        judged = map(around, ("gain", "area", "other_seed"))
        fields = [f"{row['over']}, {row['modality']}", *plain, *judged, *oracle]
        assert f"| {' | '.join(fields)} |" in page


def spread(values: list[float]) -> str:
    """Returns a mean over the pretrainings, with the least and the largest."""
    return f"{fmean(values):.3f} ({min(values):.3f}–{max(values):.3f})"
