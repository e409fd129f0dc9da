"""Fetches data sets and weights: several files at a time, each noted once it is complete."""

import contextlib
import fcntl
import functools
import json
import lzma
import os
import shutil
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.download import DownloadError, download, file_digests
from infra.errors import ConfigError
from infra.typed_json import parse_typed, typed
from pipelines.fetch.catalogue import DataSet, RemoteFile
from pipelines.records.licence import NO_LICENCE, NONE_STATED, Licence
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput
from pipelines.records.tar_members import CheckedMember

FETCH_NOTES = "fetched.json"
"""File in a data set's folder: name -> address, sha256, size [bytes] and, where the catalogue has
one, licence of each fetched file."""

_NOTES_TYPE = dict[str, dict[str, Any]]
_NOTING, _MERGING = threading.Lock(), threading.Lock()

_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    OverflowError,
    RuntimeError,  # Of a member with a password.
    NotImplementedError,
)
"""Errors of unpacking a damaged archive, from trials."""


def fetch_data_sets(
    data_sets: Mapping[str, DataSet],
    root: Path,
    *,
    workers: int = 4,
    on_file: Callable[[str, RemoteFile, str], None] | None = None,
    on_progress: Callable[[RemoteFile, int], None] | None = None,
    on_wait: Callable[[Path], None] | None = None,
    download: Callable[..., str] = download,
) -> None:
    """Fetches and unpacks every file of some data sets; files that are there already are skipped.

    A file with a digest is there if its bytes have it, another one if it is noted. Processes that
    fetch into one folder do so one after the other.

    Args:
      data_sets: the data sets by name.
      root: the data root.
      workers: number of files that are fetched at a time.
      on_file: called once a file is complete, with the data set's name, the file, and its sha256,
        or "there" if it was skipped.
      on_progress: called with a file and its bytes so far, from any thread.
      on_wait: called with a folder that another process fetches into, before waiting for its end.
      download: fetches one file, as `infra.download.download` does.

    Raises:
      DownloadError: if the disk has no room for the files, or if any file cannot be fetched or
        unpacked, once all others are done.
    """

    def fetch_file(name: str, folder: Path, file: RemoteFile, licence: Licence) -> None:
        # The note comes last: a file without one is fetched again, whatever happened to it before.
        path = folder / file.name
        present_sha256 = _present_sha256(folder, file)
        sha256 = present_sha256 or download(
            file.address,
            path,
            digest=file.digest,
            max_size=file.size if file.digest else None,
            on_progress=on_progress and functools.partial(on_progress, file),
        )
        # Of an archive only now, since unpacking deletes it.
        if path.is_file():
            size = path.stat().st_size
            if file.unpack is not None:
                unpack_archive(path, folder / file.unpack)
            _write_fetch_note(
                folder, file, {"address": file.address, "sha256": sha256, "size": size}
            )
        if licence.is_stated:
            _write_fetch_note(folder, file, {"licence": vars(licence)})
        if on_file is not None:
            on_file(name, file, "there" if present_sha256 else sha256)

    # In order of their names: of two processes that share folders none waits for the other's next.
    folders = sorted({root / data_set.folder for data_set in data_sets.values()})
    with contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_lock_fetch_folder(folder, on_wait))
        _check_disk(data_sets, root)
        with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
            jobs = [
                pool.submit(fetch_file, name, root / data_set.folder, file, data_set.stated_licence)
                for name, data_set in data_sets.items()
                for file in data_set.files
            ]
    # Errors are collected: one dead address does not stop the downloads after it.
    problems = [str(error) for job in jobs if (error := job.exception())]
    if problems:
        raise DownloadError(" ".join(dict.fromkeys(problems)))


@contextlib.contextmanager
def _lock_fetch_folder(folder: Path, on_wait: Callable[[Path], None] | None) -> Iterator[None]:
    """Has other processes that fetch into a folder wait; not on file systems without such locks."""
    folder.mkdir(parents=True, exist_ok=True)
    # Of the folder itself, so that no file is left among the data. The kernel frees it.
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # Such as NFS, which locks what is open for writing.
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait is not None:
                    on_wait(folder)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _check_disk(data_sets: Mapping[str, DataSet], root: Path) -> None:
    """Refuses files of known size that the disk has no room for, before any is fetched.

    Raises:
      DownloadError: naming both sizes.
    """
    size = 0
    for data_set in data_sets.values():
        notes = _read_notes(root / data_set.folder)
        for file in data_set.files:
            path = root / data_set.folder / file.name
            is_unpacked = file.unpack is not None and file.name in notes
            if file.size and not path.exists() and not is_unpacked:
                partial = path.with_name(f"{path.name}.partial")
                size += file.size - (partial.stat().st_size if partial.is_file() else 0)
    place = next(folder for folder in (root, *root.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if size > free:
        raise DownloadError(
            f"{root} has {free / 1e9:.1f} GB free, and {size / 1e9:.1f} GB are to be fetched: make "
            f"room, or name another folder."
        )


def _present_sha256(folder: Path, file: RemoteFile) -> str | None:
    """Returns the sha256 of a file that is there already; None if it must be fetched."""
    path = folder / file.name
    if file.digest and file.unpack is None:
        # Whoever brought it: its bytes say that it is the file, and that nothing damaged it since.
        algorithm, _, digest = file.digest.partition(":")
        digests = file_digests(path, {"sha256", algorithm}) if path.is_file() else {}
        return digests["sha256"] if digests.get(algorithm) == digest else None
    note = _read_notes(folder).get(file.name)
    if note is None or note.get("address") != file.address:
        return None
    # An archive is deleted once it is unpacked, so its note is all there is to check.
    is_whole = path.is_file() and path.stat().st_size == note.get("size")
    return note.get("sha256") if file.unpack is not None or is_whole else None


def check_fetched(folder: Path, digests: Mapping[str, str] | None = None) -> None:
    """Checks that a folder's files are still those that were fetched, where that was noted.

    Args:
      folder: any folder.
      digests: name -> sha256 of the files to check; None reads all that are noted.

    Raises:
      ConfigError: naming a file that is not.
    """
    for name, note in _read_notes(folder).items():
        path = folder / name
        if digests is not None:
            sha256 = digests.get(name)
        else:
            sha256 = file_digests(path, {"sha256"})["sha256"] if path.is_file() else None
        noted_sha256 = note.get("sha256")
        if sha256 and noted_sha256 and sha256 != noted_sha256:
            raise ConfigError(
                f"{path} is not what was fetched: it has sha256 {sha256}, and {FETCH_NOTES} has "
                f"{noted_sha256}. Fetch it again by the same parcel data fetch, or delete "
                f"{FETCH_NOTES} if you changed it."
            )


def read_addresses(folder: Path) -> list[str]:
    """Returns the addresses that a folder's files were fetched from."""
    return [str(note.get("address", "")) for note in _read_notes(folder).values()]


def _read_notes(folder: Path) -> dict[str, dict]:
    path = folder / FETCH_NOTES
    return parse_typed(_NOTES_TYPE, path.read_bytes(), str(path)) if path.is_file() else {}


def read_licence(folder: Path) -> Licence:
    """Returns the licence that lies beside fetched data; nothing stated where there is none.

    Where files of a folder have different ones, it names all of them.
    """
    notes = _read_notes(folder).values()
    place = str(folder / FETCH_NOTES)
    licences = [typed(Licence, note.get("licence", {}), place) for note in notes]
    if not any(licence.is_stated for licence in licences):
        return NO_LICENCE

    def joined(*texts: str) -> str:
        return "; ".join(sorted({text for text in texts if text}))

    return Licence(
        licence=joined(*(licence.licence or NONE_STATED for licence in licences)),
        holder=joined(*(licence.holder for licence in licences)),
        address=joined(*(licence.address for licence in licences)),
    )


def _write_fetch_note(folder: Path, file: RemoteFile, fields: Mapping[str, object]) -> None:
    with _NOTING:
        notes = _read_notes(folder)
        note = {**notes.get(file.name, {}), **fields}
        if notes.get(file.name) == note:
            return  # An unchanged file keeps its time, by which raw data are known.
        notes[file.name] = note
        partial = folder / f"{FETCH_NOTES}.partial"
        partial.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n")
        partial.replace(folder / FETCH_NOTES)


def unpack_archive(archive: Path, target: Path) -> None:
    """Unpacks an archive into `target`, and deletes it; nothing is in `target` before all is.

    Raises:
      DownloadError: if the archive is damaged or empty, or a member points outside of it.
    """
    # Into a folder beside the archive first. A run that is stopped here leaves nothing in `target`
    # that could be taken for the whole.
    unpacking_folder = archive.with_name(f"{archive.name}.unpacking")
    shutil.rmtree(unpacking_folder, ignore_errors=True)
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                _check_room(archive, sum(member.file_size for member in packed.infolist()))
                packed.extractall(unpacking_folder)
        else:
            size = 0
            with tarfile.open(archive, tarinfo=CheckedMember) as packed:
                for member in packed:
                    size += member.size
                    _check_room(archive, size)
                    # The filter refuses members outside of the folder; `zipfile` leaves such names
                    # out by itself.
                    packed.extract(member, unpacking_folder, filter="data")
        if not unpacking_folder.exists():
            raise BadInput("it is empty")
        if (unpacking_folder / FETCH_NOTES).exists():
            raise BadInput(
                f"it has a member {FETCH_NOTES}, which is where fetching notes what it did"
            )
    except _UNREADABLE as error:
        shutil.rmtree(unpacking_folder, ignore_errors=True)
        archive.unlink()  # Left there, it would pass for a complete download.
        raise DownloadError(f"{archive} cannot be unpacked: {reason_of(error)}.") from None
    with _MERGING:  # Two archives may have a folder in common, which one of them makes.
        _merge_folder(unpacking_folder, target)
    archive.unlink()


def _check_room(archive: Path, size: int) -> None:
    """Refuses what the disk has no room for, before it is full: any file may unpack to any size.

    Raises:
      ValueError: if `size` bytes are more than are free.
    """
    free = shutil.disk_usage(archive.parent).free
    if size > free:
        raise BadInput(f"it holds {size / 1e9:.0f} GB or more, and {free / 1e9:.0f} GB are free")


def _merge_folder(source: Path, target: Path) -> None:
    """Moves the entries of a folder into another, and merges folders that both have."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda child: child.name):
        place = target / entry.name
        if place.is_dir() and entry.is_dir(follow_symlinks=False):
            _merge_folder(Path(entry.path), place)
        else:
            Path(entry.path).replace(place)
    source.rmdir()
