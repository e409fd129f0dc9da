"""Every row of the paper's score file is served by a benchmark and a split of its reader."""

import csv
from pathlib import Path

import pytest

from pipelines.benchmarks.registry import BENCHMARKS, serving

SCORES = Path(__file__).parents[3] / ".." / "shared" / "paper" / "detailed_scores.csv"

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not SCORES.is_file(), reason="needs ../shared/paper/detailed_scores.csv"),
]


@pytest.fixture(scope="module")
def scored() -> set[tuple[str, str, int]]:
    with SCORES.open(newline="") as file:
        return {(r["group"], r["benchmark"], int(r["resolution"])) for r in csv.DictReader(file)}


def test_every_row_is_served_at_its_resolution(scored):
    for group, title, resolution in scored:
        benchmark, row = serving(title)
        assert resolution in row.resolutions, (title, resolution)
        assert resolution in (benchmark.recipes or BENCHMARKS[benchmark.parent].recipes), title
        if group in ("video", "refcoco", "resolution_sensitive"):
            assert row.suite == "main", title


def test_no_resolution_is_claimed_that_the_paper_lacks(scored):
    found = {(row.titles[0], side) for b in BENCHMARKS.values() for row in b.rows
             for side in row.resolutions}  # fmt: skip
    there = {(serving(title)[1].titles[0], side) for _, title, side in scored}
    assert found == there
