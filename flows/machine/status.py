"""`parcel status`: the facts of the start page as lines for a terminal, with leases and rejects."""

from collections.abc import Iterable, Iterator

from flows.lookup.data_rejects import rejects_of
from flows.lookup.runs import describe_ends
from flows.pages.overview import (
    EndedRun,
    Firing,
    OverviewReader,
    RunningNode,
    RunUnderWay,
    ServerFacts,
    server_errors_text,
)
from flows.report.durations import age_text, time_left_text
from flows.report.text_lists import abbreviate_list, counted
from infra.errors import one_line_message
from infra.store.lease import LeaseView
from infra.store.store import Store
from pipelines.records.holdings import reject_lines

_MAX_NAMES = 8
"""Most nodes that are named for one reason to wait."""
_MAX_NODES = 30
"""Most nodes at work that are shown of one run."""
_MAX_REASONS = 3
"""Most reasons for rejects that are shown of one dataset."""
_RUNS = 5
"""Most runs that are shown that ended before yesterday, the newest first."""
_MAX_RUNS = 20
"""Most runs that are shown that ended since yesterday, and most studies."""


def status(store: Store) -> Iterator[str]:
    """Yields lines: runs under way, leases, how runs ended, what comes next, and the studies."""
    # From now to the past: who is at work, what is held, whose process has died, how runs ended;
    # then what comes next, for which the server is asked.
    facts = OverviewReader(store).read()
    rejects = _Rejects(store)
    yield f"store {store.uri}: {counted(len(store.keys()), 'artifact')}"
    yield from facts.unreadable
    yield f"runs under way: {len(facts.running) or 'none'}"
    for run in facts.running:
        yield from _run_lines(run)
        yield from rejects.lines(run.keys)
    leases = store.leases()
    yield f"leases: {len(leases) or 'none'}"
    for lease in leases:
        waiting_runs = [run.name for run in facts.running if lease.key in run.keys]
        of = f", wanted by {' and '.join(waiting_runs)}" if waiting_runs else ""
        hours = store.attempts_device_seconds(lease.key) / 3600
        cost = f", {hours:.2g} device-hours so far" if hours else ""
        yield f"  {lease.key}: {_describe_holder(lease)}{cost}{of}"
    if facts.lost:
        yield f"runs whose process is gone: {len(facts.lost)}"
        for run in facts.lost:
            yield f"  {run.name}: {_describe_holder(run.pin)}; `parcel run` resumes it"
    yield f"runs that ended: {len(facts.ended) or 'none'}"
    since = facts.since_yesterday
    shown = since[:_MAX_RUNS] or facts.ended[:_RUNS]
    for run in shown:
        yield from _ended_lines(run)
        yield from rejects.lines(run.record["artifacts"])
    if len(since) > len(shown):
        yield f"  and {len(since) - len(shown)} more since yesterday"
    if errors := facts.server_errors:
        yield f"server: {server_errors_text(errors)}"
    yield from _next_lines(_server_facts(store))
    yield f"studies: {len(facts.studies) or 'none'}"
    for study in facts.studies[:_MAX_RUNS]:
        seeds = f", seeds {study.seeds}" if study.seeds else ""
        score = f"; {study.score}" if study.score else ""
        changed = f"; changed: {study.differences}" if study.differences else ""
        yield f"  {study.name}: {study.outcome}, runs {study.num_runs}{seeds}{score}{changed}"
        if study.larger:
            yield f"    its newest table hides a larger one: {' '.join(study.larger)}"
    if len(facts.studies) > _MAX_RUNS:
        yield f"  and {len(facts.studies) - _MAX_RUNS} more"


class _Rejects:
    """The rejects of the datasets of runs; a dataset of several runs is named for the first."""

    def __init__(self, store: Store) -> None:
        self._store, self._left = store, set(store.keys("dataset"))

    def lines(self, keys: Iterable[str]) -> Iterator[str]:
        """Yields the rejects, by reason, of the datasets among a run's artifacts."""
        for key in sorted(self._left & set(keys)):
            self._left.discard(key)
            try:
                artifact = self._store.get_cached(key)
                groups, counts = rejects_of(artifact), artifact.manifest.counts
                told = f"{counts['rejected']:,} of {counts['inputs']:,}" if groups else ""
            except KeyError:  # gc deleted it meanwhile.
                continue
            except (ValueError, OSError) as error:  # Damaged; the rest of the store is shown.
                yield f"    {key}: what it left out is not known: {one_line_message(error)}"
                continue
            if not groups:
                continue
            yield (
                f"    {artifact.manifest.name}: {told} inputs rejected; "
                f"`parcel data rejects {key}` shows them"
            )
            yield from (f"      {line}" for line in reject_lines(groups, _MAX_REASONS))


def _run_lines(run: RunUnderWay) -> Iterator[str]:
    yield f"  {run.name}: {_describe_holder(run.pin)}"
    if not run.num_nodes:
        yield "    its steps are shown only on the machine that runs it"
        return
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(run.outcomes.items()))
    ended = f"{run.num_ended} of {run.num_nodes} steps ended"
    yield f"    {ended}{f': {counts}' if counts else ''}"
    if run.devices:
        devices = (f"{n} × {what}" if n > 1 else what for what, n in run.devices.items())
        yield f"    at work on: {', '.join(devices)}"
    for node in run.running[:_MAX_NODES]:
        yield f"    running: {node.name}, {_node_text(node)}"
    if len(run.running) > _MAX_NODES:
        yield f"    and {len(run.running) - _MAX_NODES} more are running"
    for why, names in run.waiting.items():
        yield f"    {why}: {abbreviate_list(names, _MAX_NAMES)}"


def _node_text(node: RunningNode) -> str:
    parts = (f"for {age_text(node.seconds)}", node.count, node.note)
    return ", ".join(filter(None, (*parts, time_left_text(node.seconds_left))))


def _ended_lines(run: EndedRun) -> Iterator[str]:
    record = run.record
    made = f", {record['made']} made, {record['reused']} reused" if "made" in record else ""
    ends = describe_ends(record["failed"], run.holes)
    why = f"; {ends}" if ends else ""
    at = record["finished"][:16].replace("T", " ")
    yield f"  {run.run}: {at} UTC, {run.outcome}{made}{why}"
    if run.command:
        gone_on = " (a later run of the study went on)" if run.continued else ""
        yield f"    continue: {run.command}{gone_on}"


def _server_facts(store: Store) -> ServerFacts | None:
    """Returns what the store's server knows, or that of `PREFECT_API_URL`; None without one."""
    # Imported here and set up first: without a server, status does without Prefect, which is slow.
    from infra.prefect.server import connect
    from infra.prefect.settings import apply

    apply(store.state)
    if not connect(store.state):
        return None
    from flows.sweep.schedule import read_server_facts

    return read_server_facts()


def _next_lines(server: ServerFacts | None) -> Iterator[str]:
    if server is None:
        yield (
            "next: no server runs that fires schedules; `parcel serve` starts it and says what was "
            "missed"
        )
        return
    firings = server.firings
    yield f"next: {counted(len(firings), 'schedule') if firings else 'no schedules'}"
    for firing in server.firings:
        yield from _firing_lines(firing)


def _firing_lines(firing: Firing) -> Iterator[str]:
    yield f"  {firing.name}: study {firing.study}, {firing.off or firing.next}"
    yield from (f"    {line}" for line in (*firing.past, *firing.would_run))


def _describe_holder(holding: LeaseView) -> str:
    """Returns who holds a lease, since when, and whether the holder is alive."""
    holder, since = holding.lease.holder, holding.lease.since
    # Alive, as far as the store can tell: a holder on another machine is judged by its renewals.
    if holder.has_ended:
        alive = "process gone; the lease is free"
    elif holding.is_live():
        alive = f"renewed {age_text(holding.age)} ago"
    else:
        alive = f"lapsed: not renewed for {age_text(holding.age)}, so the lease is free"
    began = f", since {since[:16].replace('T', ' ')} UTC" if since else ""
    return f"process {holder.pid} of {holder.host}{began}, {alive}"
