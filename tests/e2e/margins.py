"""The rules of a fair first impression, held against the JSON of results tables.

    (mean over seeds - chance) >= 3 * standard error, of every planned cell
    chance + 10 <= mean <= 95, likewise: neither too hard nor too easy to tell methods apart
    the least and the largest mean of a cell are within 3 points, over processors

The error is over seeds and items, see `flows.report.margin`. Margins, not digits: another processor
rounds differently.
"""

import json
from collections.abc import Sequence

NUM_ERRORS = 3
LEAST_ABOVE_CHANCE = 10.0
LARGEST = 95.0
LARGEST_SPREAD = 3.0


def too_close_to_chance(results: str) -> list[str]:
    """Names the cells of a results table, as JSON, that do not hold the rule; with their numbers.

    A cell without a score, a chance or an error does not hold it either.
    """
    wrong = []
    for benchmark in json.loads(results)["benchmarks"]:
        for cell in benchmark["cells"]:
            mean, error, chance = cell["mean"], cell["error"], benchmark["chance"]
            known = None not in (mean, error, chance)
            if not known or mean - chance < NUM_ERRORS * error:
                name = f"{benchmark['benchmark']}/{cell['method']}/{cell['budget']}"
                wrong.append(f"{name}: {mean} of chance {chance}, error {error}")
    return wrong


def out_of_range(results: str) -> list[str]:
    """Names the cells of a results table that lie near chance or near the top."""
    chance = {b["benchmark"]: b["chance"] for b in json.loads(results)["benchmarks"]}
    return [
        f"{cell}: {mean} of chance {chance[cell[0]]}"
        for cell, mean in means(results).items()
        if not chance[cell[0]] + LEAST_ABOVE_CHANCE <= mean <= LARGEST
    ]


def apart(tables: Sequence[str]) -> list[str]:
    """Names the cells whose means differ too much between tables of one study; with the means.

    A cell that is not in all tables is named, too.
    """
    of_table = [means(table) for table in tables]
    wrong = []
    for cell in sorted(set().union(*of_table)):
        found = [table[cell] for table in of_table if cell in table]
        if len(found) < len(tables) or max(found) - min(found) > LARGEST_SPREAD:
            wrong.append(f"{cell}: {found}")
    return wrong


def difference_of_methods(results: str, budget: int) -> float:
    """Returns the largest difference of two methods at a budget, on any benchmark [points]."""
    by_benchmark: dict[str, list[float]] = {}
    for (benchmark, _, at), mean in means(results).items():
        if at == budget:
            by_benchmark.setdefault(benchmark, []).append(mean)
    return max(max(found) - min(found) for found in by_benchmark.values())


def means(results: str) -> dict[tuple[str, str, int], float]:
    """Returns (benchmark, method, budget) -> mean, of the cells that have one."""
    return {
        (benchmark["benchmark"], cell["method"], cell["budget"]): cell["mean"]
        for benchmark in json.loads(results)["benchmarks"]
        for cell in benchmark["cells"]
        if cell["mean"] is not None
    }
