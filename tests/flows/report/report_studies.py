"""Small studies with hand-picked scores, for the tests of the report."""

from flows.report.cells import Plan, Score

SEEDS = (48213, 10007, 99991)
PLAN = Plan(
    methods=("vanilla", "parcel", "m3"),
    benchmarks=("chartqa", "refcoco"),
    budgets=(256, 64),
    seeds=SEEDS,
)
CHANCE = {"chartqa": 12.5, "refcoco": 20.0}
METRICS = {"chartqa": "relaxed_accuracy", "refcoco": "miou"}

# benchmark, method, budget -> scores in the order of SEEDS; None is missing.
TABLE = {
    ("chartqa", "vanilla", 256): (60.0, 62.0, 58.0),
    ("chartqa", "parcel", 256): (57.0, 60.0, 54.0),
    ("chartqa", "parcel", 64): (48.0, None, 51.0),
    ("chartqa", "m3", 256): (None, None, None),
    ("chartqa", "m3", 64): (45.0, None, None),
    ("refcoco", "vanilla", 256): (40.0, 50.0, 45.0),
    ("refcoco", "parcel", 256): (40.0, 40.0, 46.0),
    ("refcoco", "parcel", 64): (36.0, 36.0, 36.0),
    ("refcoco", "m3", 256): (27.0, 27.0, 27.0),
    ("refcoco", "m3", 64): (18.0, 18.0, 18.0),
}


def scores() -> list[Score]:
    """One score per number of TABLE."""
    return [
        make(benchmark, method, budget, seed, value)
        for (benchmark, method, budget), values in TABLE.items()
        for seed, value in zip(SEEDS, values, strict=True)
        if value is not None
    ]


def make(benchmark: str, method: str, budget: int, seed: int, value: float) -> Score:
    """A score whose artifact key says where it belongs."""
    return Score(
        benchmark=benchmark,
        method=method,
        budget=budget,
        seed=seed,
        score=value,
        metric=METRICS[benchmark.partition("@")[0]],
        artifact=f"predictions/{benchmark}-{method}-{budget}-{seed}",
    )
