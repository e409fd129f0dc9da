"""Records of runs, with their configs and results; and look-up of artifacts by name."""

import datetime
import getpass
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from flows.config.keep import KeepConfig, prunable_checkpoints
from flows.lookup.config_leaves import config_leaves
from flows.lookup.promise import config_sha256
from flows.report.text_lists import counted
from infra.errors import ConfigError, did_you_mean
from infra.store.pins import list_pins, living_runs, run_of_pin
from infra.store.records import (
    PRUNED,
    RECORD_FORMAT,
    RUNNING,
    RUNS,
    RecordError,
    beginning_sha256,
    read_run,
    run_records,
)
from infra.store.redact import redact
from infra.store.store import Artifact, Store
from infra.store.stored_folder import open_stored_folder

RunOutcome = Literal["running", "complete", "with holes", "failed", "cancelled", "crashed"]
EndState = Literal["ended", "cancelled", "crashed"]


def run_outcome(record: Mapping[str, Any]) -> RunOutcome:
    """Returns how a run ended, from its record; everybody who shows it asks here.

    running      it goes on
    complete     every step that it was to make or find is there
    with holes   there is a table, or a part of the steps, but some steps failed or were not run
    failed       steps failed, and there is no table
    cancelled    a person ended it, by Ctrl-C, in the UI, or by not approving it
    crashed      its process or its machine is gone
    """
    state = record.get("state", "ended")
    if state != "ended":
        return state
    if record["failed"] and record["results"] is None:
        return "failed"
    is_whole = not (record["failed"] or record.get("holes") or record.get("given_up"))
    return "complete" if is_whole else "with holes"


def describe_ends(failed: Sequence[str], holes: Collection[str], *, cause: bool = True) -> str:
    """Returns the counts of a run's steps that failed or were not run, in one line; "" without any.

        6 failed, 35 not run: stage1 vanilla: out of memory

    Args:
      failed: "step: reason" for each step that failed.
      holes: names of steps that did not begin.
      cause: whether the first reason stands there.
    """
    counts = ((len(failed), "failed"), (len(holes), "not run"))
    text = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    return f"{text}: {failed[0]}" if failed and cause else text


def began_of(record: Mapping[str, Any]) -> str:
    """Returns when a run began, by its record; of old records, when it ended."""
    return record.get("began") or record["finished"] or ""


def record_name(study: str, run_id: str) -> str:
    """Returns the full name of a run: its study's, and the end of its id."""
    return f"{study}-{run_id.replace('-', '')[-12:]}"


def begin_run_record(
    store: Store,
    config: Mapping[str, Any],
    run_id: str,
    *,
    artifacts: Collection[str],
    given: str,
    tags: Sequence[str] = (),
    note: str = "",
    promised: Mapping[str, Any] = MappingProxyType({}),
    earlier: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Writes the record of a run that begins, or that goes on with a wider study.

    It names the record before it of that name by its digest, so that no run of a name can be left
    out later without a gap.

    Args:
      store: the store of the run.
      config: the study's config as it was understood, as plain values, with its name.
      run_id: id of the run.
      artifacts: keys of the artifacts that the run found.
      given: the request as it was made: a command, or the values of a form.
      tags: words by which a person finds it.
      note: what a person says of it.
      promised: what the run is to report, see `promise_of`; {} if it reports nothing.
      earlier: full name -> record of the runs before it, as `close_dead_records` returns them.
    """
    previous = [
        record
        for record in earlier.values()
        if record["name"] == config["name"] and record.get("flow_run_id") != run_id
    ]
    ended = [record for record in previous if record["finished"]]
    newest = max(ended, key=lambda record: record["finished"], default=None)
    # The records of a name, each of which holds the digest of the one that began before it:
    #
    #   demo-0c1d                 demo-9f0e                       demo-77aa
    #   promised: 3 seeds, …  <─  previous: demo-0c1d, 5be1…  <─  previous: demo-9f0e, 08f2…
    #
    # A run that goes on with a wider study, as a sweep does, adds to what it promised.
    before = record_of(store, run_id)
    if before is None:
        last = max(previous, key=began_of, default=None)
        link = last and {"run": last["run"], "sha256": beginning_sha256(last)}
    else:
        link = before.get("previous")
    promises = [] if before is None else before.get("promised", [])
    promise = {**promised, "config_sha256": config_sha256(config)}
    if promised and promise not in promises[-1:]:
        promises = [*promises, promise]
    record = {
        "given": redact(given),
        "who": _user_name(),
        "tags": redact(list(tags)),
        "note": redact(note),
        "previous": link,
        "promised": promises,
        "differs": config_differences(newest["config"], redact(config)) if newest else None,
        "artifacts": sorted(artifacts),
        "state": RUNNING,
        "finished": None,
        "results": None,
        "failed": [],
    }
    _put_record(store, config, run_id, record)


def end_run_record(
    store: Store,
    config: Mapping[str, Any],
    run_id: str,
    *,
    results: str | None,
    artifacts: Collection[str],
    failed: Sequence[str],
    holes: Collection[str] = (),
    given_up: Sequence[str] = (),
    headline: Mapping[str, Any] = MappingProxyType({}),
    made: int = 0,
    reused: int = 0,
) -> RunOutcome:
    """Writes how a run ended into its record, and returns the outcome.

    `parcel gc` keeps the artifacts that a record names and all that they were made from, except
    checkpoints that the study's `keep` prunes.

    Args:
      store: the store of the run.
      config: the study's config, as plain values, with its name.
      run_id: id of the run.
      results: key of the results artifact; None if the run made none.
      artifacts: keys of all artifacts that the run made or found.
      failed: "step: reason" for each step that failed.
      holes: names of steps that did not begin.
      given_up: names of those of them that had failed too often to be tried again.
      headline: counts of the results artifact.
      made: number of steps that the run made.
      reused: number of steps that it found.
    """
    keep = KeepConfig(**config.get("keep", {}))
    # After a failure nothing is pruned: the next attempt may read these files again.
    pruned_keys = set() if failed else prunable_checkpoints(keep, map(store.get_cached, artifacts))
    record = {
        # gc keeps these; what `keep` pruned is named apart, so that its absence is explained.
        "artifacts": sorted({*artifacts} - pruned_keys),
        PRUNED: sorted(pruned_keys),
        "results": results,
        "headline": dict(headline),
        "made": made,
        "reused": reused,
        "failed": redact(list(failed)),
        "holes": sorted(holes),
        "given_up": list(given_up),
        "state": "ended",
        "finished": _current_record_time(),
    }
    return run_outcome(_put_record(store, config, run_id, record))


def stop_run_record(store: Store, run_id: str, state: EndState, why: str = "") -> None:
    """Writes into the record of a run that it was cancelled, crashed or ended by an error.

    The run cannot say any more what it made: its pins do, which are there until they are released
    or collected. A record that says already how its run ended, or was never begun, stays as it is.

    Args:
      store: the store of the run.
      run_id: id of the run.
      state: what happened.
      why: reason of an error; "" for none.
    """
    record = record_of(store, run_id)
    if record is not None and record.get("state") == RUNNING:
        pins = (pin for pin in list_pins(store.volatile) if run_of_pin(pin) == run_id)
        pinned = {key for pin in pins for key in pin.lease.keys}
        stop = {
            "artifacts": sorted({*record["artifacts"], *(pinned & {*store.keys()})}),
            "failed": redact([why] if why else []),
            "state": state,
            "finished": _current_record_time(),
        }
        config = {**record["config"], "name": record["name"]}
        _put_record(store, config, run_id, stop)


def record_of(store: Store, run_id: str) -> dict[str, Any] | None:
    """Returns the record of a run by its id; None if the store has none.

    Raises:
      RecordError: if it cannot be read.
    """
    # By its name, not by reading them all: a process that is being ended has seconds.
    ending = f"{record_name('', run_id)}.json"
    names = [name for name in store.files.listing(RUNS) if name.endswith(ending)]
    records = (read_run(store.files, name.removesuffix(".json")) for name in names)
    return next((each for each in records if each.get("flow_run_id") == run_id), None)


def close_dead_records(store: Store) -> dict[str, dict[str, Any]]:
    """Writes "crashed" into the record of every run whose pins have lapsed.

    A run that only slept, and goes on, writes its own end over it.

    Returns:
      Full name -> record of every run, as they are afterwards.
    """
    live, records = living_runs(store.volatile), run_records(store.files)
    for name, record in records.items():
        if record.get("state") == RUNNING and record["flow_run_id"] not in live:
            stop_run_record(store, record["flow_run_id"], "crashed")
            records[name] = read_run(store.files, name)
    return records


def _put_record(
    store: Store, config: Mapping[str, Any], run_id: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes fields of a run's record over those that it has; returns the record."""
    name = record_name(config["name"], run_id)
    try:
        before = read_run(store.files, name)
    except (FileNotFoundError, RecordError):  # Damaged, it is written anew: this run knows it all.
        before = {}
    before.pop("run", None)
    record = {
        "began": _current_record_time(),
        **before,
        "format": RECORD_FORMAT,
        "name": config["name"],
        "flow_run_id": run_id,
        "config": redact(config),
        **fields,
    }
    text = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    store.files.put(f"{RUNS}/{name}.json", text)
    return record


def _user_name() -> str:
    """Returns the name of the user whose process this is; its number where it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # In a container; KeyError before Python 3.13.
        return str(os.getuid())


def _current_record_time() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def config_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns dotted path of a config's value -> what it was and what it is, where they differ."""
    # Through JSON, as the earlier config was: it has lists where this one has tuples.
    # What was stated of them is no value of its own.
    was, now = (
        config_leaves(
            {k: v for k, v in json.loads(json.dumps(config)).items() if k != "statements"}
        )
        for config in (before, after)
    )
    return {
        path: [was.get(path), now.get(path)]
        for path in sorted(was.keys() | now.keys())
        if was.get(path) != now.get(path)
    }


def find_run(store: Store, name: str) -> dict[str, Any]:
    """Returns the record of a finished run.

    Args:
      store: the store that the run wrote to.
      name: the study's name, for its newest run; if no study has it, the beginning of a run's full
        name.

    Raises:
      ConfigError: if there is no such run, listing the runs that exist.
      RecordError: if the record of the only such run cannot be read.
    """
    finished = [record for record in ended_run_records(store).values() if record["results"]]
    matching = runs_named(finished, name)
    if not matching:
        # The one that is meant may be one that cannot be read, whose error says more.
        for file in store.files.listing(RUNS):
            if file.startswith(name) and file.endswith(".json"):
                read_run(store.files, file.removesuffix(".json"))
        names = [record["run"] for record in finished]
        hint = did_you_mean(name, {*names, *(record["name"] for record in finished)}) or "."
        raise ConfigError(
            f"RUN must name a finished run, got {name!r}{hint} In {store.uri}: "
            f"{', '.join(names) or 'none yet'}."
        )
    return matching[0]


def runs_named(records: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the records of runs that ended and that a name stands for, the newest first.

    Args:
      records: records of runs, as `ended_run_records` has them.
      name: a study's name; if no study has it, the beginning of a run's full name.
    """
    records = list(records)
    of_study = [record for record in records if record["name"] == name]
    matching = of_study or [record for record in records if record["run"].startswith(name)]
    return sorted(matching, key=lambda record: record["finished"], reverse=True)


def describe_larger_run(records: Iterable[dict[str, Any]], name: str) -> str:
    """Returns a line where the newest run of a name hides a larger one; "" if it hides none.

        demo: its newest run is taken, demo-0c1d, with 1 seed, 24 scores; demo-9f0e of
        2026-11-27 22:10 UTC has 3 seeds, 72 scores: give demo-9f0e instead of demo for that one

    Args:
      records: records of the runs that the name could stand for.
      name: the name, as `runs_named` takes it.
    """
    matching = runs_named(records, name)
    if not matching or matching[0]["run"] == name:
        return ""
    newest, larger = matching[0], larger_run(matching)
    if larger is None:
        return ""
    run, text = larger
    return (
        f"{name}: its newest run is taken, {newest['run']}, with "
        f"{_sizes_text(_run_table_sizes(newest))}; "
        f"{run} {text}: give {run} instead of {name} for that one"
    )


def larger_run(runs: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Returns the full name of a run that is larger than the first, and what it has more of.

    It has more seeds, benchmarks, methods or scores; of several the one with most scores is meant.
    None if there is none.

    Args:
      runs: records of runs that ended; the first is compared with the others.
    """
    sizes = _run_table_sizes(runs[0])
    larger = [
        (record, more)
        for record in runs[1:]
        if (more := {what: n for what, n in _run_table_sizes(record).items() if n > sizes[what]})
    ]
    if not larger:
        return None
    other, more = max(larger, key=lambda pair: [*_run_table_sizes(pair[0]).values()])
    at = other["finished"][:16].replace("T", " ")
    return other["run"], f"of {at} UTC has {_sizes_text(more)}"


def _run_table_sizes(record: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many scores a run's table has, and what the run was to have; 0 for unknown."""
    config = record["config"]
    return {
        "score": record.get("headline", {}).get("cells", 0),
        "seed": config.get("num_seeds", 0) * config.get("num_pretrain_seeds", 1),
        "benchmark": len(config.get("transfers", ())),
        "method": len(config.get("methods", ())),
    }


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(counted(n, what) for what, n in sizes.items() if n)


def ended_run_records(store: Store) -> dict[str, dict[str, Any]]:
    """Returns full name -> record of every run that ended, however it did; see `run_records`."""
    records = run_records(store.files)
    return {name: record for name, record in records.items() if record["finished"]}


def artifact_place(what: str, name: str, store: str) -> str:
    """Returns the place that a path or an artifact's key names, for `open_stored_folder`.

    Of an artifact nothing is copied, and only small files are checked here: what is read in ranges
    has checksums that its readers check.

    Args:
      what: name of the argument in an error.
      name: path of a folder, or the beginning of an artifact's key.
      store: the artifact store; if there is none, `name` is returned as a path that may not exist.

    Raises:
      ConfigError: if the store exists and `name` is neither a folder nor one of its artifacts.
    """
    if Path(name).is_dir() or _no_store(store):
        return name
    try:
        return Store(store, make=False).resolve(name).uri
    except KeyError as error:
        raise ConfigError(
            f"{what} must be a folder or an artifact of {store}: {error.args[0]}"
        ) from None


def _no_store(store: str) -> str:
    """Returns ", and no store at PLACE" where there is no folder; "" where there may be a store."""
    is_there = "://" in store or Path(store).expanduser().is_dir()
    return "" if is_there else f", and no store at {store}"


def find_dataset(name: str, store: str) -> str:
    """Returns the place of a prepared dataset, given by its path, its artifact's key, or its name.

    The name is that of the step, as in "prepare web"; of several datasets, the newest is meant.

    Raises:
      ConfigError: if there is no such dataset.
    """
    from pipelines.records.dataset import DESCRIPTION  # Pillow and NumPy come with it.

    try:
        place = artifact_place("dataset", name, store)
    except ConfigError:
        if (named := _newest_dataset(Store(store, make=False), name)) is None:
            raise
        place = named.uri
    if not (open_stored_folder(place).local_folder(DESCRIPTION) / DESCRIPTION).is_file():
        raise ConfigError(
            f"dataset must be a prepared one, or its artifact, got {name}: no {DESCRIPTION} there"
            f"{_no_store(store)}; `parcel run --until prepare` makes it."
        )
    return place


def _newest_dataset(store: Store, name: str) -> Artifact | None:
    """Returns the newest dataset that a step of this name made; None if there is none."""
    from flows.steps.registry import KINDS  # The modules of all kinds come with it.

    kinds = [kind.name for kind in KINDS.values() if kind.holds == "dataset"]
    named = (
        artifact
        for kind in kinds
        for artifact in store.artifacts(kind)
        if artifact.manifest.name == name
    )
    return max(named, key=lambda artifact: artifact.manifest.started, default=None)


def results_artifact(store: Store, name: str) -> Artifact:
    """Returns the results artifact of a run.

    Raises:
      ConfigError: if there is no such run.
    """
    return store.get(find_run(store, name)["results"])
