"""Garbage collection: the only thing that deletes artifacts.

An artifact stays if a run's record names it, if a run under way has pinned it, or one that died
before its record said how it ended; if a process is making it or working with it, if it is young,
or if any artifact that stays was made from it.
Progress, attempts without a commit, damaged artifacts that were set aside, and source trees are
deleted when they are old and nobody holds them.

A run's record can prune an artifact. Then only its files are deleted: the manifest stays for the
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
import uuid
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from infra.store.backend import MANIFESTS, FileStat, StoreBackend, map_reads
from infra.store.digest_check import forget_deleted
from infra.store.disk import PARTIAL
from infra.store.history import ARTIFACTS, AttemptNote, read_history
from infra.store.lease import LeaseView, acquire_lease, hold_lease, list_leases
from infra.store.lineage import inputs_first
from infra.store.manifest import KEY, Manifest
from infra.store.pins import GC_LEASE, PINS, list_pins, run_of_pin
from infra.store.records import RecordError, read_references
from infra.store.scratch import SCRATCH
from infra.store.sources import SOURCES
from infra.store.store import (
    ATTEMPTS,
    DELETIONS,
    JOBS,
    LEASES,
    QUARANTINE,
    UNDER_WAY,
    Artifact,
    Store,
    manifest_name,
    quarantine_name,
    tombstone_name,
)

_SCRATCH_SORTS = ("scratch", "copy of scratch")

_JOURNALS = "runs/ended"
"""Folder of the journals that `infra.prefect.journal` has settled, on this machine."""

_GRACE = 3600.0
"""Time after its lease lapsed during which a holder that cannot be seen counts as alive [s]."""

_PARTIAL_AGE = 3600.0
"""Age from which an unfinished record counts as given up [s]; writing one takes milliseconds."""


_JOB_AGE = 7 * 86400.0
"""Age of its last report from which a job is no longer assumed to wait for its turn [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Garbage:
    """Something that may be deleted.

    Attributes:
      sort: "artifact", "files" (of an artifact whose manifest stays), "set aside", "attempt",
        "scratch", "copy of scratch", "source", "job", "partial" or "journal".
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
    view = _StoreView(store, older_than)
    sorts = (
        view.unreachable_artifacts(),
        view.pruned_files(),
        view.old_quarantine(),
        view.dead_attempts(),
        view.idle_scratch(),
        view.unnamed_sources(),
    )
    others = view.old_jobs(), view.old_partials(), view.old_journals()
    return [item for sort in (*sorts, *others) for item in sort]


def delete_garbage(store: Store, *, older_than: float) -> list[Garbage]:
    """Deletes the garbage, safely beside running studies; returns what was deleted.

    Args:
      store: the store.
      older_than: as in `find_garbage` [s].

    Raises:
      OSError, ValueError: as in `find_garbage`; nothing is deleted then.
      RuntimeError: if this process was stopped for so long that a run took the lease.
    """
    # Mark, hide, check, sweep:
    #
    #              while gc holds the lease                    after it
    #   artifact   manifests/<k>  --moved-->  aside/<k>.<id>   aside/ deleted, then attempts/<id>
    #   a run      waits to pin                                pins, looks up: a miss; makes it anew
    #
    # A run pins a key before it looks the key up, and pinning needs the same lease. So either gc
    # has seen the pin and keeps the artifact, or the run looks after the manifest has moved. It
    # never relies on an artifact whose files then go.
    #
    # All runs wait for that lease, so what takes a request per artifact is done before it: reading
    # the manifests, and judging what is looked at once more when it is deleted.
    first_view = _StoreView(store, older_than)
    candidates = [
        *first_view.old_quarantine(),
        *first_view.dead_attempts(),
        *first_view.idle_scratch(),
        *first_view.old_jobs(),
        *first_view.old_partials(),
        *first_view.old_journals(),
    ]
    prunable = list(first_view.pruned_files())
    with hold_lease(store.volatile, GC_LEASE) as deciding:
        view = _StoreView(store, older_than, read_before=first_view.manifests)
        pruned = [item for item in prunable if item.name in view.prunable_keys]
        sources = list(view.unnamed_sources())
        # Last under the lease, so that nothing slow lies between the first move and the check
        # below.
        spare = list(view.unreachable_artifacts())
        if spare or pruned:  # Before the first is deleted: snapshots of before are out of date.
            store.files.put(DELETIONS, UNDER_WAY)
        hidden_artifacts = [item for item in spare if _hide_manifest(store, item)]
        # A gc that was stopped (a laptop's lid) may have lost the lease without knowing, and a run
        # may have pinned meanwhile what was just hidden. Hidden manifests can still be put back.
        if not deciding.renew():
            for item in hidden_artifacts:
                _restore_manifest(store, item)
            raise RuntimeError("gc was stopped for too long and put everything back; run it again.")
        for item in sources:  # Under the lease, so that no run begins and stores its source.
            store.files.remove(item.path)
        for item in pruned:  # Under the lease, too. A reader finds the whole artifact or a note.
            store.files.create_if_absent(tombstone_name(store.get(item.name)), b"")
            store.files.remove(item.path)
        if spare or pruned:  # After the last: so are those that were taken meanwhile.
            store.files.put(DELETIONS, uuid.uuid4().bytes)  # Other bytes are another version.
    # What dead processes left. The text that was judged is named, so that a lease which was taken
    # over since then stays. So do the pins of a run that died: only they name what it made.
    for folder in (PINS, LEASES):
        for lease in list_leases(store.volatile, folder):
            if folder == PINS and run_of_pin(lease) in view.unfinished_runs:
                continue
            if not lease.is_live(_GRACE):
                store.volatile.compare_and_delete(f"{folder}/{lease.key}.json", lease.text)
    spares = [item for item in (*hidden_artifacts, *candidates) if _delete_data(store, item)]
    forget_deleted(store.state)
    return sources + pruned + spares


class _StoreView:
    """The store at one moment, divided into what is needed and what is not.

    Pins, leases and records, which keep things alive, are read first and the manifests last. A run
    writes its record before it gives up its pin, and a step its manifest before its lease. So each
    run and step is seen at least once.
    """

    def __init__(
        self,
        store: Store,
        older_than: float,
        read_before: Mapping[str, tuple[FileStat, Artifact]] = MappingProxyType({}),
    ) -> None:
        self._store, self._older_than = store, older_than
        self._now = store.files.now()
        # The order matters, since runs and steps go on while this reads:
        #
        #   a run    pin ............ record written, pin released
        #   a step   lease .......... manifest written, lease released
        #   gc            reads pins, leases     records     manifests
        #
        # Whoever finished between two reads is seen by the later one; nobody falls between them.
        all_pins, pins = list_pins(store.volatile), _live_leases(store, PINS)
        self._leased_keys = {view.key for view in _live_leases(store, LEASES)}
        self._is_idle = not pins and not self._leased_keys
        roots = {key for view in pins for key in view.lease.keys} | self._leased_keys
        # A step under way has no manifest yet that would name its inputs: the notes of its attempts
        # do.
        for notes in map_reads(lambda key: _attempts_of(store, key), self._leased_keys):
            roots.update(*(note.inputs for note in notes))
        referenced, self._pruned, self.unfinished_runs = read_references(store.files)
        roots |= referenced
        # What a run made that died before it could name it in its record, its pins name. Its
        # journal would add nothing: that names nodes and no keys, and is on the run's own machine.
        # A key is pinned before it is looked up or made, so there is none that only a journal knew.
        roots.update(*(p.lease.keys for p in all_pins if run_of_pin(p) in self.unfinished_runs))
        self._quarantined = store.quarantined()
        folders = [QUARANTINE, *(f"{MANIFESTS}/{kind}" for kind in store.files.folders(MANIFESTS))]
        self._manifest_stats = {
            f"{folder}/{name}": stat
            for folder in folders
            for name, stat in store.files.listing(folder).items()
        }
        self.manifests = dict[str, tuple[FileStat, Artifact]]()
        unread = dict[str, FileStat]()
        for name, stat in self._manifest_stats.items():
            folder, _, file_name = name.rpartition("/")
            key = file_name.removesuffix(".json")
            if folder == QUARANTINE:
                continue
            # Listed is enough for one that was read before and is the same file.
            if key in read_before and read_before[key][0] == stat:
                self.manifests[key] = read_before[key]
            else:
                unread[key] = stat
        for key, artifact in zip(
            unread, map_reads(self._get_artifact_or_none, unread), strict=True
        ):
            if artifact is not None:
                self.manifests[key] = unread[key], artifact
        self._artifacts = {key: artifact for key, (_, artifact) in self.manifests.items()}
        # The young ones stay, too, whoever made them.
        roots |= {key for key in self._artifacts if not self._is_old(manifest_name(key))}
        # Files that one run prunes stay as long as anything else names the artifact itself.
        self._pruned -= roots
        self._reachable = _with_ancestors(roots, self._artifacts)

    def _get_artifact_or_none(self, key: str) -> Artifact | None:
        """Returns an artifact; None if it was deleted since it was listed."""
        with contextlib.suppress(KeyError):
            return self._store.get(key)
        return None

    def unreachable_artifacts(self) -> Iterator[Garbage]:
        """Yields artifacts that nothing needs, each before those that it was made from.

        So if gc is killed, every artifact that is left still has its whole history.
        """
        spare = {
            key: artifact for key, artifact in self._artifacts.items() if key not in self._reachable
        }
        inputs = {
            key: {entry.key for entry in artifact.manifest.inputs.values()} & spare.keys()
            for key, artifact in spare.items()
        }
        # Products before inputs. In results <- predictions <- checkpoint, results goes first: if gc
        # is killed then, the checkpoint and the predictions still have everything they came from.
        for key in reversed(inputs_first(inputs)):
            yield self._artifact_garbage("artifact", spare[key], manifest_name(key))

    @property
    def prunable_keys(self) -> set[str]:
        """Keys of the artifacts of which only the manifest is needed."""
        return self._pruned & self._reachable & self._artifacts.keys()

    def pruned_files(self) -> Iterator[Garbage]:
        """Yields artifacts that runs prune, and that stay for those that were made from them.

        Their files are deleted and their manifests stay.
        """
        for key in sorted(self.prunable_keys):
            if self._store.has_all_files(self._artifacts[key]):
                yield self._artifact_garbage("files", self._artifacts[key], manifest_name(key))

    def old_quarantine(self) -> Iterator[Garbage]:
        """Yields damaged artifacts that were replaced, once their records are old."""
        in_place = {artifact.folder for artifact in self._artifacts.values()}
        for name, artifact in self._quarantined.items():
            if artifact.folder in in_place or artifact.key in self._leased_keys:
                continue  # It is in place, too, if the process that set it aside was killed.
            if self._is_old(name):
                yield self._artifact_garbage("set aside", artifact, name)

    def dead_attempts(self) -> Iterator[Garbage]:
        """Yields folders of attempts that no manifest names and nobody writes to."""
        artifacts = (*self._artifacts.values(), *self._quarantined.values())
        committed = {artifact.folder for artifact in artifacts}
        folders_by_key = self._attempt_folders()
        # Of all keys, although few have an attempt without a commit: any history that cannot be
        # read stops gc.
        running = map_reads(lambda key: _running_attempts(self._store, key), folders_by_key)
        for (key, folders), attempts in zip(folders_by_key.items(), running, strict=True):
            for folder in folders:
                if folder not in committed and folder.rpartition("/")[2] not in attempts:
                    yield from self._if_unleased("attempt", folder, key)

    def _attempt_folders(self) -> dict[str, list[str]]:
        """Returns key -> the folders of its attempts, whether committed or not."""
        files, folders = self._store.files, dict[str, list[str]]()
        if not self._store.is_remote:
            for key in filter(KEY.fullmatch, files.folders(ARTIFACTS)):
                parent = f"{ARTIFACTS}/{key}/{ATTEMPTS}"
                folders[key] = [f"{parent}/{name}" for name in files.folders(parent)]
            return folders
        # A bucket gives a thousand names per request, so all files are listed at once:
        # <key>/attempts/<attempt>/…
        attempts = dict[tuple[str, str], None]()
        for name, _ in files.walk(ARTIFACTS):
            match name.split("/", 3):
                case [key, folder, attempt, _] if folder == ATTEMPTS and KEY.fullmatch(key):
                    attempts[key, attempt] = None
                case _:
                    pass
        for key, attempt in attempts:
            folders.setdefault(key, []).append(f"{ARTIFACTS}/{key}/{ATTEMPTS}/{attempt}")
        return folders

    def idle_scratch(self) -> Iterator[Garbage]:
        """Yields resumable progress that no process holds."""
        for key in self._store.node_local.folders(SCRATCH):
            yield from self._if_unleased("scratch", f"{SCRATCH}/{key}", key)
        if self._store.is_remote:
            for key in self._store.files.folders(SCRATCH):
                yield from self._if_unleased("copy of scratch", f"{SCRATCH}/{key}", key)

    def unnamed_sources(self) -> Iterator[Garbage]:
        """Yields files of source trees that no manifest names.

        A run stores its source before its first manifest names it, so none are deleted while
        anything runs.
        """
        if not self._is_idle:
            return
        artifacts = (*self._artifacts.values(), *self._quarantined.values())
        sources_in_use: set[str] = set()
        # A manifest names the listing of its tree, and the listing the files: both are in use.
        for listing in {artifact.manifest.source for artifact in artifacts} - {""}:
            with contextlib.suppress(KeyError):  # A lost listing names no files.
                sources_in_use |= {listing, *self._store.open_source(listing).digests.values()}
        for name in self._store.files.listing(SOURCES):
            if name not in sources_in_use:
                yield from self._if_old("source", f"{SOURCES}/{name}", name)

    def old_jobs(self) -> Iterator[Garbage]:
        """Yields the folders of jobs; a young job may still wait for its turn."""
        for name in self._store.files.folders(JOBS):
            if self._stored_file_age(self._store.files.total_stat(f"{JOBS}/{name}")) >= _JOB_AGE:
                yield from self._if_old("job", f"{JOBS}/{name}", name)

    def old_partials(self) -> Iterator[Garbage]:
        """Yields records whose writer was killed."""
        for name in self._store.files.listing(PARTIAL):
            stat = self._store.files.total_stat(f"{PARTIAL}/{name}")
            if self._stored_file_age(stat) >= _PARTIAL_AGE:
                yield from self._if_old("partial", f"{PARTIAL}/{name}", name)

    def old_journals(self) -> Iterator[Garbage]:
        """Yields the journals of runs whose rows agree with them; nothing reads these any more."""
        for name in self._store.node_local.listing(_JOURNALS):
            yield from self._if_old("journal", f"{_JOURNALS}/{name}", name)

    def _if_unleased(self, sort: str, path: str, key: str) -> Iterator[Garbage]:
        if key not in self._leased_keys:
            yield from self._if_old(sort, path, key)

    def _if_old(self, sort: str, path: str, name: str) -> Iterator[Garbage]:
        stat = _backend_of(self._store, sort).total_stat(path)
        age = self._stored_file_age(stat)
        if age >= self._older_than:
            yield Garbage(sort=sort, name=name, size=stat.size, age=age, path=path)

    def _artifact_garbage(self, sort: str, artifact: Artifact, record: str) -> Garbage:
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
        return (
            self._stored_file_age(self._manifest_stats[record])
            if record in self._manifest_stats
            else 0.0
        )

    def _stored_file_age(self, stat: FileStat) -> float:
        return _stored_file_age(self._now, stat)


def _with_ancestors(roots: Iterable[str], artifacts: Mapping[str, Artifact]) -> set[str]:
    """Returns the keys, and those of all artifacts that they were made from."""
    reachable: set[str] = set()
    # The mark of mark and sweep: a record names the results only, and
    #
    #   results -> predictions -> checkpoint -> dataset -> files
    #
    # are all reached from there.
    pending = list(roots)
    while pending:
        key = pending.pop()
        if key not in reachable:
            reachable.add(key)
            if key in artifacts:
                pending += [entry.key for entry in artifacts[key].manifest.inputs.values()]
    return reachable


def _stored_file_age(now: int, stat: FileStat) -> float:
    """Returns the time since something was last written [s]; `now` in [ns]."""
    return max(0, now - stat.modified) / 1e9


def _backend_of(store: Store, sort: str) -> StoreBackend:
    """Returns the files with a sort of garbage: progress is on this machine, all else stored."""
    return store.node_local if sort in ("scratch", "journal") else store.files


def _live_leases(store: Store, folder: str) -> list[LeaseView]:
    """Returns the pins, or leases, whose holders may be alive.

    Raises:
      RecordError: if one of them cannot be read, since nobody knows what it holds.
    """
    leases = [view for view in list_leases(store.volatile, folder) if view.is_live(_GRACE)]
    for view in leases:
        if not view.lease.is_known:
            raise RecordError(
                store.volatile, f"{folder}/{view.key}.json", f"no lease, and {view.age:.0f} s old"
            )
    return leases


def _attempts_of(store: Store, key: str) -> list[AttemptNote]:
    """Returns the attempts at a key.

    Raises:
      RecordError: if one cannot be read, since nobody knows what it reads and whether it is over.
    """
    notes, unreadable = read_history(store.files, key)
    if unreadable:
        raise RecordError(store.files, unreadable[0], "it is not the note of an attempt")
    return notes


def _running_attempts(store: Store, key: str) -> set[str]:
    """Returns the attempts at a key that a process of this machine is seen to write to.

    Those of others, on another machine or hidden, are protected by their lease instead.
    """
    return {
        note.id for note in _attempts_of(store, key) if note.holder.is_running and not note.ended
    }


def _hide_manifest(store: Store, item: Garbage) -> bool:
    """Moves an artifact's manifest aside unless it was replaced; returns whether it did."""
    name = manifest_name(item.name)
    try:
        text = store.files.read(name)
    except FileNotFoundError:
        return False
    if not item.path.endswith(f"/{Manifest.from_json(text.decode()).attempt}"):
        return False
    # Written there before it is deleted here: killed in between, gc leaves it in both places, and
    # the artifact is a hit as before (`old_quarantine` skips it).
    return store.files.create_if_absent(
        _quarantine_record(item), text
    ) and store.files.compare_and_delete(name, text)


def _restore_manifest(store: Store, item: Garbage) -> None:
    name = manifest_name(item.name)
    text = store.files.read(_quarantine_record(item))
    if store.files.create_if_absent(name, text):
        store.files.compare_and_delete(_quarantine_record(item), text)


def _delete_data(store: Store, item: Garbage) -> bool:
    """Deletes data after another check that they may go; returns whether it did."""
    backend = _backend_of(store, item.sort)
    # These have no key that anybody could hold.
    if item.sort in ("partial", "job", "journal"):
        backend.remove(item.path)
        return True
    # The lease of the step, as its makers hold it: nobody begins an attempt at this key while its
    # old files are deleted.
    lease = acquire_lease(store.volatile, f"{LEASES}/{item.name}.json", keep_waiting=lambda: False)
    if lease is None:
        return False  # A process has started on it: leave it to the next gc.
    try:
        # A holder may have come and gone since the marking. Then its work is younger than what was
        # judged, and stays.
        is_work = item.sort in ("attempt", *_SCRATCH_SORTS)
        if is_work and _stored_file_age(backend.now(), backend.total_stat(item.path)) < item.age:
            return False  # It was written to since.
        if item.sort in _SCRATCH_SORTS:
            backend.remove(item.path)
            return True
        return _delete_attempt_folder(store, item)
    finally:
        lease.release()


def _delete_attempt_folder(store: Store, item: Garbage) -> bool:
    """Deletes an attempt's folder unless a manifest names it; the caller holds its key."""
    protected = set[str]()
    if item.sort == "attempt":
        # Looked up before the manifests: an attempt that has just stopped may have committed.
        protected |= _running_attempts(store, item.name)
    else:
        # The record goes first: if gc is killed here, it leaves an attempt that no manifest names.
        with contextlib.suppress(FileNotFoundError):
            store.files.compare_and_delete(
                _quarantine_record(item), store.files.read(_quarantine_record(item))
            )
    protected |= (named_attempts := store.named_attempts(item.name))
    if item.path.rpartition("/")[2] in protected:
        return False
    store.files.remove(item.path)
    if not named_attempts and not store.files.folders(f"{ARTIFACTS}/{item.name}/{ATTEMPTS}"):
        store.files.remove(f"{ARTIFACTS}/{item.name}")  # Its history is all that is left.
    return True


def _quarantine_record(item: Garbage) -> str:
    return quarantine_name(item.name, item.path.rpartition("/")[2])
