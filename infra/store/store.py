"""The artifact store: attempts are private, a manifest makes one public.

<store>/store.json                       the number of this layout
        manifests/<kind>/<key>.json      the commit point, created once; flat, so that a run's hits
                                         cost one listing per kind
        artifacts/<key>/attempts/<id>/…  files of one attempt
        artifacts/<key>/history/<id>.json every attempt ever begun (see `history`)
        aside/<key>.<id>.json            manifests whose artifact was damaged and made again
        leases/<key>.json                which process works on a step (see `lease`)
        pins/<run>.json                  what a run under way relies on (see `pins`)
        sources/<sha256>                 the source tree of every run, file by file
        runs/…                           what each run asked for and got
        comparisons/<study>/<k>.json     what sweeps of a study compared, until decided
        gone/<key>.<id>                  tombstones: gc deleted the files, not the manifest
        gc.json                          lease for changing pins, or deciding what gc deletes
        scratch/…                        copies of progress (see `scratch`)
        jobs/…                           orders and reports of jobs on a cluster; deleted when old
        deletions                        written anew before and after gc deletes artifacts
<state>/scratch/<key>/<holding>/…        resumable progress of a step under way
        cache/…                          compiled programs, copies of artifacts; safe to delete
        first_reads.<host>.sqlite        files whose digests were checked there (see `digest_check`)

<store> is a folder or a bucket's prefix, behind the same operations (see `backend`). <state> is a
folder on this machine: the store itself if that is a folder.

The holder of a step deletes its own scratch, and folders of attempts whose process has ended and
that no manifest names. Everything else is deleted by `gc` only.
"""

import contextlib
import copy
import datetime
import json
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.processes.identity import ProcessIdentity
from infra.store import sources
from infra.store.backend import (
    BUCKET_SCHEME,
    MANIFESTS,
    ByteSource,
    Receipt,
    StoreBackend,
    StoredDamageError,
)
from infra.store.digest import file_sha256, listing_sha256
from infra.store.digest_check import DamagedArtifactError, check_first_read, move_aside, set_aside
from infra.store.disk import Disk
from infra.store.environment import execution_environment
from infra.store.history import (
    ARTIFACTS,
    AttemptNote,
    AttemptRecord,
    list_attempts,
)
from infra.store.lease import LEASE_TTL, LeaseView, acquire_lease, hold_lease, list_leases
from infra.store.manifest import (
    LABELS,
    File,
    Input,
    Manifest,
    Recipe,
    kind_of_key,
    validate_key,
    validate_path,
)
from infra.store.pins import Pin, pin_run
from infra.store.scratch import Scratch
from infra.typed_json import parse_typed

STORE_FORMAT = 3
"""Number of the layout above. Layout 1 had its manifests beside the data, and no number."""

QUARANTINE, TOMBSTONES, LEASES, JOBS = "aside", "gone", "leases", "jobs"
ATTEMPTS = "attempts"
DELETIONS = "deletions"
"""File that gc writes anew, under its lease, before and after it deletes artifacts or their files.

It holds `UNDER_WAY` if gc is between the two, or was killed there, and else the last one's number.
"""
UNDER_WAY = b"under way"


class Artifact:
    """A committed artifact."""

    def __init__(self, files: StoreBackend, manifest: Manifest) -> None:
        self.manifest = manifest
        self.folder = f"{ARTIFACTS}/{manifest.key}/{manifest.folder}"
        self._files = files

    @property
    def path(self) -> Path:
        """A local folder with its files; for a store elsewhere, a copy made when first asked for.

        Raises:
          OSError: if what is stored is not what the manifest says; `DamagedArtifactError` if a file
            has its size, but other bytes.
        """
        try:
            folder = self._files.local_folder(self.folder, self.manifest.files)
        except StoredDamageError as error:
            raise self._set_stored_aside(error) from error
        self._check_artifact_folder(folder)
        return folder

    @property
    def uri(self) -> str:
        """Address for reading its files in ranges, for `open_stored_folder`; nothing is copied.

        A local folder, or a bucket's address if this machine has no copy.

        Raises:
          DamagedArtifactError: as `path`, of files without checksums of their own.
        """
        uri = self._files.folder_uri(self.folder, self.manifest.files)
        if os.path.isabs(uri):  # Else in a bucket, whose readers check what they get.
            self._check_artifact_folder(Path(uri), in_ranges=True)
        return uri

    def _check_artifact_folder(self, folder: Path, *, in_ranges: bool = False) -> None:
        files, state = self.manifest.files, self._files.state
        name = check_first_read(folder, files, state, in_ranges=in_ranges)
        if name is not None:
            raise self._set_aside(folder, name)

    def check_named(self, message: str) -> None:
        """Checks the digests of those files that the message of an error names.

        A reader of ranges finds that a block is damaged; what becomes of its file is said here.

        Raises:
          DamagedArtifactError: if one of them is damaged; it is then set aside.
        """
        folder = self._files.folder_uri(self.folder, self.manifest.files)
        for name, file in self.manifest.files.items():
            if f"{folder}/{name}" not in message:
                continue
            path = Path(folder, name)
            if not os.path.isabs(folder):
                self._check_stored(name, file)
            elif path.is_file() and file_sha256(path) != file.sha256:
                raise self._set_aside(Path(folder), name)

    def _check_stored(self, name: str, file: File) -> None:
        """Checks the digest of one file of a store elsewhere."""
        with tempfile.TemporaryDirectory() as temporary:
            try:
                self._files.download_file(f"{self.folder}/{name}", file, Path(temporary, "file"))
            except StoredDamageError as error:
                raise self._set_stored_aside(error) from error
            except OSError:
                pass  # What cannot be fetched says nothing about its bytes.

    def _set_stored_aside(self, damage: StoredDamageError) -> DamagedArtifactError:
        """Sets a file aside that is damaged where it is stored, in a bucket."""
        name = damage.name.removeprefix(f"{self.folder}/")
        did = move_aside(
            name, lambda aside: self._files.move(damage.name, f"{self.folder}/{aside}")
        )
        return self._damaged_artifact_error(name, did)

    def _set_aside(self, folder: Path, name: str) -> DamagedArtifactError:
        did = set_aside(folder, name, is_copy=self._files.uri != str(self._files.state))
        return self._damaged_artifact_error(name, did)

    def _damaged_artifact_error(self, name: str, did: str) -> DamagedArtifactError:
        return DamagedArtifactError(
            f"{name} of {self.key} ({self.manifest.name}) has other bytes than it was committed "
            f"with: {did}."
        )

    @property
    def files(self) -> StoreBackend:
        """The files of the store it is in."""
        return self._files

    @property
    def key(self) -> str:
        """The artifact's name in the store."""
        return self.manifest.key

    @property
    def as_input(self) -> Input:
        """This artifact as the input of a step that reads it."""
        return Input(key=self.manifest.key, content=self.manifest.content)


class Attempt:
    """One try at making an artifact: a folder of its own, and the commit.

    Attributes:
      step: recipe of the artifact.
      id: id of the attempt.
      counts, content: values for the manifest.
      accelerator: kind of device, as `execution_environment` takes it.
      earlier_seconds: time of the attempts that it resumes [s].
      devices: number of devices that compute it.
      piece_device_seconds: cost of the pieces that it is put together from [device-seconds].
      share: its part of time and cost, if several artifacts are made together [fraction].
      path: folder that its files are written to.
    """

    def __init__(self, store: "Store", step: Recipe) -> None:
        self.step = step
        self.id = f"{_utc_attempt_time():%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        self.counts: dict[str, float | int | str] = {}
        self.content: str | None = None
        self.accelerator = ""
        self.earlier_seconds, self.share = 0.0, 1.0
        self.devices, self.piece_device_seconds = 1, 0.0
        self._final_device_seconds: float | None = None
        self._store = store
        self._folder = f"{ARTIFACTS}/{validate_key(step.key)}/{ATTEMPTS}/{self.id}"
        self._clock = time.monotonic()
        self._started = _utc_attempt_time().isoformat(timespec="seconds")
        inputs = tuple(sorted({entry.key for entry in step.inputs.values()}))
        # What is in the store after each step of an attempt, and what kill -9 right after it
        # leaves:
        #
        #   begin            history/<id>.json        a note whose process is gone
        #   write files      attempts/<id>/...        a folder that no manifest names: deleted by
        #                                             the next holder of the step, or by gc
        #   publish_folder   the same, now durable    the same
        #   publish          manifests/<kind>/<key>   the whole artifact
        #
        # The note comes first: without it, nobody would know which process the folder belongs to.
        self._record = store.record_attempt(
            step.key,
            AttemptNote(
                id=self.id,
                started=self._started,
                holder=ProcessIdentity.of_this_process(),
                inputs=inputs,
            ),
            lambda: self.device_seconds,
        )
        self.path = store.files.make_workspace(self._folder)
        self._receipts: dict[str, Receipt] = {}

    @property
    def device_seconds(self) -> float:
        """Its cost so far, without earlier attempts: its time, times its devices."""
        if self._final_device_seconds is not None:
            return self._final_device_seconds
        spent = (time.monotonic() - self._clock) * self.devices
        return self.share * (spent + self.piece_device_seconds)

    def save_cost(self) -> None:
        """Records its cost so far in the store, where it counts even if this process is killed."""
        with contextlib.suppress(OSError):  # The next one records more.
            self._record.save_cost()

    def put(self, name: str, data: ByteSource) -> None:
        """Stores a file of the attempt directly in the store; several threads may do so.

        Args:
          name: path of the file in the artifact.
          data: bytes of the file.
        """
        self._receipts[name] = self._store.files.upload_bytes(
            f"{self._folder}/{validate_path(name)}", data
        )

    def adopt(self, name: str, source: str, file: File) -> None:
        """Adds a file that workers left elsewhere in the store.

        Args:
          name: path of the file in the artifact.
          source: name of the file in the store.
          file: digest and size of the file.
        """
        place = f"{self._folder}/{validate_path(name)}"
        self._receipts[name] = self._store.files.link(source, place, file)

    def commit(self, context: Mapping[str, Any]) -> Artifact:
        """Publishes the attempt, unless another one already won; returns the winner.

        A winner that was damaged since does not count: it is set aside, its files stay where they
        are, and this attempt takes its place.

        Args:
          context: facts that the orchestrator knows of this run (its run ids).

        Raises:
          OSError: if the disk fails. Nothing is deleted then, since the manifest may be in place.
        """
        # Two sorts of files: those in the workspace, digested here, and those that were stored
        # directly (`put`, `adopt`), whose receipts hold their digests.
        uploaded = {name: receipt.file for name, receipt in self._receipts.items()}
        local = _digest_folder(self.path, excluded=uploaded)
        files = dict(sorted({**local, **uploaded}.items()))
        listing = listing_sha256({name: file.sha256 for name, file in files.items()})
        step = self.step
        notes = list_attempts(self._store.files, step.key)
        environment = {**execution_environment(self.accelerator), **context}
        seconds = self.share * (self.earlier_seconds + time.monotonic() - self._clock)
        self._final_device_seconds = self.device_seconds
        cost = self._final_device_seconds + self._store.cost_of_failures(step.key, notes, self.id)
        environment |= {"devices": self.devices, "device_seconds": round(cost, 3)}
        environment |= {LABELS: dict(step.labels)} if step.labels else {}
        manifest = Manifest(
            kind=step.kind,
            name=step.name,
            key=step.key,
            inputs=dict(step.inputs),
            config=step.config,
            seed=step.seed,
            libraries=dict(step.libraries),
            code=step.code,
            source=step.source,
            content=self.content or listing,
            folder=f"{ATTEMPTS}/{self.id}",
            files=files,
            counts=self.counts,
            attempts=[note.manifest_entry for note in notes],
            environment=environment,
            started=self._started,
            seconds=round(seconds, 3),
        )
        # Data first, so that a power cut never leaves a manifest without data.
        # Fencing: a holder that lost its lease may get this far. Its folder is its own, so it
        # disturbs nobody, and `publish` decides by one atomic create which attempt counts.
        self._store.files.publish_folder(self._folder, local, self._receipts)
        winner = self._store.publish(manifest)
        # We lost: our folder is no artifact's. If it cannot be deleted now, gc does it later.
        if winner.manifest.attempt != self.id:
            with contextlib.suppress(OSError):
                self._store.files.remove(self._folder)
        return winner


class Store:
    """Artifacts under one local folder, or one prefix of a bucket.

    Args:
      uri: the folder, or gs://bucket/prefix, s3://… or az://….
      make: whether it is made where there is none. If not, it reads as an empty one, and nothing
        may be written to it.

    Attributes:
      is_there: whether there is a store.

    Raises:
      ValueError: if `uri` is neither, or a store of another format.
      OSError: if the bucket cannot be read.
    """

    def __init__(self, uri: str | os.PathLike[str], *, make: bool = True) -> None:
        place = canonical_uri(uri)
        self.files: StoreBackend
        self.volatile: StoreBackend
        if place.startswith(BUCKET_SCHEME):
            from infra.store.objects.bucket import Bucket

            self.files = self.volatile = Bucket(place)
        else:
            root = Path(place)
            try:
                if make:
                    root.mkdir(parents=True, exist_ok=True)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.stat(f"{root}/.")  # Raises at a file, and below one.
            except (FileExistsError, NotADirectoryError):
                raise ValueError(
                    f"store must be a folder or gs://bucket/prefix (s3:// and az:// alike), got "
                    f"{place!r}, which is a file or below one."
                ) from None
            self.files, self.volatile = Disk(root), Disk(root, durable=False)
        self.uri, self.state = self.files.uri, self.files.state
        self.node_local = Disk(self.state, durable=False)
        self.is_remote = self.uri != str(self.state)
        self._manifests: dict[str, tuple[tuple[int, ...], Manifest]] = {}
        self._attempt_records: dict[str, list[AttemptRecord]] = {}
        self._keys_by_identity: dict[str, dict[str, list[str]]] | None = None
        self._deletions_before: tuple[int, ...] | None = None
        self.is_there = self._check_format(make)

    def snapshot(self, earlier: "Store | None" = None) -> "Store":
        """Returns a snapshot of this store, for many look-ups; see `snapshot`.

        Args:
          earlier: a snapshot, which is returned itself if gc has deleted nothing since it was
            taken: what was found in it, and pinned since then, is safe to rely on.
        """
        if self._keys_by_identity is not None:
            return self  # It is one.
        # Looked at before the listing. So of a gc that deletes what was listed already, the next
        # look tells; of one that is at it now, no look would.
        deletions = self._deletions_version()
        if deletions is not None and earlier and earlier._deletions_before == deletions:
            return earlier
        # A shallow copy: look-ups go to the snapshot; leases, pins and writes to the store itself.
        view = copy.copy(self)
        view.files = self.files.snapshot()
        view._keys_by_identity = {}
        view._deletions_before = deletions
        return view

    def _deletions_version(self) -> tuple[int, ...] | None:
        """Returns the version of `DELETIONS`: () before the first gc, None in the middle of one."""
        try:
            state = self.files.stat(DELETIONS)
        except FileNotFoundError:
            return ()
        return None if state.size == len(UNDER_WAY) else state.version

    def find(self, key: str) -> Artifact | None:
        """Returns a committed artifact whose files all exist with their sizes, or None.

        Nothing is changed: a damaged artifact stays as it is until its step commits again.

        Raises:
          OSError: if the disk fails, which says nothing about the artifact.
          ValueError: if its manifest cannot be read, or `key` does not have the form of one.
        """
        try:
            artifact = self.get(key)
        except KeyError:
            return None
        return artifact if self.has_all_files(artifact) else None

    def get(self, key: str) -> Artifact:
        """Returns a committed artifact, without looking at its files.

        Raises:
          KeyError: if there is none of that key.
          OSError, ValueError: as `find` does.
        """
        try:
            return self._read_artifact(manifest_name(key))
        except FileNotFoundError:
            raise KeyError(f"no artifact {key} in {self.uri}") from None

    def get_cached(self, key: str) -> Artifact:
        """Returns an artifact as this process last saw it; one not seen before is read.

        For walks of the lineage of committed artifacts, which does not change.

        Raises:
          KeyError, OSError, ValueError: as `get` does.
        """
        cached = self._manifests.get(manifest_name(key))
        return Artifact(self.files, cached[1]) if cached else self.get(key)

    def has_all_files(self, artifact: Artifact) -> bool:
        """Whether every file of an artifact exists with its size.

        Raises:
          OSError: if the disk fails.
        """
        files = artifact.manifest.files
        sizes = self.files.sizes(artifact.folder, files)
        return all(sizes.get(name) == file.size for name, file in files.items())

    def find_pruned(self, key: str) -> Artifact | None:
        """Returns an artifact whose files `gc` deleted because no run keeps them; else None.

        Its manifest stays for artifacts that were made from it, but it is no hit for a step that
        needs its files.

        Raises:
          OSError, ValueError: as `find` does.
        """
        try:
            artifact = self.get(key)
            self.files.stat(tombstone_name(artifact))
        except (KeyError, FileNotFoundError):
            return None
        return None if self.has_all_files(artifact) else artifact

    def resolve(self, prefix: str) -> Artifact:
        """Returns the one artifact whose key begins with `prefix`.

        Raises:
          KeyError: if none or several do, with the candidates.
        """
        keys = sorted(key for key in self.keys() if key.startswith(prefix))
        if prefix in keys:  # A whole key is not ambiguous, even if others begin with it.
            keys = [prefix]
        if len(keys) != 1:
            matches = ", ".join(keys[:5]) or "none"
            raise KeyError(
                f"artifact must be one key or an unambiguous beginning of one, "
                f"got {prefix!r}; matches: {matches}."
            )
        return self.get(keys[0])

    def keys(self, kind: str | None = None) -> list[str]:
        """Returns the keys of all committed artifacts, or of one kind, sorted."""
        kinds = self.files.folders(MANIFESTS) if kind is None else [kind]
        names = (
            name for kind_name in kinds for name in self.files.listing(f"{MANIFESTS}/{kind_name}")
        )
        return sorted(name.removesuffix(".json") for name in names)

    def artifacts(self, kind: str | None = None) -> Iterator[Artifact]:
        """Yields every committed artifact, or those of one kind, by key."""
        for key in self.keys(kind):
            with contextlib.suppress(KeyError):  # gc deleted it meanwhile.
                yield self.get(key)

    def artifacts_of_identity(self, identity: str) -> list[Artifact]:
        """Returns the artifacts of one identity, made by any code; the newest first.

        Their files are not looked at: `find` does that.
        """
        dated: list[tuple[str, int, Artifact]] = []
        for key in self._keys_of_identity(kind_of_key(f"{identity}-"), identity):
            with contextlib.suppress(KeyError, FileNotFoundError):  # gc deleted it meanwhile.
                artifact = self.get(key)
                modified = self.files.stat(manifest_name(key)).modified
                dated.append((artifact.manifest.started, modified, artifact))
        return [artifact for *_, artifact in sorted(dated, key=lambda f: f[:2], reverse=True)]

    def _keys_of_identity(self, kind: str, identity: str) -> list[str]:
        """Returns the keys of an identity; a snapshot lists each kind only once."""
        keys_by_identity = (
            None if self._keys_by_identity is None else self._keys_by_identity.get(kind)
        )
        # One listing of a kind answers for all of its identities: key = <identity>-<code>.
        if keys_by_identity is None:
            keys_by_identity = {}
            for key in self.keys(kind):
                keys_by_identity.setdefault(key.rpartition("-")[0], []).append(key)
            if self._keys_by_identity is not None:
                self._keys_by_identity[kind] = keys_by_identity
        return keys_by_identity.get(identity, [])

    @contextlib.contextmanager
    def lock(
        self,
        key: str,
        *,
        ttl: float = LEASE_TTL,
        token: str | None = None,
        lost: Collection[str] = (),
        wait: bool = True,
    ) -> Iterator[Scratch]:
        """Holds a step for this process, and yields its scratch.

        Waits while another holder is alive, unless `wait` is False. The scratch has the progress of
        earlier holders. A holder that loses the lease (because it was stopped for longer than
        `ttl`) finds its folder gone, too: it was renamed, so that two holders never write the same
        progress.

        Args:
          key: key of the step.
          ttl: time without renewal after which the lease lapses, see `lease` [s].
          token: id of this holding, with which the process that gave it can later declare it lost;
            None draws one.
          lost: tokens of holders that are lost; nobody waits for them.
          wait: whether to wait for another holder.

        Raises:
          LeaseHeldError: without `wait`, if another holder may be alive.
        """
        name = _lease_name(key)
        # Sweep first, while no attempt of ours exists: then every dead attempt at this key is an
        # earlier holder's. Its progress, in scratch, is taken over and not swept.
        with hold_lease(self.volatile, name, ttl=ttl, token=token, lost=lost, wait=wait) as lease:
            self._delete_dead_attempts(key)
            scratch = Scratch(self.files, key, lease.token, lease.renew)
            scratch.restore()
            self._attempt_records[key] = []
            stopped = False
            try:
                yield scratch
            except BaseException as error:
                stopped = not isinstance(error, Exception)  # Such as SystemExit, by SIGTERM.
                raise
            finally:
                self._record_attempt_ends(self._attempt_records.pop(key), stopped=stopped)
                scratch.remove_if_empty()

    def wait_until_free(self, key: str, keep_waiting: Callable[[], bool]) -> None:
        """Waits until no other process holds a step, or `keep_waiting` says no more."""
        lease = acquire_lease(self.volatile, _lease_name(key), keep_waiting=keep_waiting)
        if lease is not None:
            lease.release()

    def leases(self) -> list[LeaseView]:
        """Returns the leases of steps, by key; `LeaseView.is_live` tells whether they are live."""
        return list_leases(self.volatile, LEASES)

    def check_locks(self) -> None:
        """Raises a `NoLocksError` where the file system has no locks: no lease could be renewed."""
        self.volatile.compare_and_delete(f"{LEASES}/none", b"")

    def pin_run(self, run: str) -> contextlib.AbstractContextManager[Pin]:
        """Returns a context in which `gc` deletes nothing that a run relies on; see `pins`."""
        return pin_run(self.volatile, run)

    def save_source(self, tree: Mapping[str, bytes]) -> str:
        """Stores a source tree of path -> bytes, and returns the digest that names it.

        Call it within `pin_run` only: `gc` may delete a tree that no manifest names yet.
        """
        return sources.save_tree(self.files, tree)

    def open_source(self, digest: str) -> sources.SourceTree:
        """Returns a source tree that was kept; its files are read, and verified, when asked for."""
        return sources.SourceTree(self.files, digest)

    def cache(self, name: str) -> Path:
        """Returns a local folder for files that can be made again at any time."""
        path = self.state / "cache" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, manifest: Manifest) -> Artifact:
        """Publishes a manifest unless a whole artifact is there; returns the published one."""
        name, text = manifest_name(manifest.key), manifest.to_json().encode()
        # The usual case is the first create, which succeeds. Otherwise another attempt was first:
        #
        #   its files are all there      it is the winner, whatever bytes we made
        #   some are missing or short    it was damaged after its commit; ours replaces it:
        #
        #     manifests/<key>   aside/<key>.<id>
        #     old               -                    damaged
        #     old               old                  recorded, so that gc still finds its files
        #     new               old                  swapped, if it is still the one that was read
        #
        # A loop, since gc or another attempt may change the manifest between any two of these.
        while not self.files.create_if_absent(name, text):
            try:
                current = self.files.read(name)
            except FileNotFoundError:
                continue  # gc deleted it meanwhile.
            winner = self._parse_manifest(name, current)
            if self.has_all_files(winner):
                return winner
            # A record of the damaged winner comes first, since only gc deletes the files it names.
            self.files.create_if_absent(
                quarantine_name(winner.key, winner.manifest.attempt), current
            )
            if self.files.compare_and_swap(name, current, text):
                break
        return self._read_artifact(name)

    def quarantined(self, key: str | None = None) -> dict[str, Artifact]:
        """Returns the quarantined artifacts, of one key or all, by their record's name."""
        artifacts = {}
        for name in (f"{QUARANTINE}/{file_name}" for file_name in self.files.listing(QUARANTINE)):
            if key is None or name.startswith(f"{QUARANTINE}/{key}."):
                with contextlib.suppress(FileNotFoundError):  # gc deleted it meanwhile.
                    artifacts[name] = self._parse_manifest(name, self.files.read(name))
        return artifacts

    def record_attempt(
        self, key: str, note: AttemptNote, cost: Callable[[], float]
    ) -> AttemptRecord:
        """Records an attempt at a key, and returns its record; arguments as for `AttemptRecord`."""
        record = AttemptRecord(self.volatile, key, note, cost)
        self._attempt_records.get(key, []).append(record)
        return record

    def attempts_device_seconds(self, key: str) -> float:
        """Returns the recorded cost of all attempts at a key, failed, killed and running ones too.

        Of a running or killed attempt it is the cost until its holder last recorded it.
        """
        return sum(note.device_seconds for note in list_attempts(self.files, key))

    def cost_of_failures(self, key: str, notes: Sequence[AttemptNote], own: str) -> float:
        """Returns the cost of the attempts at a key that led to none of its earlier artifacts.

        Args:
          key: the key.
          notes: all attempts at it, the oldest first.
          own: id of the attempt that asks, which does not count.
        """
        others = [note for note in notes if note.id != own]
        # An artifact that was damaged, or whose files were pruned, has the cost of its own failed
        # attempts in its manifest already:
        #
        #   attempt 1 failed ─▶ attempt 2 committed; damaged ─▶ attempt 3 killed ─▶ own
        #   └ in the manifest of attempt 2 ┘                    └ counts ┘
        committed = self.named_attempts(key) if others else set[str]()
        cost = 0.0
        for note in others:
            cost = 0.0 if note.id in committed else cost + note.device_seconds
        return cost

    def attempted_keys(self) -> set[str]:
        """Returns every key at which an attempt was ever made."""
        return set(self.files.folders(ARTIFACTS))

    def count_failures(self, key: str) -> int:
        """Returns the number of attempts that their holders gave up, at a key without artifact."""
        return sum(bool(note.ended) and not note.stopped for note in list_attempts(self.files, key))

    def named_attempts(self, key: str) -> set[str]:
        """Returns the attempts at a key that a manifest names, in place or in quarantine."""
        attempt_ids = {artifact.manifest.attempt for artifact in self.quarantined(key).values()}
        with contextlib.suppress(KeyError):
            attempt_ids.add(self.get(key).manifest.attempt)
        return attempt_ids

    def _read_artifact(self, name: str) -> Artifact:
        # A manifest hardly ever changes, and is read by every look-up: so it is parsed once for
        # each version of its file, and a stat tells whether that is still the version.
        version = self.files.stat(name).version
        cached = self._manifests.get(name)
        if cached is None or cached[0] != version:
            cached = version, self._parse_manifest(name, self.files.read(name)).manifest
            self._manifests[name] = cached
        return Artifact(self.files, cached[1])

    def _parse_manifest(self, name: str, text: bytes) -> Artifact:
        """Reads a manifest. A garbled one is an error, not a miss: it was whole when written."""
        key = Path(name).name.partition(".")[0]
        try:
            manifest = Manifest.from_json(text.decode())
            if manifest.key != key:
                raise ValueError(f"it is the manifest of {manifest.key}")
        except ValueError as error:
            raise ValueError(
                f"{self.uri}/{name} cannot be read: {str(error).rstrip('.')}; restore it, or move "
                f"it out of the store to have its step run again."
            ) from None
        return Artifact(self.files, manifest)

    def _check_format(self, make: bool) -> bool:
        """Returns whether there is a store, of this version's layout; makes one if `make`."""
        name = "store.json"
        try:
            text = self.files.read(name)
        except (FileNotFoundError, NotADirectoryError):
            # No number. A store with artifacts is of layout 1, which had none; an empty one is new.
            if self.files.folders(ARTIFACTS):
                # Another process may have made this store just now; it writes the number first.
                try:
                    text = self.files.read(name)
                except FileNotFoundError:
                    text = b'{"format": 1}'
            elif not make:
                return False
            else:
                text = json.dumps({"format": STORE_FORMAT}).encode() + b"\n"
                if not self.files.create_if_absent(name, text):
                    text = self.files.read(name)
        try:
            layout = parse_typed(dict[str, int], text, name)["format"]
        except (ValueError, KeyError):
            raise ValueError(
                f"{self.uri}/{name} is damaged: if this version made the store, write "
                f'{{"format": {STORE_FORMAT}}} into it; else name another folder.'
            ) from None
        if layout != STORE_FORMAT:
            raise ValueError(
                f"store {self.uri} has format {layout}, and this version understands "
                f"{STORE_FORMAT}: name another folder, or use a checkout of the version that "
                f"made it."
            )
        return True

    def _delete_dead_attempts(self, key: str) -> None:
        """Deletes folders of attempts that ended without a commit; the caller holds the step."""
        folder = f"{ARTIFACTS}/{key}/{ATTEMPTS}"
        # Only attempts that are certainly over. One whose holder is on another machine and wrote no
        # end may still be writing (it lost its lease, but does not know); gc takes it when it is
        # old.
        if ended := {note.id for note in list_attempts(self.files, key) if note.is_over}:
            for name in ended - self.named_attempts(key):
                with contextlib.suppress(OSError):
                    self.files.remove(f"{folder}/{name}")

    def _record_attempt_ends(self, records: list[AttemptRecord], *, stopped: bool) -> None:
        """Notes that this holder's attempts are over; if that fails, the process's end shows it."""
        ended = _utc_attempt_time().isoformat(timespec="seconds")
        with contextlib.suppress(OSError):
            for record in records:
                record.end(ended, stopped=stopped)


def canonical_uri(uri: str | os.PathLike[str]) -> str:
    """Returns a store's URI in its only form: an absolute path, or such as gs://bucket/prefix.

    Raises:
      ValueError: if it is neither.
    """
    text = os.fspath(uri)
    if not text:
        raise ValueError("store must be a folder or gs://bucket/prefix, got no text at all.")
    if text.startswith(BUCKET_SCHEME):
        scheme, separator, name = text.partition("://")
        return f"{scheme}{separator}{name.rstrip('/')}"
    one_slash = text.startswith(tuple(scheme.rstrip("/") for scheme in BUCKET_SCHEME))
    if one_slash or ("://" in text and not text.startswith("file://")):
        raise ValueError(
            f"store must be a folder or gs://bucket/prefix (s3:// and az:// alike), got {text!r}."
        )
    return str(Path(text.removeprefix("file://")).expanduser().resolve())


def quarantine_name(key: str, attempt: str) -> str:
    """Returns the name of the manifest of an attempt in quarantine."""
    return f"{QUARANTINE}/{key}.{attempt}.json"


def tombstone_name(artifact: Artifact) -> str:
    """Returns the name of the tombstone: the note that gc deleted an artifact's files."""
    return f"{TOMBSTONES}/{artifact.key}.{artifact.manifest.attempt}"


def manifest_name(key: str) -> str:
    """Returns the name of the manifest of a key.

    Raises:
      ValueError: if `key` does not have the form of one.
    """
    return f"{MANIFESTS}/{kind_of_key(key)}/{key}.json"


def _lease_name(key: str) -> str:
    return f"{LEASES}/{validate_key(key)}.json"


def _digest_folder(folder: Path, *, excluded: Collection[str] = ()) -> dict[str, File]:
    """Returns path -> digest and size of the files in a folder, except those named in `excluded`.

    Raises:
      ValueError: if it holds a link, or anything else that is not a regular file.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        name = path.relative_to(folder).as_posix()
        if not stat.S_ISREG(mode):
            raise ValueError(f"an artifact holds files only, got {name!r}; copy what it links to.")
        if name not in excluded:
            files[name] = File(sha256=file_sha256(path), size=path.stat().st_size)
    return files


def _utc_attempt_time() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
