"""Fetches data sets: several files at a time, each noted once it is complete and unpacked."""

import functools
import json
import lzma
import os
import shutil
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.download import DownloadError, download
from infra.typed_json import parse_typed, typed
from pipelines.fetch.catalogue import DataSet, RemoteFile
from pipelines.records.licence import NO_LICENCE, NONE_STATED, Licence
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput
from pipelines.records.tar_members import CheckedMember

NOTES = "fetched.json"
"""File in a data set's folder: name -> address, sha256, size [bytes] and, where the catalogue has
one, licence of each fetched file."""

_NOTES_TYPE = dict[str, dict[str, Any]]
_NOTING = threading.Lock()

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
) -> None:
    """Fetches and unpacks every file of some data sets; files that are noted already are skipped.

    Args:
      data_sets: the data sets by name.
      root: the data root.
      workers: number of files that are fetched at a time.
      on_file: called once a file is complete, with the data set's name, the file, and its sha256,
        or "there" if it was skipped.
      on_progress: called with a file and its bytes so far, from any thread.

    Raises:
      DownloadError: if any file cannot be fetched or unpacked, once all others are done.
    """

    def fetch_file(name: str, folder: Path, file: RemoteFile, licence: Licence) -> None:
        # The note comes last: a file without one is fetched again, whatever happened to it before.
        sha256 = "there"
        if not _is_fetched(folder, file):
            sha256 = download(
                file.address,
                folder / file.name,
                digest=file.digest,
                on_progress=on_progress and functools.partial(on_progress, file),
            )
            # Before unpacking, which deletes the archive.
            size = (folder / file.name).stat().st_size
            if file.unpack is not None:
                unpack_archive(folder / file.name, folder / file.unpack)
            _write_note(folder, file, {"address": file.address, "sha256": sha256, "size": size})
        if licence.is_stated:
            _write_note(folder, file, {"licence": vars(licence)})
        if on_file is not None:
            on_file(name, file, sha256)

    with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
        jobs = [
            pool.submit(fetch_file, name, root / data_set.folder, file, data_set.stated_licence)
            for name, data_set in data_sets.items()
            for file in data_set.files
        ]
    # Errors are collected: one dead address does not stop the downloads after it.
    problems = [str(error) for job in jobs if (error := job.exception())]
    if problems:
        raise DownloadError(" ".join(problems))


def _is_fetched(folder: Path, file: RemoteFile) -> bool:
    """Returns whether a file was fetched from this address before, and is still there."""
    note = _read_notes(folder).get(file.name)
    if note is None or note.get("address") != file.address:
        return False
    path = folder / file.name
    # An archive is deleted once it is unpacked, so its note is all there is to check.
    return file.unpack is not None or (path.is_file() and path.stat().st_size == note.get("size"))


def _read_notes(folder: Path) -> dict[str, dict]:
    path = folder / NOTES
    return parse_typed(_NOTES_TYPE, path.read_bytes(), str(path)) if path.is_file() else {}


def read_licence(folder: Path) -> Licence:
    """Returns the licence that lies beside fetched data; nothing stated where there is none.

    Where files of a folder have different ones, it names all of them.
    """
    notes = _read_notes(folder).values()
    place = str(folder / NOTES)
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


def _write_note(folder: Path, file: RemoteFile, fields: Mapping[str, object]) -> None:
    with _NOTING:
        notes = _read_notes(folder)
        note = {**notes.get(file.name, {}), **fields}
        if notes.get(file.name) == note:
            return  # An unchanged file keeps its time, by which raw data are known.
        notes[file.name] = note
        partial = folder / f"{NOTES}.partial"
        partial.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n")
        partial.replace(folder / NOTES)


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
        if (unpacking_folder / NOTES).exists():
            raise BadInput(f"it has a member {NOTES}, which is where fetching notes what it did")
    except _UNREADABLE as error:
        shutil.rmtree(unpacking_folder, ignore_errors=True)
        archive.unlink()  # Left there, it would pass for a complete download.
        raise DownloadError(f"{archive} cannot be unpacked: {reason_of(error)}.") from None
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
