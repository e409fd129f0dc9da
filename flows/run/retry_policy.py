"""Rules that hold nodes of a run back: all that did not fail last time, or that fail too often."""

from collections.abc import Callable, Mapping

from flows.graph.explain import Explanation
from flows.graph.nodes import GraphNode
from flows.lookup.runs import ended_run_records
from flows.report.text_lists import abbreviate_list, counted
from infra.errors import ConfigError
from infra.store.store import Store

HoldRule = Callable[[Explanation], Mapping[GraphNode, str]]
"""Function from the explanation of a study to the nodes that a run must not begin, and why."""

MAX_TRIES = 3
"""Failures of a step after which a sweep no longer tries it; with other code, config or data it
counts as a new step."""

GIVEN_UP = f"they failed {MAX_TRIES} times, and `parcel run --failed` tries them again"
"""Why a sweep holds a node back that failed too often."""

NOT_FAILED = "they did not fail in the last run"
"""Why a run with `--failed` holds a node back."""

_MAX_NAMES = 3
"""Most steps named in one line; the others are only counted."""


def hold_none(explanation: Explanation) -> Mapping[GraphNode, str]:
    """Holds back no node."""
    return {}


def failed_nodes_of_last_run(store: Store, name: str) -> tuple[str, ...]:
    """Returns the names of the nodes that failed in the last run of a study, or were given up.

    Raises:
      ConfigError: if no run of that study has ended.
    """
    runs = [record for record in ended_run_records(store).values() if record["name"] == name]
    if not runs:
        raise ConfigError(
            f"--failed needs a study with a finished run in {store.uri}, got {name!r}; run it "
            f"without --failed."
        )
    newest = max(runs, key=lambda record: record["finished"])
    failed = [failure.partition(": ")[0] for failure in newest["failed"]]
    return tuple(dict.fromkeys([*failed, *newest.get("given_up", ())]))


def only_failed(store: Store, name: str) -> tuple[HoldRule | None, str]:
    """Returns the rule of a run with `--failed`, and a line on it; no rule if nothing failed.

    It holds back all nodes but those that failed in the last run of a study or were given up, what
    waited for them, and what they need. Stale nodes are not held back: what mended the failed ones
    may have made others stale, and a table should not rest on both.

    Raises:
      ConfigError: if no run of that study has ended.
    """
    failed = failed_nodes_of_last_run(store, name)
    if not failed:
        return None, f"nothing to run: no step failed in {name}'s last run"

    def holds(explanation: Explanation) -> Mapping[GraphNode, str]:
        upstream = explanation.graph.upstream
        nodes = set[GraphNode]()
        for node in explanation.graph.nodes:
            state = explanation.of_node(node).state
            # What read a failed node was not run then, and has no artifact now.
            # The table is no such node: it is made from what there is, and needs none of it.
            waited = (
                state in ("follows", "new")
                and any(read in nodes for read in upstream[node])
                and not any(step.partial for step in node.steps)
            )
            if node.name in failed or state == "stale" or waited:
                nodes.add(node)
        # Backwards, every reader is visited before the nodes that it reads: one pass is enough.
        for node in reversed(explanation.graph.nodes):
            if node in nodes:
                nodes.update(upstream[node])
        return {node: NOT_FAILED for node in explanation.graph.nodes if node not in nodes}

    count = (
        f"{counted(len(failed), 'step')} failed or {'was' if len(failed) == 1 else 'were'} given up"
    )
    names = abbreviate_list(failed, _MAX_NAMES)
    return holds, (
        f"{count} in {name}'s last run; only these are tried, and what waited for them: {names}"
    )


def failures_by_node(store: Store, explanation: Explanation) -> dict[GraphNode, int]:
    """Returns node -> number of its failed attempts, for nodes to be made that have failed.

    The failures of a node's inputs count as its own. An attempt that was killed, by the loss of its
    machine say, is no failure.
    """
    # A step that never began has no count. One whose input failed counts as failed as often, or a
    # sweep would try to make it for ever.
    begun = store.attempted_keys()
    counts_of: dict[GraphNode, int] = {}
    upstream = explanation.graph.upstream
    for node in explanation.graph.nodes:
        keys = {explanation.steps[step].key for step in node.steps} & begun
        counts = [
            *map(store.count_failures, keys),
            *(counts_of.get(read, 0) for read in upstream[node]),
        ]
        if count := max(counts, default=0):
            counts_of[node] = count
    return counts_of


def hold_given_up(store: Store) -> HoldRule:
    """Returns a rule that holds back the nodes that have failed `MAX_TRIES` times."""

    def holds(explanation: Explanation) -> Mapping[GraphNode, str]:
        counts = failures_by_node(store, explanation).items()
        return {node: GIVEN_UP for node, count in counts if count >= MAX_TRIES}

    return holds
