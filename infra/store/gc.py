"""Garbage collection: the only thing that deletes artifacts.

An artifact stays if a run's record names it, if a run under way has pinned it, if a process is
making it or working with it, if it is young, or if any artifact that stays was made from it.
Progress, attempts without a commit, damaged artifacts that were set aside, and source trees are
deleted when they are old and nobody holds them.

A run's record can let an artifact go. Then only its files are deleted: the manifest stays for the
lineage of artifacts that were made from it, and a note says that it was not damaged.

A record, pin, lease, history or manifest that cannot be read stops gc before it deletes anything,
since all that it names would look like garbage.

gc is safe beside a running study. The study pins an artifact before it looks it up (see `pins`),
and both pinning and choosing what to delete need the same lease. While gc has the lease, it only
moves manifests out of the way; then it checks that nobody took the lease meanwhile, or else puts
them back. Data are deleted last, when no manifest has named them for a while. So a hit that a run
relies on is never deleted, and a gc that is killed half-way leaves whole artifacts or garbage,
never half an artifact.
"""

import contextlib
import dataclasses
import graphlib
from collections.abc import Iterable, Iterator, Mapping

from infra.store.backend import MANIFESTS, FileStat, StoreBackend
from infra.store.disk import PARTIAL
from infra.store.history import ARTIFACTS, Begun, read_history
from infra.store.lease import LeaseView, acquire_lease, hold_lease, list_leases
from infra.store.manifest import KEY, Manifest
from infra.store.pins import GC_LEASE, PINS
from infra.store.records import RecordError, named_keys
from infra.store.scratch import SCRATCH
from infra.store.sources import SOURCES
from infra.store.store import (
    ASIDE,
    ATTEMPTS,
    JOBS,
    LEASES,
    Artifact,
    Store,
    aside_name,
    gone_name,
    manifest_name,
)

_PROGRESS = ("scratch", "copy of scratch")

_GRACE = 3600.0
"""Time after its lease lapsed during which a holder on another machine counts as alive [s]."""

_PARTIAL_AGE = 3600.0
"""Age from which an unfinished record counts as given up [s]; writing one takes milliseconds."""


_JOB_AGE = 7 * 86400.0
"""Age of its last report from which a job is no longer assumed to wait for its turn [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Garbage:
    """Something that may be deleted.

    Attributes:
      sort: "artifact", "files" (of an artifact whose manifest stays), "set aside", "attempt",
        "scratch", "copy of scratch", "source", "job" or "partial".
      name: the artifact's key, or the file's name.
      title: name for people: the step's name, if it is known.
      size: size of its data [bytes].
      age: time since it was last written [s].
      path: path of its data below the store.
    """

    sort: str
    name: str
    title: str = ""
    size: int
    age: float
    path: str


def find_garbage(store: Store, *, older_than: float) -> list[Garbage]:
    """Returns the garbage, without changing anything.

    Args:
      store: the store.
      older_than: age below which everything stays [s].

    Raises:
      OSError, ValueError: if a record cannot be read, since all it names would look like garbage.
    """
    view = _View(store, older_than)
    every = (
        view.artifacts(),
        view.files(),
        view.aside(),
        view.attempts(),
        view.scratch(),
        view.sources(),
    )
    return [found for sort in (*every, view.jobs(), view.partials()) for found in sort]


def delete_garbage(store: Store, *, older_than: float) -> list[Garbage]:
    """Deletes the garbage, safely beside running studies; returns what was deleted.

    Args:
      store: the store.
      older_than: as in `find_garbage` [s].

    Raises:
      OSError, ValueError: as in `find_garbage`; nothing is deleted then.
      RuntimeError: if this process was stopped for so long that a run took the lease.
    """
    with hold_lease(store.volatile, GC_LEASE) as deciding:
        view = _View(store, older_than)
        rest = [*view.aside(), *view.attempts(), *view.scratch(), *view.jobs(), *view.partials()]
        loose, let_go = list(view.sources()), list(view.files())
        hidden = [found for found in view.artifacts() if _hide(store, found)]
        if not deciding.renew():
            for found in hidden:
                _restore(store, found)
            raise RuntimeError("gc was stopped for too long and put everything back; run it again.")
        for found in loose:  # Under the lease, so that no run begins and stores its source.
            store.files.remove(found.path)
        for found in let_go:  # Under the lease, too. A reader finds the whole artifact or a note.
            store.files.create_if_absent(gone_name(store.get(found.name)), b"")
            store.files.remove(found.path)
    for folder in (PINS, LEASES):
        for held in list_leases(store.volatile, folder):
            if not held.is_live(_GRACE):
                store.volatile.compare_and_delete(f"{folder}/{held.key}.json", held.text)
    return loose + let_go + [found for found in (*hidden, *rest) if _remove(store, found)]


class _View:
    """The store at one moment, divided into what is needed and what is not.

    Pins, leases and records, which keep things alive, are read first and the manifests last. A run
    writes its record before it gives up its pin, and a step its manifest before its lease. So each
    run and step is seen at least once.
    """

    def __init__(self, store: Store, older_than: float) -> None:
        self._store, self._older_than = store, older_than
        self._now = store.files.now()
        pinned = _live(store, PINS)
        self._busy = {held.key for held in _live(store, LEASES)}
        self._is_idle = not pinned and not self._busy
        roots = {key for held in pinned for key in held.lease.keys} | self._busy
        for key in self._busy:
            roots.update(*(begun.inputs for begun in _history(store, key)))
        named, self._let_go = named_keys(store.files)
        roots |= named
        self._set_aside = store.aside()
        self._made = {artifact.key: artifact for artifact in store.artifacts()}
        folders = [ASIDE, *(f"{MANIFESTS}/{kind}" for kind in store.files.folders(MANIFESTS))]
        self._records = {
            f"{folder}/{name}": stat
            for folder in folders
            for name, stat in store.files.listing(folder).items()
        }
        roots |= {key for key in self._made if not self._is_old(manifest_name(key))}
        self._let_go -= roots
        self._needed = _with_inputs(roots, self._made)

    def artifacts(self) -> Iterator[Garbage]:
        """Yields artifacts that nothing needs, each before those that it was made from.

        So if gc is killed, every artifact that is left still has its whole history.
        """
        spare = {key: made for key, made in self._made.items() if key not in self._needed}
        inputs = {
            key: {entry.key for entry in made.manifest.inputs.values()} & spare.keys()
            for key, made in spare.items()
        }
        for key in reversed([*graphlib.TopologicalSorter(inputs).static_order()]):
            yield self._artifact("artifact", spare[key], manifest_name(key))

    def files(self) -> Iterator[Garbage]:
        """Yields artifacts that runs let go, and that stay for those that were made from them.

        Their files are deleted and their manifests stay.
        """
        for key in sorted(self._let_go & self._needed & self._made.keys()):
            if self._store.has_all_files(self._made[key]):
                yield self._artifact("files", self._made[key], manifest_name(key))

    def aside(self) -> Iterator[Garbage]:
        """Yields artifacts that were set aside."""
        in_place = {artifact.folder for artifact in self._made.values()}
        for name, artifact in self._set_aside.items():
            if artifact.folder in in_place or artifact.key in self._busy:
                continue  # It is in place, too, if the process that set it aside was killed.
            if self._is_old(name):
                yield self._artifact("set aside", artifact, name)

    def attempts(self) -> Iterator[Garbage]:
        """Yields folders of attempts that no manifest names and nobody writes to."""
        every = (*self._made.values(), *self._set_aside.values())
        named = {artifact.folder for artifact in every}
        for key in filter(KEY.fullmatch, self._store.files.folders(ARTIFACTS)):
            alive = _at_work(self._store, key)
            folder = f"{ARTIFACTS}/{key}/{ATTEMPTS}"
            for name in self._store.files.folders(folder):
                if f"{folder}/{name}" not in named and name not in alive:
                    yield from self._unless_busy("attempt", f"{folder}/{name}", key)

    def scratch(self) -> Iterator[Garbage]:
        """Yields resumable progress that no process holds."""
        for key in self._store.node_local.folders(SCRATCH):
            yield from self._unless_busy("scratch", f"{SCRATCH}/{key}", key)
        if self._store.is_remote:
            for key in self._store.files.folders(SCRATCH):
                yield from self._unless_busy("copy of scratch", f"{SCRATCH}/{key}", key)

    def sources(self) -> Iterator[Garbage]:
        """Yields files of source trees that no manifest names.

        A run stores its source before its first manifest names it, so none are deleted while
        anything runs.
        """
        if not self._is_idle:
            return
        every = (*self._made.values(), *self._set_aside.values())
        used: set[str] = set()
        for listing in {artifact.manifest.source for artifact in every} - {""}:
            with contextlib.suppress(KeyError):  # A lost listing names no files.
                used |= {listing, *self._store.open_source(listing).digests.values()}
        for name in self._store.files.listing(SOURCES):
            if name not in used:
                yield from self._old("source", f"{SOURCES}/{name}", name)

    def jobs(self) -> Iterator[Garbage]:
        """Yields the folders of jobs; a young job may still wait for its turn."""
        for name in self._store.files.folders(JOBS):
            if self._age(self._store.files.total_stat(f"{JOBS}/{name}")) >= _JOB_AGE:
                yield from self._old("job", f"{JOBS}/{name}", name)

    def partials(self) -> Iterator[Garbage]:
        """Yields records whose writer was killed."""
        for name in self._store.files.listing(PARTIAL):
            stat = self._store.files.total_stat(f"{PARTIAL}/{name}")
            if self._age(stat) >= _PARTIAL_AGE:
                yield from self._old("partial", f"{PARTIAL}/{name}", name)

    def _unless_busy(self, sort: str, path: str, key: str) -> Iterator[Garbage]:
        if key not in self._busy:
            yield from self._old(sort, path, key)

    def _old(self, sort: str, path: str, name: str) -> Iterator[Garbage]:
        stat = _place(self._store, sort).total_stat(path)
        age = self._age(stat)
        if age >= self._older_than:
            yield Garbage(sort=sort, name=name, size=stat.size, age=age, path=path)

    def _artifact(self, sort: str, artifact: Artifact, record: str) -> Garbage:
        return Garbage(
            sort=sort,
            name=artifact.key,
            title=artifact.manifest.name,
            size=sum(file.size for file in artifact.manifest.files.values()),
            age=self._age_of(record),
            path=artifact.folder,
        )

    def _is_old(self, record: str) -> bool:
        return self._age_of(record) >= self._older_than

    def _age_of(self, record: str) -> float:
        """Returns the age of a manifest [s]; 0 if it was deleted meanwhile."""
        return self._age(self._records[record]) if record in self._records else 0.0

    def _age(self, stat: FileStat) -> float:
        return _age(self._now, stat)


def _with_inputs(roots: Iterable[str], made: Mapping[str, Artifact]) -> set[str]:
    """Returns the keys, and those of all artifacts that they were made from."""
    needed: set[str] = set()
    waiting = list(roots)
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed.add(key)
            if key in made:
                waiting += [entry.key for entry in made[key].manifest.inputs.values()]
    return needed


def _age(now: int, stat: FileStat) -> float:
    """Returns the time since something was last written [s]; `now` in [ns]."""
    return max(0, now - stat.modified) / 1e9


def _place(store: Store, sort: str) -> StoreBackend:
    """Returns the files with a sort of garbage: progress is on this machine, all else stored."""
    return store.node_local if sort == "scratch" else store.files


def _live(store: Store, folder: str) -> list[LeaseView]:
    """Returns the pins, or leases, whose holders may be alive.

    Raises:
      RecordError: if one of them cannot be read, since nobody knows what it holds.
    """
    live = [held for held in list_leases(store.volatile, folder) if held.is_live(_GRACE)]
    for held in live:
        if not held.lease.is_known:
            raise RecordError(
                store.volatile, f"{folder}/{held.key}.json", f"no lease, and {held.age:.0f} s old"
            )
    return live


def _history(store: Store, key: str) -> list[Begun]:
    """Returns the attempts at a key.

    Raises:
      RecordError: if one cannot be read, since nobody knows what it reads and whether it is over.
    """
    every, unknown = read_history(store.files, key)
    if unknown:
        raise RecordError(store.files, unknown[0], "it is not the note of an attempt")
    return every


def _at_work(store: Store, key: str) -> set[str]:
    """Returns the attempts at a key that a process of this machine writes to.

    Attempts on another machine are protected by their lease instead.
    """
    return {
        begun.id
        for begun in _history(store, key)
        if begun.holder.is_on_this_machine and not begun.is_over
    }


def _hide(store: Store, found: Garbage) -> bool:
    """Moves an artifact's manifest aside unless it was replaced; returns whether it did."""
    place = manifest_name(found.name)
    try:
        text = store.files.read(place)
    except FileNotFoundError:
        return False
    if not found.path.endswith(f"/{Manifest.from_json(text.decode()).attempt}"):
        return False
    return store.files.create_if_absent(_aside(found), text) and store.files.compare_and_delete(
        place, text
    )


def _restore(store: Store, found: Garbage) -> None:
    place = manifest_name(found.name)
    text = store.files.read(_aside(found))
    if store.files.create_if_absent(place, text):
        store.files.compare_and_delete(_aside(found), text)


def _remove(store: Store, found: Garbage) -> bool:
    """Deletes data after another check that they may go; returns whether it did."""
    place = _place(store, found.sort)
    if found.sort in ("partial", "job"):
        place.remove(found.path)
        return True
    held = acquire_lease(store.volatile, f"{LEASES}/{found.name}.json", keep_waiting=lambda: False)
    if held is None:
        return False  # A process has started on it: leave it to the next gc.
    try:
        is_work = found.sort in ("attempt", *_PROGRESS)
        if is_work and _age(place.now(), place.total_stat(found.path)) < found.age:
            return False  # It was written to since.
        if found.sort in _PROGRESS:
            place.remove(found.path)
            return True
        return _remove_attempt(store, found)
    finally:
        held.release()


def _remove_attempt(store: Store, found: Garbage) -> bool:
    """Deletes an attempt's folder unless a manifest names it; the caller holds its key."""
    kept = set[str]()
    if found.sort == "attempt":
        # Looked up before the manifests: an attempt that has just stopped may have committed.
        kept |= _at_work(store, found.name)
    else:
        # The record goes first: if gc is killed here, it leaves an attempt that no manifest names.
        with contextlib.suppress(FileNotFoundError):
            store.files.compare_and_delete(_aside(found), store.files.read(_aside(found)))
    kept |= (named := store.named_attempts(found.name))
    if found.path.rpartition("/")[2] in kept:
        return False
    store.files.remove(found.path)
    if not named and not store.files.folders(f"{ARTIFACTS}/{found.name}/{ATTEMPTS}"):
        store.files.remove(f"{ARTIFACTS}/{found.name}")  # Its history is all that is left.
    return True


def _aside(found: Garbage) -> str:
    return aside_name(found.name, found.path.rpartition("/")[2])
