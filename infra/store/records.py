"""Records of runs, and notes on accepted artifacts: what they name, `gc` does not delete.

<store>/runs/<name>-<id>.json       a run, from the moment it begins
        accepted/<key>-as-<code>    an artifact that a person keeps although its code changed

A record that cannot be read may name anything. So it is an error for `gc`, never an empty record;
whoever lists runs leaves it out, with a line that names it.
"""

import datetime
import functools
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from infra.errors import one_line
from infra.store.backend import FileStat, StoreBackend, map_reads
from infra.store.digest import value_sha256
from infra.store.manifest import KEY, validate_path
from infra.typed_json import parse_json

RUNS, ACCEPTED = "runs", "accepted"

PRUNED = "let_go"
"""Field of a run's record: keys of artifacts of which it keeps the manifest, but not the files."""

RECORD_FORMAT = 2
"""Format of the records that this version writes. Records of format 1, or without a number, are of
runs that ended, one for all runs with the same results; they are read as well."""

RUNNING = "running"
"""State of a run in its record until it ends, or somebody sees that its process is gone."""


class RecordError(ValueError):
    """A record, pin or lease cannot be read; the message is one line with its name and the cure."""

    def __init__(self, files: StoreBackend, name: str, reason: str) -> None:
        super().__init__(
            f"{files.uri}/{name} cannot be read: {reason}; restore it, or move it out of the "
            f"store: gc then deletes what it alone keeps."
        )


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and KEY.fullmatch(value) is not None


def _are_keys(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_key, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_record_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _is_time(value: Any) -> bool:
    try:
        return bool(datetime.datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


_RUN: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str), "text"),
    "results": (lambda value: value is None or _is_key(value), "a key or null"),
    "artifacts": (_are_keys, "a list of keys"),
    "finished": (lambda value: value is None or _is_time(value), "a time or null"),
    "failed": (_are_texts, "a list of texts"),
    "config": (_is_object, "an object"),
}
"""Field of a run's record -> its check, and what it accepts."""

_RUN_MORE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    PRUNED: (_are_keys, "a list of keys"),
    "given_up": (_are_texts, "a list of texts"),
    "began": (_is_time, "a time"),
    **dict.fromkeys(("given", "who", "note"), (lambda value: isinstance(value, str), "text")),
    "tags": (_are_texts, "a list of texts"),
    "promised": (
        lambda value: isinstance(value, list) and all(map(_is_object, value)),
        "a list of objects",
    ),
    "previous": (lambda value: value is None or _is_object(value), "an object or null"),
    "differs": (
        lambda value: (
            value is None or (_is_object(value) and all(map(_is_record_pair, value.values())))
        ),
        "an object of pairs, or null",
    ),
    "headline": (_is_object, "an object"),
    "flow_run_id": (lambda value: isinstance(value, str), "text"),
    "state": (lambda value: isinstance(value, str), "text"),
    "holes": (_are_texts, "a list of texts"),
    "made": (lambda value: isinstance(value, int), "a number"),
    "reused": (lambda value: isinstance(value, int), "a number"),
}
"""The same for fields that older records lack."""

_BEGINNING = ("name", "flow_run_id", "began", "previous")
"""Fields of a run's record that never change once it is written, but for `promised`."""

_CONFIG: Mapping[str, type] = {
    "num_seeds": int,
    "num_pretrain_seeds": int,
    "methods": list,
    "transfers": dict,
    "compute": dict,
}
"""Field of the config of a run's record -> its types, for those who list runs."""


def read_run(files: StoreBackend, run: str) -> dict[str, Any]:
    """Returns the record of a run, by its full name, which is added as `run`.

    Raises:
      FileNotFoundError: if there is none.
      RecordError: if it cannot be read.
      OSError: if the store does not answer.
    """
    name = f"{RUNS}/{run}.json"
    try:
        validate_path(name)
    except ValueError as error:  # No run has such a name: of another's folder, or too long.
        raise FileNotFoundError(f"there is no run of that name: {error}") from None
    record = _read_record(files, name)
    for field, (is_right, accepted) in {**_RUN, **_RUN_MORE}.items():
        if field not in record and field in _RUN_MORE:
            continue
        if field not in record:
            raise RecordError(files, name, f"it has no field {field!r}")
        if not is_right(record[field]):
            value = f"{json.dumps(record[field]):.40}"
            raise RecordError(files, name, f"{field} must be {accepted}, got {value}")
    if record.get("state") == RUNNING and "flow_run_id" not in record:
        raise RecordError(files, name, "a run under way must have a flow_run_id, got none")
    return {**record, "run": run}


def beginning_sha256(record: Mapping[str, Any]) -> str:
    """Returns the digest of what a run's record said when it began, by which the next names it.

    Of a sweep, whose record promises more seeds pass by pass, the first promise counts.
    """
    fields = {name: record[name] for name in _BEGINNING if name in record}
    return value_sha256({**fields, "promised": record.get("promised", [])[:1]})


def run_records(files: StoreBackend) -> dict[str, dict[str, Any]]:
    """Returns full name -> record of every run.

    One that cannot be read is left out, with a line on the standard error, once in a process.
    """
    runs = RunRecords(files)
    records = runs.read()
    for line in runs.unreadable:
        _warn_of_unreadable_run(line)
    return records


@functools.cache
def _warn_of_unreadable_run(line: str) -> None:
    print(f"parcel: {one_line(line)}", file=sys.stderr)


class RunRecords:
    """The records of a store's runs; every call reads only those that changed. Thread-safe.

    Args:
      files: the store's files.

    Attributes:
      unreadable: a line on each record that could not be read when all were read last, with the
        cure.
    """

    def __init__(self, files: StoreBackend) -> None:
        self._files = files
        self._known: dict[str, tuple[FileStat, dict[str, Any] | RecordError]] = {}
        self._lock = threading.Lock()
        self.unreadable: Sequence[str] = ()

    def read(self) -> dict[str, dict[str, Any]]:
        """Returns full name -> record of every run, but for those that cannot be read."""
        with self._lock:
            listing = self._files.listing(RUNS)
            stats = {n.removesuffix(".json"): s for n, s in listing.items() if n.endswith(".json")}
            known = self._known
            new = [n for n, stat in stats.items() if n not in known or known[n][0] != stat]
            records = map_reads(self._record_or_error, new)
            found = {name: (stats[name], record) for name, record in zip(new, records, strict=True)}
            self._known = {name: found.get(name) or known[name] for name in stats}
            now = {name: record for name, (_, record) in self._known.items()}
            self.unreadable = [str(each) for each in now.values() if isinstance(each, RecordError)]
            return {name: each for name, each in now.items() if isinstance(each, dict)}

    def _record_or_error(self, run: str) -> dict[str, Any] | RecordError:
        try:
            record = read_run(self._files, run)
        except RecordError as error:
            return error
        for field, kinds in _CONFIG.items():
            if not isinstance(value := record["config"].get(field, kinds()), kinds):
                reason = f"config.{field} is {json.dumps(value):.40}"
                return RecordError(self._files, f"{RUNS}/{run}.json", reason)
        return record


class References(NamedTuple):
    """What records name.

    Attributes:
      keys: keys of artifacts, named in any field, path or link.
      pruned: keys of artifacts of which only the manifest is to stay.
      unfinished: ids of the runs that have not ended; the process of some may be gone.
    """

    keys: set[str]
    pruned: set[str]
    unfinished: set[str]


def read_references(files: StoreBackend) -> References:
    """Returns the keys that records keep and prune, and the runs that have not ended.

    Raises:
      RecordError: if a record cannot be read.
      OSError: if the store does not answer.
    """
    referenced, pruned, unfinished = set[str](), set[str](), set[str]()
    # Every text in a record that looks like a key counts, in whatever field: a field that a later
    # version adds keeps its artifacts alive, too.
    names = [
        f"{folder}/{file_name}"
        for folder in (RUNS, ACCEPTED)
        for file_name in files.listing(folder)
    ]
    for record in map_reads(lambda name: _read_any(files, name), names):
        # Taken out first: these keys are named only to say that their files may go.
        if isinstance(record, dict):
            pruned |= set(record.pop(PRUNED, ()))
            if record.get("state") == RUNNING:
                unfinished.add(record["flow_run_id"])
        text = record if isinstance(record, str) else json.dumps(record)
        matches = [key.split("-") for key in KEY.findall(text)]
        # "lineage-results-…" matches as one key, and contains "results-…": add every ending.
        referenced |= {"-".join(parts[i:]) for parts in matches for i in range(len(parts))}
    return References(referenced, pruned, unfinished)


def _read_any(files: StoreBackend, name: str) -> dict[str, Any] | str:
    """Returns the record of a run, or a note of what was accepted; the text of any other file."""
    if not name.endswith(".json"):
        # Not ours. Perhaps somebody's copy of a record: what it names stays, too.
        return files.read(name).decode(errors="replace")
    if name.startswith(f"{RUNS}/"):
        return read_run(files, name.removeprefix(f"{RUNS}/").removesuffix(".json"))
    note = _read_record(files, name)
    if not _is_key(key := note.get("artifact")):
        raise RecordError(files, name, f"artifact must be a key, got {json.dumps(key):.40}")
    return note


def _read_record(files: StoreBackend, name: str) -> dict[str, Any]:
    try:
        data = files.read(name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OSError(f"{files.uri}/{name} could not be read: {error}; try it again.") from error
    try:
        record = parse_json(data, "it")
    except ValueError as error:
        raise RecordError(files, name, f"{error}".rstrip(".")) from None
    if not isinstance(record, dict):
        raise RecordError(files, name, f"it must be a JSON object, got {json.dumps(record):.40}")
    if (version := record.get("format", 1)) not in (1, RECORD_FORMAT):
        raise RecordError(
            files, name, f"format must be 1 or {RECORD_FORMAT} for this version, got {version!r}"
        )
    return record
