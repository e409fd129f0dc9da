"""What is ticked is compared: scores, paired differences, curves, and what changed."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from flows.lookup.runs import end_run_record, record_name
from flows.pages.app import store_pages
from flows.pages.chart import Curve, chart_of
from flows.pages.compare_page import common_cells, compare_cells, find_sides
from flows.pages.run_results import study_of
from flows.report.cell_text import draws_text
from flows.report.cells import Comparison
from infra.prefect.server import PAGES
from infra.store.store import Store
from tests.flows.pages.studies import answers_of, commit, commit_scores, write_study
from tests.flows.pages.test_pages import get, links, told
from tests.model.tiny_data import color_record

COMPARE = f"{PAGES}/compare"


def client_of(store: Store) -> TestClient:
    return TestClient(Starlette(routes=[Mount(PAGES, store_pages(store.uri))]))


@pytest.fixture(scope="module")
def client(toy: Store) -> TestClient:
    return client_of(toy)


@pytest.fixture(scope="module")
def run(toy: Store) -> str:
    return study_of(toy, "toy").run


def test_every_score_and_method_of_a_table_can_be_ticked(client: TestClient, run: str):
    text = get(client, f"{PAGES}/results/toy")
    sides = re.findall(r'name="side" value="([^"]+)"', text)
    assert f"{run}/colors/parcel/16" in sides
    assert f"{run}/*/mqt" in sides
    assert len(set(sides)) == 10 + 3  # Cells; methods, in each benchmark's table.
    assert COMPARE in links(text)


def test_two_cells_are_compared_as_the_table_compares_them(
    client: TestClient, toy: Store, run: str
):
    first, second = find_sides(toy, [f"{run}/colors/parcel/16", f"{run}/colors/mqt/16"])
    (key,) = common_cells(first, second)
    pair = compare_cells(toy, first, second, key)
    (entry,) = [
        c
        for c in study_of(toy, "toy").section("colors").comparisons
        if (c.method, c.other, c.budget) == ("mqt", "parcel", 16)
    ]
    assert pair.difference is not None
    assert (pair.difference.mean, pair.difference.low, pair.difference.high) == pytest.approx(
        (entry.mean, entry.low, entry.high)
    )
    assert pair.draws == draws_text(entry.seeds, entry.pretrainings, entry.items, entry.pictures)
    assert pair.draws == "3 seeds, 1 pretraining"
    text = get(client, f"{COMPARE}?side={run}/colors/parcel/16&side={run}/colors/mqt/16")
    assert "+13.3" in told(text)
    assert pair.draws in told(text)
    assert text.count("<polyline") == 6  # A loss curve for each side and seed.
    # parcel is the first method that is no reference, mqt the second, as in the run's figures.
    for color in ("color0", "color1"):
        assert text.count(f'<polyline class="loss {color} ') == 3
    assert "config name transfer parcel colors seed=11 transfer mqt colors seed=11" in told(text)
    assert text.count('<article class="card">') == int(
        re.search(r"Items that changed: (\d+)", text)[1]  # type: ignore[index]
    )
    assert "/picture/" in text


def test_two_benchmarks_stand_side_by_side_without_a_difference(
    client: TestClient, toy: Store, run: str
):
    names = [f"{run}/colors/parcel/16", f"{run}/shapes/mqt/16"]
    first, second = find_sides(toy, names)
    pair = compare_cells(toy, first, second, ())
    assert (pair.label, pair.difference, pair.draws) == ("colors, shapes", None, "")
    text = told(get(client, f"{COMPARE}?side={names[0]}&side={names[1]}"))
    assert "two benchmarks, colors and shapes: their difference has no meaning" in text
    for cell in pair.cells:
        assert f"{cell.mean:.1f}" in text
    assert not re.search(r"[+-]\d+\.\d", text.split("Scores and differences")[1].split("over")[0])
    assert "Items that changed" not in text


@pytest.mark.parametrize(
    ("metric", "answered", "reason"),
    [
        ("vqa", "colors", "two metrics, exact_match and vqa: their difference has no meaning"),
        ("exact_match", "shapes", "two sets of questions: their difference has no meaning"),
        ("exact_match", "colors", ""),
    ],
)
def test_cells_of_two_runs_need_one_metric_and_the_same_questions(
    tmp_path: Path, metric: str, answered: str, reason: str
):
    store = Store(tmp_path)
    for name in ("first", "second"):
        write_study(store, name=name, num_items=6)
    first, second = (
        find_sides(store, [f"{study_of(store, name).run}/{benchmark}/parcel/16"])[0]
        for name, benchmark in (("first", "colors"), ("second", answered))
    )
    # Of the second run, a cell of the same name, whose split is another one.
    section, cell = second.cells[()]
    cell = dataclasses.replace(cell, benchmark="colors", metric=metric)
    second = dataclasses.replace(second, cells={(): (section, cell)})
    pair = compare_cells(store, first, second, ())
    assert pair.reason == reason
    assert (pair.difference is None) == bool(reason)


def test_an_interval_stays_within_the_metric_as_in_the_table(tmp_path: Path):
    store = Store(tmp_path)
    # Of two items, mqt has one or both right: two seeds alone would give an interval of 600 points.
    write_study(store, benchmarks=("colors",), budgets=(64,), seeds=(11, 24), num_items=2)
    study = study_of(store, "toy")
    for entry in study.section("colors").comparisons:
        names = [f"{study.run}/colors/{method}/64" for method in (entry.other, entry.method)]
        first, second = find_sides(store, names)
        difference = compare_cells(store, first, second, ()).difference
        assert difference is not None
        ends = (difference.low, difference.high)
        assert ends == pytest.approx((entry.low, entry.high))
        # Seeds that agree about one picture say nothing of others.
        assert ends in ((None, None), (-100, 100))


def test_two_cells_of_a_run_have_the_difference_of_its_table(toy: Store, run: str):
    """A table knows more of two cells than these: how far seeds differ on its other benchmarks."""
    entry = Comparison(
        method="mqt",
        other="parcel",
        budget=16,
        benchmarks=("colors",),
        mean=2.0,
        low=-1.0,
        high=5.0,
    )
    sides = find_sides(toy, [f"{run}/colors/parcel/16", f"{run}/colors/mqt/16"])
    first, second = (
        dataclasses.replace(
            side, cells={(): (dataclasses.replace(section, comparisons=(entry,)), cell)}
        )
        for side in sides
        for section, cell in side.cells.values()
    )
    there, back = compare_cells(toy, first, second, ()), compare_cells(toy, second, first, ())
    for pair, expected in ((there, (2.0, -1.0, 5.0)), (back, (-2.0, -5.0, 1.0))):
        assert pair.difference is not None
        found = pair.difference
        assert (found.mean, found.low, found.high) == expected


def test_methods_and_runs_are_compared_cell_by_cell(client: TestClient, run: str):
    methods = get(client, f"{COMPARE}?side={run}/*/parcel&side={run}/*/mqt")
    for label in ("colors @16", "colors @64", "shapes @16", "shapes @64"):
        assert label in told(methods)
    compared = [link for link in links(methods) if link.startswith(COMPARE)]
    in_full = [link for link in compared if "&as=" not in link]
    assert len(in_full) == 4
    assert "Items that changed" in get(client, in_full[0])


def test_two_runs_show_what_they_have_in_common_and_what_was_set_otherwise(tmp_path: Path):
    store = Store(tmp_path)
    write_study(store, benchmarks=("colors",), methods=("vanilla", "parcel"), num_items=8)
    results = study_of(store, "toy").results
    end_run_record(
        store,
        {"name": "toy", "methods": ["vanilla"], "num_seeds": 5},
        "later-00000000000a",
        results=results.key,
        artifacts=[],
        failed=(),
    )
    client = TestClient(Starlette(routes=[Mount(PAGES, store_pages(store.uri))]))
    names = re.findall(r'name="side" value="([^"]+)"', get(client, f"{PAGES}/runs"))
    assert len(names) == 2
    text = get(client, f"{COMPARE}?side={names[1]}&side={names[0]}")
    assert "colors parcel @16" in told(text)
    assert "num_seeds 5" in told(text)
    assert any(link.startswith(f"{PAGES}/diff?a=") for link in links(text))
    # A cell offers those of its benchmark, and itself in the study's other run.
    cell = get(client, f"{PAGES}/cell/{names[0]}/colors/parcel/16")
    options = re.findall(r'<option value="([^"]+)"', cell)
    assert options == [
        f"{names[0]}/colors/vanilla/64",
        f"{names[0]}/colors/parcel/64",
        f"{names[1]}/colors/parcel/16",
    ]
    same = get(client, f"{COMPARE}?side={names[0]}/colors/parcel/16&side={options[2]}")
    assert "Items that changed: 0" in told(same)


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (["{run}", "{run}/colors/mqt/16"], "Only like is compared with like, not a run"),
        (["{run}/colors/mqt/16", "{run}/colors/mqt/99"], "has no scores of colors/mqt/99"),
        (["{run}/*/nope", "{run}/*/mqt"], "has no scores of */nope"),
        (["{run}/a", "{run}/b"], "There is nothing to compare with the name"),
        (["nope", "{run}"], "RUN must name a finished run, got 'nope'"),
        (["<script>", "{run}"], "RUN must be letters"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_in_a_page(
    client: TestClient, run: str, sides: list[str], said: str
):
    query = "&".join(f"side={side.format(run=run)}" for side in sides)
    answer = client.get(f"{COMPARE}?{query}")
    assert answer.status_code == 404
    assert said in told(answer.text)
    assert "<script>" not in answer.text


def test_one_side_alone_says_what_to_tick(client: TestClient, run: str):
    for query in ("", f"?side={run}/colors/mqt/16"):
        assert "Tick two or more cells" in told(get(client, f"{COMPARE}{query}"))


def test_curves_share_their_axes():
    def curve(color: int, *points: tuple[float, float]) -> Curve:
        return Curve(label="a", color=f"color{color}", points=points)

    assert chart_of("loss", [], [curve(0, (1, 2.0))]) is None
    chart = chart_of("loss", [], [curve(0, (0, 0.0), (5, 4.0)), curve(1, (0, 2.0), (10, 2.0))])
    assert chart is not None
    assert chart.ticks == [(chart.left, "step 0"), (chart.right, "step 10")]
    ends = [[tuple(map(float, p.split(","))) for p in line.split()] for _, _, line in chart.lines]
    (low, high), (left, right) = ends
    assert (low[0], high[1], right[0]) == (left[0], chart.values[2][0], chart.right)
    assert low[1] == chart.values[0][0]
    assert left[1] == right[1] == chart.values[1][0]
    assert high[0] == pytest.approx((left[0] + right[0]) / 2)


def test_a_study_draws_its_curves_by_method_and_seed(client: TestClient, run: str):
    for path in (f"{PAGES}/results/{run}", f"{PAGES}/curves/{run}/shapes"):
        text = get(client, path)
        drawn = re.findall(r'<polyline class="loss (\w+) dash\d".*?<title>(.+?)</title>', text)
        assert sorted(drawn)[::3] != []
        assert [len(list(g)) for _, g in itertools.groupby(sorted(drawn), lambda d: d[0])] == [
            3
        ] * 3


def test_runs_that_failed_are_compared_by_the_scores_that_they_have(tmp_path: Path):
    store = Store(tmp_path)
    records = [color_record(number, part="colors") for number in range(6)]
    data = commit(store, "dataset", "prepare colors/test", {})
    names = {}
    for run, seeds in (("whole", (11, 23)), ("short", (23,))):
        keys = []
        for method, every in (("vanilla", 2), ("parcel", 3)):
            for seed in seeds:
                trained = commit(
                    store, "checkpoint", f"transfer {method} {seed} {run}", {}, data=data
                )
                rows = answers_of(records, every, seed)
                cell = f"{method} colors seed={seed} budget=16"
                keys.append(commit_scores(store, cell, rows, checkpoint=trained, data=data).key)
        config = {"name": run, "methods": ["vanilla", "parcel"], "transfers": {"colors": {}}}
        end_run_record(store, config, f"id-{run}", results=None, artifacts=keys, failed=["a: no"])
        names[run] = record_name(run, f"id-{run}")
    client = client_of(store)
    assert get(client, f"{PAGES}/runs").count('type="checkbox"') == 2
    text = told(get(client, f"{COMPARE}?side={names['whole']}&side={names['short']}"))
    assert "(failed, the scores that there are)" in text
    # Seed 23 is in both, and answered alike; whole has the mean of two seeds.
    assert re.search(r"colors parcel @16 66\.7 ± 0\.0 66\.7 \+0\.0 ", text), text
    whole = find_sides(store, [f"{names['whole']}/*/parcel", f"{names['whole']}/*/vanilla"])
    assert [cell.n for side in whole for _, cell in side.cells.values()] == [2, 2]
    answer = client.get(f"{COMPARE}?side={names['whole']}&side=nothing")
    assert "RUN must name a finished run, got 'nothing'" in told(answer.text)
