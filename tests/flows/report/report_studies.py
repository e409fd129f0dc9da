"""Small studies with hand-picked scores, for the tests of the report."""

import dataclasses

from flows.report.build import build_report
from flows.report.cells import Cost, Plan, Report, Score

SEEDS = (48213, 10007, 99991)
PLAN = Plan(
    methods=("vanilla", "parcel", "m3"),
    benchmarks=("chartqa", "refcoco"),
    budgets=(256, 64),
    seeds=SEEDS,
)
CHANCE = {"chartqa": 12.5, "refcoco": 20.0}
METRICS = {"chartqa": "relaxed_accuracy", "refcoco": "miou", "clips": "cider"}

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


def rich_report() -> Report:
    """A report with all there is: items, guesses, costs, two resolutions, seen items, a note."""

    def items(value: float) -> dict[str, tuple[float, ...]]:
        return {"a": (value,), "b": (value / 2,), "c": (100.0, value)}

    low = [
        dataclasses.replace(
            s, items=items(s.score), accepted=s.seed == SEEDS[1], bfloat16=s.budget == 64
        )
        for s in scores()
    ]
    high = [dataclasses.replace(s, benchmark=f"{s.benchmark}@448") for s in low]
    costs = tuple(
        Cost(benchmarks=("chartqa",), method=m, budget=b, num_images=2, tflops=1 / b, kv_mb=b / 7)
        for m in PLAN.methods
        for b in PLAN.budgets
    )
    also = dataclasses.replace(PLAN, benchmarks=("chartqa@448", "refcoco@448"), resolution=448)
    plan = dataclasses.replace(
        PLAN,
        resolution=224,
        also=(also,),
        costs=costs,
        groups={"main suite": ("chartqa", "refcoco")},
        group_sizes={"main suite": 27},
        blocks={"chartqa": "Resolution-sensitive"},
        pretrainings=(0, 1, 1),
    )
    guesses = {"chartqa": items(12.0)}
    return build_report(plan, low + high, CHANCE, guesses, ["Some scores are left out."], {"a"})
