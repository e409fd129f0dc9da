"""Promises of runs: cells and comparisons of a table, written down before its run begins."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from flows.report.cells import Plan
from flows.report.compare import planned_pairs
from infra.store.digest import canonical_json, value_sha256
from infra.store.redact import redact

FAMILY = "Holm over the benchmarks of each pair"
"""The family of comparisons whose p-values are corrected together; see `compare_methods`."""


def promise_of(plan: Plan, scored: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Returns the seeds, benchmarks, budgets and comparisons of a table, as plain values.

    Args:
      plan: the cells of the table; their costs are computed and not chosen, and left out.
      scored: benchmark -> its metric, and the config of the dataset that it is scored on.
    """
    bare = dataclasses.replace(
        plan, costs=(), also=tuple(dataclasses.replace(view, costs=()) for view in plan.also)
    )
    splits = {
        row: {"metric": metric, **_split_values(data)} for row, (metric, data) in scored.items()
    }
    return {
        "plan": json.loads(canonical_json(bare)),
        "scored": dict(sorted(splits.items())),
        "comparisons": [[list(pair) for pair in planned_pairs(view)] for view in plan.views],
        "family": FAMILY,
    }


def config_sha256(config: Mapping[str, Any]) -> str:
    """Returns the digest of a study's config as a run's record holds it."""
    # As JSON text first: a config may hold infinities, which canonical JSON refuses.
    return value_sha256(json.dumps(redact(config), sort_keys=True))


def _split_values(data: Any) -> dict[str, Any]:
    values = json.loads(canonical_json(data))
    return {name: values.get(name) for name in ("reader", "split")} if values else {}
