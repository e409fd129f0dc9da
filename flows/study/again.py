"""Steps that a run leaves alone: all but those that failed last; or those that failed too often."""

from collections.abc import Callable, Collection, Mapping, Sequence

from flows.study.explain import Explanation
from flows.study.graph import Node
from flows.study.load import ConfigError
from flows.study.runs import records
from infra.store.store import Store

Held = Callable[[Explanation], Mapping[Node, str]]
"""From the verdicts on a study to the nodes that are not to be begun, and why."""

MAX_TRIES = 3
"""Failures of one step after which a sweep tries it no more; other code, config or data is another
step."""

_NAMED = 3
"""Steps named in a line; the others are counted."""


def none_held(explanation: Explanation) -> Mapping[Node, str]:
    """Returns no node."""
    return {}


def failed_last(store: Store, name: str) -> tuple[str, ...]:
    """Returns the names of the steps that failed in the last run of a study.

    Raises:
      ConfigError: if no run of that name came to its end.
    """
    ran = [record for record in records(store).values() if record["name"] == name]
    if not ran:
        raise ConfigError(
            f"--failed must come with a study whose run came to its end in {store.uri}, got "
            f"{name!r}; run it without."
        )
    newest = max(ran, key=lambda record: record["finished"])
    return tuple(failure.partition(": ")[0] for failure in newest["failed"])


def told_of_failed(name: str, failed: Sequence[str]) -> str:
    """Says, in a line, which steps a run of the failed ones alone is about to try."""
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    told = ", ".join(failed[:_NAMED]) + more
    return f"{len(failed)} steps failed in {name}'s last run, and are tried alone: {told}"


def all_but(names: Collection[str]) -> Held:
    """Holds back every node but those of some names, and those that they need."""

    def held(explanation: Explanation) -> Mapping[Node, str]:
        upstream = explanation.graph.upstream
        wanted = {node for node in explanation.graph.nodes if node.name in names}
        for node in reversed(explanation.graph.nodes):  # Readers come after what they read.
            if node in wanted:
                wanted.update(upstream[node])
        return {n: "they had not failed" for n in explanation.graph.nodes if n not in wanted}

    return held


def failures(store: Store, explanation: Explanation) -> dict[Node, int]:
    """Returns how often nodes have failed that are to be made, where they have.

    A node fails with what it reads. A try that was killed, with its machine say, is no failure.
    """
    begun = store.begun_keys()
    found: dict[Node, int] = {}
    upstream = explanation.graph.upstream
    for node in explanation.graph.nodes:
        keys = {explanation.steps[step].key for step in node.steps} & begun
        counts = [*map(store.failures, keys), *(found.get(read, 0) for read in upstream[node])]
        if count := max(counts, default=0):
            found[node] = count
    return found


def given_up(store: Store) -> Held:
    """Holds back the nodes that have failed too often."""

    def held(explanation: Explanation) -> Mapping[Node, str]:
        why = f"they failed {MAX_TRIES} times, and `parcel run --failed` tries them again"
        counts = failures(store, explanation).items()
        return {node: why for node, count in counts if count >= MAX_TRIES}

    return held
