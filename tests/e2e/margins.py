"""The rule of a fair first impression, held against the JSON of a results table.

    (mean over seeds - chance) >= 3 * standard error, of every planned cell

The error is over seeds and items, see `flows.report.items`. Margins, not digits: another processor
rounds differently and gives other scores.
"""

import json

NUM_ERRORS = 3


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
