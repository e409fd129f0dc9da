"""Methods compared: pairs, words, the correction for many benchmarks, and what is too different."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest

from flows.report.build import build_report
from flows.report.cell_text import difference_text
from flows.report.cells import Plan, Score, ScoreOrigin, standing_over_all
from flows.report.comparable import check_comparable, comparable_scores
from flows.report.interval import estimate_interval, estimate_intervals
from flows.report.paired_scores import PairedScores
from flows.report.render import COMPARISON_COLUMNS, comparisons_to_csv, render_report
from tests.flows.report.report_studies import CHANCE, PLAN, SEEDS, make, scores

REPORT = build_report(PLAN, scores(), CHANCE)
ORIGIN = ScoreOrigin(data="d1", decoding="greedy", platform="jax 1 on cpu", cpu="old")


def test_every_two_methods_are_compared_at_budgets_and_seeds_that_both_have():
    chartqa, refcoco = REPORT.sections
    assert [(c.pair, c.budget) for c in chartqa.comparisons] == [
        ("parcel − vanilla", 256),
        ("m3 − parcel", 64),
        ("parcel − parcel@256", 64),
        ("parcel − vanilla@256", 64),
        ("m3 − vanilla@256", 64),
    ]
    first = chartqa.comparisons[0]  # 57, 60, 54 less 60, 62, 58
    assert first.mean == pytest.approx(-3.0)
    half = 4.302652729749 / 3**0.5
    assert (first.low, first.high) == pytest.approx((-3 - half, -3 + half))
    assert chartqa.comparisons[1].low is None  # One seed, and nobody knows its items.
    # Three pairs at 256 tokens and one at 64; of two methods, 64 tokens with 256, and vanilla's.
    assert len(refcoco.comparisons) == 3 + 1 + 2 + 2


def test_comparisons_over_benchmarks_have_a_table():
    (over,) = [c for c in REPORT.comparisons if c.pair == "parcel − vanilla"]
    assert over.benchmarks == ("chartqa", "refcoco")
    assert over.mean == pytest.approx((-3 - 3) / 2)
    text = render_report(REPORT, "md")
    difference = f"-3.0 [{over.low:.1f}, {over.high:.1f}]"
    row = f"| parcel − vanilla | {difference} |  | 2 | 3 | 1 | – | – | {over.detectable:.1f} |\n"
    assert row in text
    assert "one pretraining" in text
    # A benchmark that lacks a seed is in no mean.
    plan = dataclasses.replace(PLAN, benchmarks=(*PLAN.benchmarks, "gqa"))
    text = render_report(build_report(plan, scores(), {}), "md")
    assert f"| parcel − vanilla | {difference} |  | 2 of 3 | 3 | 1 |" in text


def test_what_stands_on_single_benchmarks_is_counted_over_several():
    over = dataclasses.replace(REPORT.comparisons[0], mean=2.1, low=0.4, high=3.9)
    assert difference_text(over) == "+2.1 [0.4, 3.9]"
    some = dataclasses.replace(over, better=5, worse=1)
    assert difference_text(some) == "+2.1 [0.4, 3.9] (5 better, 1 worse)"


def test_differences_of_a_benchmark_have_a_table():
    text = render_report(REPORT, "md")
    head = "| difference | @256 | @64 | seeds | pretrainings | items | pictures | detectable |\n"
    assert head in text
    # 57, 60, 54 less 60, 62, 58, and 48, 51 less 60, 58: one method, with vanilla's 256 tokens.
    row = "| parcel − vanilla@256 | -3.0 [-5.5, -0.5] | -9.5 [-41.3, 22.3] | 2–3 | 1 | – | – | "
    assert row in text
    assert "| parcel − parcel@256 |  | -6.0 [-44.1, 32.1] | 2 | 1 | – | – | " in text
    assert "| m3 − parcel |  | -3.0 | 1 | 1 | – | – | – |\n" in text


def test_a_difference_as_large_as_is_detectable_is_found_by_80_of_100_studies():
    """Thrice the same: drawn apart, seeds alone, one benchmark, of which nothing else is known."""
    rng = np.random.default_rng(3)
    rows = [PairedScores.of(rng.normal(0, 2, 4)) for _ in range(300)]
    detectable = np.median(
        [estimate_interval([row], [0] * 4, num_tests=1).detectable for row in rows]
    )
    found = [
        estimate_interval([PairedScores.of(detectable + row.values)], [0] * 4).p <= 0.05
        for row in rows
    ]
    assert 0.7 < np.mean(found) < 0.9
    # Of three tests, a difference must be larger to stand in all tables.
    one, of_three = (
        estimate_intervals(rows[:num], [[0] * 4] * num, num_tests=num)[0] for num in (1, 3)
    )
    assert of_three.detectable > one.detectable


def study(gain: float) -> list[Score]:
    """The study's scores, m3 with every seed and far below parcel on chartqa by `gain`."""
    rng = np.random.default_rng(0)
    found = []
    for seed in SEEDS:
        for benchmark in PLAN.benchmarks:
            base = 50 + rng.normal()
            more = gain if benchmark == "chartqa" else 0.0
            for method, score in (("m3", base), ("parcel", base + more + rng.normal(0, 0.05))):
                found.append(make(benchmark, method, 64, seed, score))
    return found


def test_sure_differences_are_counted_after_correction():
    report = build_report(PLAN, study(-5.0), CHANCE)  # m3 is the later method: m3 - parcel is +5
    chartqa, refcoco = (s.comparisons[0] for s in report.sections)
    assert chartqa.holm is not None
    assert chartqa.holm == pytest.approx(2 * chartqa.p)
    assert (refcoco.holm, chartqa.holm < 0.05) == (refcoco.p, True)
    (over,) = report.comparisons
    assert (over.better, over.worse) == (1, 0)
    assert "] * | 3 | 1 | – | – |" in render_report(report, "md")


def test_the_table_says_what_stands_over_all_that_it_compares():
    """Six p-values: chartqa's of 5 points stands among two, and only a clearer one among six."""
    note = "In all, 2 differences on single benchmarks are compared here: corrected for all of "
    note += "them, 1 of the 1 stand: m3 − parcel at 64 on chartqa."
    assert note in render_report(build_report(PLAN, study(-5.0), CHANCE), "md")
    both = [*study(-5.0), *(s for s in scores() if s.budget == 256)]
    sections = build_report(PLAN, both, CHANCE).sections
    num, standing = standing_over_all(sections)
    chances = [c.p for s in sections for c in s.comparisons]
    assert num == len(chances) > 2
    assert [c.p for c in standing] == [p for p in sorted(chances) if p * num <= 0.05]
    # Where nothing is starred there is nothing to say.
    assert "In all, " not in render_report(build_report(PLAN, study(0.0), CHANCE), "md")


def test_several_pretrainings_are_one_draw_each():
    plan = dataclasses.replace(PLAN, pretrainings=(0, 0, 1))
    report = build_report(plan, study(-5.0), CHANCE)
    one = build_report(PLAN, study(-5.0), CHANCE)
    assert report.num_pretrainings == 2
    wide, narrow = report.comparisons[0], one.comparisons[0]
    assert wide.high - wide.low > narrow.high - narrow.low
    assert "each of 2 pretrainings" in render_report(report, "md")
    with pytest.raises(ValueError, match=r"pretrainings .*\b3, .*got 1"):
        Plan(**{**vars(PLAN), "pretrainings": (0,)})


def test_one_seed_says_so():
    plan = dataclasses.replace(PLAN, seeds=SEEDS[:1])
    report = build_report(plan, [s for s in scores() if s.seed == SEEDS[0]], CHANCE)
    assert "one seed" in render_report(report, "md")


def test_files_hold_every_comparison():
    lines = list(csv.DictReader(io.StringIO(comparisons_to_csv(REPORT))))
    assert tuple(lines[0]) == (*COMPARISON_COLUMNS, "other_budget")
    assert len(lines) == 5 + 8 + len(REPORT.comparisons)
    assert {line["other_budget"] for line in lines} == {"", "256"}
    assert lines[-1]["benchmarks"] == "chartqa refcoco"
    value = json.loads(render_report(REPORT, "json"))
    assert value["benchmarks"][0]["comparisons"][0]["mean"] == -3.0
    assert value["comparisons"][0]["benchmarks"] == ["chartqa", "refcoco"]
    assert value["num_pretrainings"] == 1


def scores_with_origins(**other: str) -> list[Score]:
    """Scores of which the last two came about otherwise."""
    own = [dataclasses.replace(s, origin=ORIGIN) for s in scores()]
    changed = dataclasses.replace(ORIGIN, **other)
    return [*own[:-2], *(dataclasses.replace(s, origin=changed) for s in own[-2:])]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"data": "d2"},
            "refcoco must come from the same evaluation split and prompt, got data d1",
        ),
        (
            {"decoding": "beams"},
            "refcoco must come from the same decoding settings, got greedy for vanilla/256",
        ),
    ],
)
def test_scores_of_other_evaluations_are_never_averaged(other: dict[str, str], message: str):
    check_comparable(scores_with_origins())
    with pytest.raises(ValueError, match=message):
        check_comparable(scores_with_origins(**other))


def test_scores_of_other_platforms_are_averaged_only_if_told():
    mixed = scores_with_origins(platform="jax 2 on gpu")
    kept, notes = comparable_scores(mixed, mixed=False)
    assert len(kept) == len(mixed) - 2
    assert len(notes) == 1
    assert re.match(f"2 of {len(mixed)} scores .*platform", notes[0])
    assert "2 with jax 2 on gpu. Left out: refcoco/m3/64/" in notes[0]
    assert "`parcel results RUN --mixed`" in notes[0]
    kept, notes = comparable_scores(mixed, mixed=True)
    assert kept == mixed
    (note,) = notes
    assert note.endswith(f": {len(mixed) - 2} with jax 1 on cpu; 2 with jax 2 on gpu.")
    report = build_report(PLAN, kept, CHANCE, notes=notes)
    assert f"{notes[0]}\n" in render_report(report, "md")


def test_processors_of_other_models_are_mixed_and_named():
    kept, notes = comparable_scores(scores_with_origins(cpu="new"), mixed=False)
    assert len(kept) == len(scores())
    assert notes == ["Computed on processors of several models: new; old."]
    assert comparable_scores(scores_with_origins(), mixed=False)[1] == []
