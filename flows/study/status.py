"""`parcel status`: shows the runs of a store, who holds which step, and what waits for what."""

import collections
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flows.lineage.data_rejects import rejects_of
from flows.lineage.runs import ended_run_records, outcome
from flows.report.text_lists import abbreviate_list
from infra.prefect import journal
from infra.prefect.journal import Node, RunRecord
from infra.store.lease import LeaseView
from infra.store.pins import list_pins, run_of_pin
from infra.store.store import Store
from pipelines.records.holdings import reject_lines

_MAX_NAMES = 8
"""Most nodes that are named for one reason to wait."""
_MAX_REASONS = 3
"""Most reasons for rejects that are shown of one dataset."""
_RUNS = 5
"""Most ended runs that are shown, the newest first."""


def status(store: Store) -> Iterator[str]:
    """Yields lines: runs under way, leases, and how the last runs ended, with their rejects."""
    # From now to the past: who is at work, what is held, whose process has died, how runs ended. A
    # run pins its artifacts by a lease, so a pin that is no longer renewed is a run that is gone.
    pins, leases = list_pins(store.volatile), store.leases()
    rejects = _Rejects(store)
    running = [pin for pin in pins if pin.is_live()]
    yield f"store {store.uri}: {len(store.keys())} artifacts"
    yield f"runs under way: {len(running) or 'none'}"
    for pin in running:
        yield from _run_lines(store, pin)
        yield from rejects.lines(pin.lease.keys)
    yield f"leases: {len(leases) or 'none'}"
    for lease in leases:
        waiting_runs = [_run_name(store, pin) for pin in running if lease.key in pin.lease.keys]
        of = f", wanted by {' and '.join(waiting_runs)}" if waiting_runs else ""
        hours = store.attempts_device_seconds(lease.key) / 3600
        cost = f", {hours:.2g} device-hours so far" if hours else ""
        yield f"  {lease.key}: {_describe_holder(lease)}{cost}{of}"
    if lost_pins := [pin for pin in pins if not pin.is_live()]:
        yield f"runs whose process is gone: {len(lost_pins)}"
        for pin in lost_pins:
            yield f"  {_run_name(store, pin)}: {_describe_holder(pin)}; `parcel run` resumes it"
    ended = sorted(
        ended_run_records(store).items(), key=lambda run: run[1]["finished"], reverse=True
    )
    yield f"runs that ended: {len(ended) or 'none'}"
    for name, record in ended[:_RUNS]:
        failed, holes = record["failed"], record.get("holes", ())
        why = f"; {len(failed)} steps failed: {failed[0]}" if failed else ""
        why += f"; {len(holes)} steps did not begin" if holes else ""
        at = record["finished"][:16].replace("T", " ")
        yield f"  {name}: {at} UTC, {outcome(record)}{why}"
        yield from rejects.lines(record["artifacts"])


class _Rejects:
    """What the datasets of runs left out; a dataset of several runs is named for the first."""

    def __init__(self, store: Store) -> None:
        self._store, self._left = store, set(store.keys("dataset"))

    def lines(self, keys: Iterable[str]) -> Iterator[str]:
        """Yields the rejects, by reason, of the datasets among a run's artifacts."""
        for key in sorted(self._left & set(keys)):
            self._left.discard(key)
            try:
                artifact = self._store.get_cached(key)
            except KeyError:  # gc deleted it meanwhile.
                continue
            groups = rejects_of(artifact)
            if not groups:
                continue
            counts = artifact.manifest.counts
            yield (
                f"    {artifact.manifest.name}: {counts['rejected']:,} of {counts['inputs']:,} "
                f"inputs rejected; `parcel data rejects {key}` shows them"
            )
            yield from (f"      {line}" for line in reject_lines(groups, _MAX_REASONS))


def _run_lines(store: Store, pin: LeaseView) -> Iterator[str]:
    yield f"  {_run_name(store, pin)}: {_describe_holder(pin)}"
    # Pins are in the store, for all machines; a journal is on the disk of its own.
    record = _run_journal(store, pin)
    if record is None:
        yield "    its steps are shown only on the machine that runs it"
        return
    nodes = record.nodes
    outcomes = collections.Counter(node.outcome for node in nodes.values() if node.outcome)
    counts_text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    counts_text = f": {counts_text}" if counts_text else ""
    yield f"    {sum(outcomes.values())} of {len(nodes)} steps ended{counts_text}"
    for name, why in _running_nodes(nodes).items():
        yield f"    running: {name}, {why}"
    for why, names in _waiting_nodes(nodes).items():
        yield f"    {why}: {abbreviate_list(names, _MAX_NAMES)}"


def _running_nodes(nodes: Mapping[str, Node]) -> Mapping[str, str]:
    now = datetime.datetime.now(datetime.UTC)
    return {
        node.name: f"for {_duration_text((now - node.started).total_seconds())}"
        for node in nodes.values()
        if node.started and not node.outcome
    }


def _waiting_nodes(nodes: Mapping[str, Node]) -> Mapping[str, Sequence[str]]:
    """Returns reason -> the nodes that wait for it; a failed input is a reason, too."""
    nodes_by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for node in nodes.values():
        if node.started or node.outcome:
            continue
        # Of several reasons a failed input counts first: waiting for the others would not help.
        outcomes = {name: nodes[name].outcome for name in node.reads if name in nodes}
        open_ones = [name for name, outcome in outcomes.items() if outcome is None]
        if failed := [name for name, out in outcomes.items() if out in ("failed", "not run")]:
            nodes_by_reason[f"cannot run, since {failed[0]} failed"].append(node.name)
        elif open_ones:
            nodes_by_reason[f"waiting for {', '.join(open_ones[:3])}"].append(node.name)
        else:
            nodes_by_reason["ready, waiting for a worker"].append(node.name)
    return nodes_by_reason


def _run_journal(store: Store, pin: LeaseView) -> RunRecord | None:
    """Returns the journal of a run, if it runs on this machine and has a row in the UI."""
    path = journal.folder(store.state) / f"{run_of_pin(pin)}.jsonl"
    return journal.read(path) if path.is_file() else None


def _run_name(store: Store, pin: LeaseView) -> str:
    record = _run_journal(store, pin)
    return f"{record.study if record and record.study else 'run'} {run_of_pin(pin)[:8]}"


def _describe_holder(holding: LeaseView) -> str:
    """Returns who holds a lease, since when, and whether the holder is alive."""
    holder, since = holding.lease.holder, holding.lease.since
    # Alive, as far as the store can tell: a holder on another machine is judged by its renewals.
    if holder.has_ended:
        alive = "process gone; the lease is free"
    elif holding.is_live():
        alive = f"renewed {_duration_text(holding.age)} ago"
    else:
        alive = f"lapsed: not renewed for {_duration_text(holding.age)}, so the lease is free"
    began = f", since {since[:16].replace('T', ' ')} UTC" if since else ""
    return f"process {holder.pid} of {holder.host}{began}, {alive}"


def _duration_text(seconds: float) -> str:
    """Returns a time in one unit or two: "12 s", "3 min", "2 h 5 min", "4 d 3 h"."""
    seconds = max(seconds, 0)  # Clocks of two machines differ a little.
    minutes, hours, days = (int(seconds // unit) for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
