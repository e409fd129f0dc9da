"""Image-text corpora from the web: webdataset shards, parquet, JSONL and CC3M-style TSV.

    00000.tar     <key>.jpg|png|webp + <key>.txt (caption) + <key>.json (metadata), as img2dataset
                  and webdataset write them; .tgz too
    x.parquet     a column of image bytes or of paths, and one of captions
    x.jsonl       per line, "image"/"images" or "video"/"videos" (paths) and "text"/"caption"
    x.tsv         caption <tab> path or URL; the file of a URL is found by the URL's last part

Every such file below the folder is read. A parquet file beside a tar of the same stem is the
metadata of that tar (img2dataset) and holds no samples.
"""

import contextlib
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tarfile import (
    EOFHeaderError,  # type: ignore[attr-defined]
    HeaderError,
    ReadError,
    TarFile,
)
from typing import Self

from google_crc32c import value as crc32c

from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import Reject, is_of_machine
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item, Media
from pipelines.sources.media_reader import MAX_ENCODED
from pipelines.sources.spec import SourceSpec, read_units
from pipelines.sources.web import tables as web_tables
from pipelines.sources.web.tasks import STAGE, WebImage, web_image_items

IMAGE_SUFFIXES = (
    "jpg",
    "jpeg",
    "png",
    "webp",
    "gif",
    "bmp",
    "tif",
    "tiff",
    "avif",
    "heic",
    "heif",
)
_TARS = (".tar", ".tgz", ".tar.gz")
_TABLES = {
    ".parquet": web_tables.read_parquet,
    ".jsonl": web_tables.read_jsonl,
    ".tsv": web_tables.read_tsv,
}
_MAX_TEXT = 16 << 20
"""Largest caption or metadata member read [bytes]; img2dataset's are a few kB."""


def web_units(corpus: Corpus, split: str) -> Iterator[str]:
    """Yields every file that holds samples; archives of one stem are one unit, named by the first.

    Raises:
      FileNotFoundError: if there is none.
    """
    del split  # Web corpora have none.
    names = [path.relative_to(corpus.folder).as_posix() for path in corpus.files()]
    # x.tar, x.tar.gz and x.parquet belong together: one unit for the archives, and no other for the
    # table, which img2dataset writes as their metadata.
    stems: set[str] = set()
    tars = {_archive_stem(name) for name in names if name.endswith(_TARS)}
    has_units = False
    for name in names:
        stem = _archive_stem(name)
        if name.endswith(_TARS):
            if stem in stems:
                continue
            stems.add(stem)
        elif _file_suffix(name) not in _TABLES or (name.endswith(".parquet") and stem in tars):
            continue
        has_units = True
        yield name
    if not has_units:
        raise FileNotFoundError(
            f"{corpus.folder} holds no .tar, .tgz, .parquet, .jsonl or .tsv file."
        )


def read_web_unit(corpus: Corpus, unit: str) -> Iterator[Item | Reject]:
    """Yields every would-be record of a file, and of all archives that share its stem.

    Ids begin with the stem, so archives of one stem, whose ids may be the same, are one unit.
    """
    if files := unit_archives(corpus, unit):
        samples = (sample for archive in files for sample in _read_tar(corpus, archive))
    else:
        samples = _TABLES[_file_suffix(unit)](corpus, corpus.folder / unit)
    for sample in samples:
        if isinstance(sample, Reject):
            yield sample
        else:
            yield from web_image_items(sample, per_task=corpus.per_task, tasks=corpus.tasks)


def unit_archives(corpus: Corpus, unit: str) -> list[Path]:
    """Returns the archives of a unit; none for a table, which may name other files."""
    if not unit.endswith(_TARS):
        return []
    candidates = [corpus.folder / f"{_archive_stem(unit)}{suffix}" for suffix in sorted(_TARS)]
    return [archive for archive in candidates if corpus.has(archive)]


def _archive_stem(name: str) -> str:
    for suffix in (*_TARS, ".parquet"):
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def _file_suffix(name: str) -> str:
    return PurePosixPath(name).suffix


class _Member(tarfile.TarInfo):
    """Raises an error at a damaged header, which `tarfile` would take for the archive's end."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:  # The zeros at the archive's real end.
            raise
        except HeaderError as error:
            raise ReadError(f"{error} after {tarfile.offset} bytes") from error


def _read_tar(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields the samples of one archive; a damaged tail is one reject."""
    corpus.annotation(path)
    source = corpus.relative(path)
    base = PurePosixPath("web", _archive_stem(path.relative_to(corpus.folder).as_posix()))
    compressed = path.suffix != ".tar"
    # Members of one sample follow each other and share a key:
    #
    #   000000012.jpg  000000012.json  000000012.txt  |  000000013.jpg …
    members: list[tuple[str, str, Media | str]] = []
    mode = "r|*" if compressed else "r:"
    # Opened outside of the `try`: an archive that cannot be opened may well be whole.
    with path.open("rb") as file:
        try:
            with tarfile.open(None, mode, file, tarinfo=_Member) as archive:
                for member in archive:
                    if not member.isfile():
                        continue
                    key, extension = _split_name(member.name)
                    if members and members[0][0] != key:
                        yield _sample_of_members(base, source, members)
                        members = []
                    content = _read_member(corpus, archive, member, source, compressed)
                    members.append((key, extension, content))
                _check_archive_end(archive)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            if is_of_machine(error):
                raise
            reason = f"damaged archive: {reason_of(error)}"
            yield Reject(id=str(base), stage=STAGE, reason=reason, source=source)
    if members:
        yield _sample_of_members(base, source, members)


def _check_archive_end(archive: TarFile) -> None:
    """Refuses data after the end: zeros in the middle, or another archive, would hide samples.

    Raises:
      ReadError: if anything but zeros follows.
    """
    while block := archive.fileobj.read(1 << 20):  # type: ignore[union-attr]
        if block.strip(b"\0"):
            raise ReadError(f"data follows its end, {archive.offset} bytes in")


def _split_name(name: str) -> tuple[str, str]:
    """Returns key and extension; the key ends at the first dot of the file name."""
    folder, _, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return (f"{folder}/{stem}" if folder else stem).lstrip("./"), extension.lower()


def _read_member(
    corpus: Corpus, archive: tarfile.TarFile, member: tarfile.TarInfo, source: str, unpack: bool
) -> Media | str:
    """Returns an image's reference, a text's content, or an error that starts with U+0000."""
    extension = member.name.rpartition(".")[2].lower()
    if extension in IMAGE_SUFFIXES:
        # An image is not read: in a plain archive its offset finds it again. A compressed one has
        # no such offsets, so there it is unpacked.
        place: dict = {"offset": member.offset_data, "size": member.size}
        if member.size > MAX_ENCODED:
            return f"\0{member.name} has {member.size} bytes"
        file = archive.extractfile(member)
        if unpack:
            place = corpus.unpacked.append(file.read() if file else b"")
        elif file and not corpus.is_local:
            with contextlib.suppress(ReadError):  # Cut short: reading the next header fails, too.
                place["crc32c"] = crc32c(file.read())
        return Media(path=source, member=member.name, **place)
    # Members of any other kind are passed over: they are no part of the sample.
    if extension not in ("txt", "json", "caption"):
        return ""
    if member.size > _MAX_TEXT:
        return f"\0{member.name} has {member.size} bytes"
    file = archive.extractfile(member)
    try:
        return (file.read() if file else b"").decode("utf-8").replace("\0", "")
    except UnicodeDecodeError:
        return f"\0{member.name} is not UTF-8"


def _sample_of_members(
    base: PurePosixPath, source: str, members: list[tuple[str, str, Media | str]]
) -> WebImage | Reject:
    key = members[0][0]
    identity = str(base / key)

    def reject(reason: str) -> Reject:
        return Reject(id=identity, stage=STAGE, reason=reason, source=f"{source}/{key}")

    # Later texts win, the first image wins; an error that a member carries makes the sample a
    # reject.
    text, metadata, media = "", {}, None
    for _, extension, content in members:
        if isinstance(content, Media):
            media = media or content
        elif content.startswith("\0"):
            return reject(content[1:])
        elif extension == "json":
            try:
                metadata = json.loads(content)
            except (ValueError, RecursionError) as error:
                return reject(f"metadata is {reason_of(error)}")
        elif extension in ("txt", "caption"):
            text = content
    if media is None:
        return reject(f"no image among {', '.join('.' + m[1] for m in members)}")
    if not isinstance(metadata, dict):
        return reject(f"metadata is {kind_of(metadata)}, not an object")
    return WebImage(id=identity, media=media, text=text, metadata=metadata)


SOURCES = (
    SourceSpec(
        name="web",
        folder="web",
        splits=("train",),
        read=read_units(web_units, read_web_unit),
        units=web_units,
        list_unit=read_web_unit,
        has_unique_ids=True,
        unit_files=unit_archives,
        anywhere=True,
        antialias=True,
        antialias_eval=True,
    ),
)
