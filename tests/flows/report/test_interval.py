"""Intervals over seeds and items, the exact test of one seed, and the correction for many."""

import math

import numpy as np
import pytest
from scipy import linalg, stats

from flows.report.interval import estimate_interval, mcnemar_test
from flows.report.paired_scores import PairedScores
from flows.report.sources_variance import clustered_variance, source_spread
from flows.report.spread import holm_correction
from tests.flows.report import simulated_studies as simulation

RNG = np.random.default_rng(3)


def test_without_items_it_is_the_t_interval_of_the_seeds():
    found = estimate_interval([PairedScores.of((1.0, 2.0, 3.5, 2.5))], [0] * 4)
    expected = stats.ttest_1samp([1.0, 2.0, 3.5, 2.5], 0)
    assert (found.low, found.high) == pytest.approx(expected.confidence_interval())
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.mean, found.over) == (2.25, "seeds")


def source_means(counts: np.ndarray) -> np.ndarray:
    """The matrix from the values of clusters, one after another, to the clusters' means."""
    return np.repeat(np.eye(len(counts)), counts, axis=1) / counts[:, None]


@pytest.mark.parametrize("counts", [[9, 1, 1, 2], [1, 3, 3, 1, 7], [2, 2, 2]])
def test_the_variance_over_clusters_is_that_of_the_model_by_plain_matrices(counts: list[int]):
    """Its expectation, from the covariance of all values, is the variance of their mean."""
    sizes = np.array(counts)
    num = sizes.sum()
    to_means = source_means(sizes)
    weights = RNG.uniform(0.2, 1.0, len(sizes))

    def variance(values: np.ndarray) -> float:
        means = to_means @ values
        rest = float(((values - np.repeat(means, sizes)) ** 2).sum())
        return clustered_variance(means, sizes, rest, weights)

    # The matrix of the quadratic form, from its values at sums of two unit vectors.
    unit = np.eye(num)
    form = np.array([[variance(a + b) - variance(a) - variance(b) for a in unit] for b in unit]) / 2
    same = np.repeat(np.eye(len(sizes)), sizes, axis=1)
    for between, within in ((3.0, 0.5), (0.0, 2.0), (1.0, 0.0)):
        covariance = between * same.T @ same + within * np.eye(num)
        assert np.trace(form @ covariance) == pytest.approx(covariance.sum() / num**2)


@pytest.mark.parametrize("sizes", [[3] * 6, [1, 4, 2, 1, 5, 3, 2, 2], [1] * 9])
def test_of_one_benchmark_it_is_cr2_with_bell_and_mccaffreys_degrees_by_plain_matrices(
    sizes: list[int],
):
    values = [RNG.normal(0, 5, sum(sizes))]
    items, variance, freedom = plain_cr2([sizes], values)
    found = estimate_interval([PairedScores.of((values[0].mean(),), (items[0],))], [0])
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    mean = values[0].mean()
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half))
    assert (found.over, found.items) == ("items", sum(sizes))


def test_benchmarks_that_share_some_pictures_are_cr2_of_one_regression_by_plain_matrices():
    """The second benchmark asks about the first three pictures, and four of its own."""
    sizes = [[1, 2, 1, 3, 1, 2], [2, 1, 2, 0, 0, 0, 1, 2, 1, 1]]
    values = [RNG.normal(0, 5, sum(of)) for of in sizes]
    items, variance, freedom = plain_cr2(sizes, values)
    rows = [
        PairedScores.of((of.mean(),), (run,), str(place))
        for place, (of, run) in enumerate(zip(values, items, strict=True))
    ]
    found = estimate_interval(rows, [0])
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert found.high == pytest.approx(np.mean([of.mean() for of in values]) + half)


def uneven_row(name: str, sources: list[str], seed: int) -> PairedScores:
    """A benchmark of three seeds, whose first picture has half of the items."""
    rng, counts = np.random.default_rng(seed), [9, *[1] * (len(sources) - 1)]
    effects = np.repeat(rng.normal(0, 20, len(sources)), counts)
    runs = []
    for _ in range(3):
        values = np.split(effects + rng.normal(0, 5, len(effects)), np.cumsum(counts)[:-1])
        runs.append({s: tuple(v.tolist()) for s, v in zip(sources, values, strict=True)})
    means = [float(np.mean([x for of in run.values() for x in of])) for run in runs]
    return PairedScores.of(means, runs, name)


def test_where_few_pictures_have_nearly_all_items_those_that_are_shared_move_both_alike():
    """By plain matrices: the covariance of all effects that such standard deviations allow."""
    clusters = np.arange(3)
    one = uneven_row("a", [f"a{i}" for i in range(8)], 0)
    two = uneven_row("b", ["b0", "a1", "a2", *(f"b{i}" for i in range(3, 9))], 1)
    alone = [source_spread([row], clusters, 2) for row in (one, two)]
    both = source_spread([one, two], clusters, 2)
    weights = [row.counts / row.counts.sum() for row in (one, two)]
    sds = [math.sqrt(s.squares) / np.linalg.norm(w) for s, w in zip(alone, weights, strict=True)]
    names = [*one.sources, *two.sources]
    alike = np.array([[a == b for a in names] for b in names], float)
    scaled = np.concatenate([w * sd for w, sd in zip(weights, sds, strict=True)])
    assert both.squares == pytest.approx(scaled @ alike @ scaled)
    assert both.freedom == min(s.freedom for s in alone) == 7


def test_one_picture_in_common_does_not_make_a_mean_more_certain():
    rng, many = np.random.default_rng(5), [f"c{i}" for i in range(400)]
    few = uneven_row("a", [f"a{i}" for i in range(8)], 0)
    halves = []
    for names in (many, ["a1", *many[1:]]):
        runs = [{name: (float(rng.normal(0, 20)),) for name in names} for _ in range(3)]
        other = PairedScores.of([np.mean([*run.values()]) for run in runs], runs, "c")
        found = estimate_interval([few, other], [0] * 3)
        assert found.low is not None
        assert found.high is not None
        halves.append(found.high - found.low)
    assert halves[1] == pytest.approx(halves[0], rel=0.1)


def plain_cr2(
    sizes: list[list[int]], values: list[np.ndarray]
) -> tuple[list[dict[str, tuple[float, ...]]], float, float]:
    """Items of the benchmarks by picture; variance and degrees of freedom of their means' mean.

    A regression on a constant for each benchmark: residual maker, its blocks' inverse roots, and
    the sandwich. Bell and McCaffrey's working model: independent items, of each benchmark's own
    variance.
    """
    picture = np.concatenate([np.repeat(np.arange(len(of)), of) for of in sizes])
    benchmark = np.repeat(np.arange(len(sizes)), [sum(of) for of in sizes])
    design = (benchmark[:, None] == np.arange(len(sizes))).astype(float)
    bread = np.linalg.inv(design.T @ design)
    residual = np.eye(len(picture)) - design @ bread @ design.T
    mean = np.full(len(sizes), 1 / len(sizes))
    rows = []
    for own in (picture == number for number in range(picture.max() + 1)):
        root = np.linalg.inv(linalg.sqrtm(residual[np.ix_(own, own)]))
        rows.append(mean @ bread @ design[own].T @ root @ residual[own])
    scores, all_values = np.array(rows), np.concatenate(values)
    working = np.array([of.var() for of in values])[benchmark]
    moments = np.linalg.eigvalsh((scores * working) @ scores.T)
    items = [
        {
            f"{number:02d}": tuple(of[np.repeat(np.arange(len(counts)), counts) == number])
            for number in range(len(counts))
            if counts[number]
        }
        for counts, of in zip(sizes, values, strict=True)
    ]
    variance = float(((scores @ all_values) ** 2).sum())
    return items, variance, float(moments.sum() ** 2 / (moments**2).sum())


def test_one_seed_without_items_has_a_mean_only():
    found = estimate_interval([PairedScores.of((2.0,))], [0])
    assert (found.mean, found.low, found.high, found.p, found.over) == (2.0, None, None, None, "")


def test_parts_are_those_of_a_balanced_analysis_of_variance():
    """Of one item per source: the textbook's mean squares, from the table itself."""
    table = RNG.normal(0, 1, (4, 1)) + RNG.normal(0, 3, (1, 30)) + RNG.normal(0, 2, (4, 30))
    by_source = 4 * table.mean(axis=0).var(ddof=1)
    both = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    residual = (both**2).sum() / (3 * 29)
    items = tuple({f"{i:02d}": (x,) for i, x in enumerate(run)} for run in table.tolist())
    row = PairedScores.of(table.mean(axis=1), items)
    found = source_spread([row], np.arange(4), 1)
    assert found.squares == pytest.approx(by_source / 120)
    assert found.interaction == pytest.approx(residual / 120)
    assert (found.freedom, found.interaction_freedom) == pytest.approx((29, 87))
    interval = estimate_interval([row], [0] * 4)
    assert (interval.over, interval.seeds, interval.items) == ("seeds and items", 4, 30)


def test_p_is_the_level_at_which_the_interval_reaches_zero():
    values = tuple(RNG.normal(1.0, 1.0, 5))
    found = estimate_interval([PairedScores.of(values)], [0] * 5)
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    # Seeds that agree, without items, do not say how far others would be.
    alike = estimate_interval([PairedScores.of((0.1 + 0.2, 0.3))], [0, 0])
    assert (alike.low, alike.high, alike.p, alike.seeds) == (None, None, None, 2)
    assert alike.mean == pytest.approx(0.3)


def test_trainings_of_their_own_tell_more_than_rows_of_one():
    values = [tuple(RNG.normal(1.0, 1.0, 3)) for _ in range(6)]
    same = estimate_interval([PairedScores.of(v, training="one") for v in values], [0] * 3)
    means = np.mean(values, axis=0)
    assert (same.low, same.high) == pytest.approx(stats.ttest_1samp(means, 0).confidence_interval())
    own = [PairedScores.of(v, training=str(i)) for i, v in enumerate(values)]
    apart = estimate_interval(own, [0] * 3)
    # Not the 2.2 times that two degrees of freedom cost, but what three seeds of six tell together.
    variances = sum(np.var(v, ddof=1) / 3 / 36 for v in values)
    assert 1.0 < (apart.high - apart.low) / (2 * stats.norm.isf(0.025) * variances**0.5) < 1.7


def test_a_pretraining_and_what_follows_from_it_is_one_draw():
    rows = [
        PairedScores.of((1.0, 2.0, 5.0, 6.0, 3.0, 3.0), training="a"),
        PairedScores.of((2.0, 3.0, 6.0, 7.0, 4.0, 4.0), training="b"),
    ]
    found = estimate_interval(rows, [0, 0, 1, 1, 2, 2])
    expected = stats.ttest_1samp([2.0, 6.0, 3.5], 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx(expected)


@pytest.mark.parametrize("draws", [[0, 1, 2], [0] * 6 + [1, 2, 3], [0] * 4 + [1, 1, 2]])
@pytest.mark.parametrize("alike", [False, True])
def test_no_more_interaction_is_found_than_there_is(draws: list[int], alike: bool):
    """Whether the seeds of a pretraining answer alike or each for itself."""
    rng, clusters, found = np.random.default_rng(0), np.array(draws), []
    for _ in range(400):
        both = rng.normal(0, 10, (len(draws), 30))
        items = rng.normal(0, 5, 30) + (both[clusters] if alike else both)
        runs = [{f"{i:02d}": (float(x),) for i, x in enumerate(run)} for run in items]
        row = PairedScores.of([float(run.mean()) for run in items], runs)
        found.append(source_spread([row], clusters, 1).interaction)
    counts = np.bincount(clusters)
    share = float(((counts / counts.sum()) ** 2).sum()) if alike else 1 / len(draws)
    most = 100 / 30 * share
    assert np.mean(found) < 1.05 * most
    if len(set(counts)) == 1:
        assert np.mean(found) > 0.95 * most


def test_answers_that_are_all_alike_have_no_interval_where_the_scale_does_not_end():
    runs = [{"a": (80.0,), "b": (120.0,), "c": (40.0,)}] * 2
    captions = PairedScores.of([80.0, 80.0], runs)
    same = estimate_interval([captions.minus(captions)], [0, 0])
    assert (same.mean, same.low, same.p) == (0.0, None, None)
    answers_ = PairedScores.of([50.0] * 2, [{"a": (100.0,), "b": (0.0,)}] * 2)
    found = estimate_interval([answers_.minus(answers_)], [0, 0])
    assert found.low is not None
    assert found.low < 0 < found.high
    assert 0 <= found.p <= 1


def test_items_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match=r"items of vqa must be finite"):
        PairedScores.of([50.0], [{"a": (math.nan,), "b": (1.0,)}], "vqa")


def test_differences_are_paired_by_source_in_whatever_order_it_comes():
    one = PairedScores.of([50.0], [{"a": (100.0,), "b": (0.0,)}], "t")
    other = PairedScores.of([100.0], [{"b": (100.0,), "a": (100.0,)}])
    both = one.minus(other)
    assert (both.values.tolist(), both.sources, both.training) == ([-50.0], ("a", "b"), "t")
    assert both.items.tolist() == [[0.0, -100.0]]
    assert (both.low, both.high) == (-100.0, 100.0)
    more = PairedScores.of([100.0], [{"a": (100.0,), "b": (100.0, 100.0)}])
    assert one.minus(more).sources == ()
    assert one.minus(PairedScores.of([100.0])).sources == ()


def test_items_that_differ_from_seed_to_seed_are_unknown():
    assert PairedScores.of([1.0, 2.0], [{"a": (1.0,), "b": (1.0,)}, {"a": (2.0,)}]).sources == ()
    assert PairedScores.of([1.0], [{"a": (1.0,)}]).sources == ()


def answers(*counts: tuple[float, float, int]) -> PairedScores:
    """The difference of two methods of one seed: (first, other, items answered like this)."""
    pairs = [(first, other) for first, other, num in counts for _ in range(num)]
    sides = [
        PairedScores.of([float(np.mean(side))], [{str(i): (x,) for i, x in enumerate(side)}])
        for side in zip(*pairs, strict=True)
    ]
    return sides[0].minus(sides[1])


def test_one_seed_of_right_and_wrong_answers_is_tested_exactly():
    row = answers((100.0, 0.0, 8), (0.0, 100.0, 1), (100.0, 100.0, 20))
    assert mcnemar_test(row) == pytest.approx(2 * (1 + 9) / 2**9)
    assert estimate_interval([row], [0]).p == mcnemar_test(row)
    assert mcnemar_test(answers((0.0, 0.0, 2))) == 1.0
    assert mcnemar_test(PairedScores.of([50.0], [{"a": (100.0,), "b": (0.0,)}])) is None
    half = PairedScores.of([25.0], [{"a": (50.0,), "b": (0.0,)}])
    assert mcnemar_test(half.minus(PairedScores.of([0.0], [{"a": (0.0,), "b": (0.0,)}]))) is None
    both = PairedScores.of([50.0], [{"a": (100.0, 0.0), "b": (0.0, 100.0)}])
    assert mcnemar_test(both.minus(both)) is None


@pytest.mark.parametrize("num", [10, 20])
def test_the_exact_test_and_the_interval_never_contradict_each_other(num: int):
    for won in range(num + 1):
        for lost in range(num + 1 - won):
            row = answers((100.0, 0.0, won), (0.0, 100.0, lost), (100.0, 100.0, num - won - lost))
            found = estimate_interval([row], [0])
            assert found.p >= mcnemar_test(row)
            assert (found.p <= 0.05) == (found.low > 0 or found.high < 0)


@pytest.mark.parametrize(("right", "num"), [(20, 20), (0, 20), (49, 50), (3, 5)])
def test_a_proportion_has_an_interval_within_its_scale(right: int, num: int):
    items = {str(i): (100.0 * (i < right),) for i in range(num)}
    found = estimate_interval([PairedScores.of([100 * right / num], [items])], [0])
    assert 0 <= found.low < found.high <= 100
    assert found.low <= found.mean <= found.high
    # It is near Wilson's, written apart.
    wilson = stats.binomtest(right, num).proportion_ci(method="wilson")
    assert (found.low / 100, found.high / 100) == pytest.approx((wilson.low, wilson.high), abs=0.08)


def test_seeds_unbalanced_over_pretrainings_have_one_mean_and_its_interval():
    """The plain mean over the seeds lies in the middle of its interval."""
    found = estimate_interval([PairedScores.of((0.1, 0.2, 0.3, 2.0))], [0, 0, 0, 1])
    assert found.mean == pytest.approx(0.65)
    assert (found.low + found.high) / 2 == pytest.approx(0.65)
    assert (found.seeds, found.pretrainings) == (4, 2)


def test_benchmarks_that_share_pictures_are_not_independent():
    runs = [{str(i): (float(x),) for i, x in enumerate(RNG.normal(0, 10, 40))}]
    same = [PairedScores.of([np.mean([*runs[0].values()])], runs, str(k)) for k in range(4)]
    one = estimate_interval(same[:1], [0])
    assert estimate_interval(same, [0]).high == pytest.approx(one.high)
    apart = [
        PairedScores.of(row.values, [{f"{k}/{s}": v for s, v in runs[0].items()}], str(k))
        for k, row in enumerate(same)
    ]
    found = estimate_interval(apart, [0])
    assert (found.high - found.low) / (one.high - one.low) == pytest.approx(0.5, abs=0.02)


def test_holm_corrects_step_by_step_and_never_below_a_smaller_one():
    chances = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert holm_correction(chances) == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm_correction({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm_correction({}) == {}


def shapes(*names: str) -> list[simulation.Shape]:
    return [shape for shape in simulation.SHAPES if not names or shape.name in names]


WIDE = ("pretrainings of seeds 0001",)
"""Shapes whose oracle knows that seeds differ less than pretrainings, which four seeds cannot."""


def check_shape(shape: simulation.Shape, num_seeds: int, studies: int) -> None:
    """Checks a shape's promise; noise is two binomial standard errors, of fixed seeds."""
    found = simulation.simulate(shape, num_seeds, studies)
    # Two seeds without items, and one noisy training of 27: 90 %.
    least = 0.93 if num_seeds >= 3 else 0.90
    assert found.covered >= least - 2 * found.error, (shape.name, num_seeds, found)
    assert found.outside == 0
    # With two seeds the price of holding is width: the oracle knows which part is small.
    if num_seeds != 2 and shape.name not in WIDE:
        assert found.width <= 1.3 * found.oracle, (shape.name, num_seeds, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    shapes(
        "proportion 0.98 of 20 items",
        "10 clusters, one with half the items",
        "8 trainings, one very noisy",
        "benchmarks of 5 and 1,000 items",
    ),
    ids=lambda shape: shape.name,
)
def test_intervals_of_three_seeds_hold_in_unwieldy_studies(shape: simulation.Shape):
    """A small edition; docs/explanation/statistics.md has the figures of a large one."""
    check_shape(shape, 3, 400)


@pytest.mark.deep
def test_intervals_hold_in_every_shape_of_study():
    for shape in shapes():
        for num_seeds in shape.seeds:
            check_shape(shape, num_seeds, 250)


@pytest.mark.parametrize("values", [(0.0, 0.0), (100.0, 0.0), (100.0, 100.0)])
def test_a_few_answers_on_several_benchmarks_settle_no_more_than_on_one(values: tuple[float, ...]):
    def row(training: str, value: float) -> PairedScores:
        items = np.full((2, 4), value)
        return PairedScores(
            values=items.mean(axis=1),
            sources=("a", "b"),
            counts=np.array([2, 2]),
            items=items,
            training=training,
            low=-100.0,
            high=100.0,
            is_binary=True,
        )

    rows = [row(training, value) for training, value in zip("xy", values, strict=True)]
    both = estimate_interval(rows, [0, 0])
    assert both.low is not None
    assert both.high is not None
    assert both.p is not None
    assert both.low <= 0.0 <= both.high
    assert both.p > 0.05
    for alone in rows:
        one = estimate_interval([alone], [0, 0])
        assert one.low is not None
        assert one.low <= 0.0
