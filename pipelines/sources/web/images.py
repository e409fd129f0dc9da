"""Image-text corpora from the web: webdataset shards, parquet, Arrow, JSONL, CSV and CC3M's TSV.

    00000.tar     <key>.jpg|png|webp + <key>.txt (caption) + <key>.json (metadata, or the caption),
                  as img2dataset and webdataset write them; also packed: .tgz, .tar.bz2, .tar.xz
    x.parquet     a column of image bytes or of paths, and one of captions
    x.jsonl       per line, "image"/"images" or "video"/"videos" (paths) and "text"/"caption";
                  .ndjson is the same
    x.csv         the same fields in columns, named in the first line; ocr, objects, qa and captions
                  as JSON
    x.arrow       the columns of parquet, as a stream or a file (.feather is the same)
    x.tsv         the same, with tabs; or caption <tab> path or URL, without a line of names; the
                  file of a URL is found by the URL's last part

Every such file below the folder is read, but for those of a split such as test/ or val.tar beside
one to train on; lists of lines also where they are packed (.gz, .bz2,
.xz), and names in capitals; where a folder lists its own files, those. A parquet file beside a tar
of the same stem is the metadata of that tar (img2dataset) and holds no samples; without one, a
row's picture may be <stem>/<key>.jpg. As in webdataset, a member's key ends at the first dot of its
file name, what follows is its extension, and members whose names begin with a dot are nobody's.
"""

import contextlib
import itertools
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tarfile import ReadError, TarFile
from typing import BinaryIO, NamedTuple, cast

from google_crc32c import value as crc32c

from pipelines.records.hashing import stable_hash
from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import BadInput, Omission, Reject, is_of_machine
from pipelines.records.tar_members import CheckedMember
from pipelines.sources.reading.corpus import MAX_REASONS, Corpus, OmissionCounts, with_partition
from pipelines.sources.reading.item import Item, Media, with_licence
from pipelines.sources.reading.licences import licence_fields, stated_licence
from pipelines.sources.reading.media_reader import MAX_ENCODED
from pipelines.sources.reading.omissions import (
    PICTURE_SUFFIXES,
    data_files,
    is_hidden,
    is_media,
    note_empty,
    unfollowed,
    unlisted_media,
)
from pipelines.sources.reading.spec import SourceSpec, read_units
from pipelines.sources.reading.unpacking import DAMAGE, is_packed, unpack
from pipelines.sources.reading.values import parse_row, text_of, without_absent
from pipelines.sources.web.tables import PICTURES, media_names, table_form
from pipelines.sources.web.tasks import STAGE, WebImage, web_image_items

_IMAGES = tuple(suffix.removeprefix(".") for suffix in PICTURE_SUFFIXES)
_TEXT_SUFFIXES = ("txt", "caption")
_TARS = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tbz", ".tbz2", ".tgz", ".txz")
_ARCHIVES = tuple(sorted(form for suffix in _TARS for form in (suffix, suffix.upper())))
"""Extensions of archives, small and in capitals."""
_TRAIN = frozenset({"train", "training"})
_SPLIT = re.compile(
    r"(?:^|/)(train|training|val|valid|validation|dev|test|testing)(?:[-_.]?\d[^/]*)?(?:/|\.[^/]*$)",
    re.IGNORECASE,
)
"""A folder's or a file's name that is a split's."""
_MAX_TEXT = 16 << 20
"""Largest caption or metadata member read [bytes]; img2dataset's are a few kB."""


def web_units(corpus: Corpus, split: str) -> Iterator[str]:
    """Returns every file that holds samples; archives of one stem are one unit, named by the first.

    Raises:
      FileNotFoundError: if there is none.
    """
    del split  # Web corpora have one.
    units = _corpus_file_roles(corpus).units
    if not units:
        raise FileNotFoundError(
            f"{corpus.folder} holds no .tar, .tgz, .parquet, .arrow, .jsonl, .csv or .tsv file."
        )
    return iter(units)


class _Roles(NamedTuple):
    """The files below a folder: those that begin a unit, others, and those of other splits."""

    units: list[str]
    others: list[str]
    other_splits: dict[str, str]


def _corpus_file_roles(corpus: Corpus) -> _Roles:
    """Returns the files of a corpus, but for the rest of each unit."""
    names = [path.relative_to(corpus.folder).as_posix() for path in corpus.files()]
    # A folder that states splits is read for the one to train on:
    #
    #     data/train-00000-of-00002.parquet   train.jsonl   train2017/a.tar      are
    #     data/test-00000-of-00001.parquet    val.jsonl     validation/a.tar     are not
    splits = {name: match[1].lower() for name in names if (match := _SPLIT.search(name))}
    if _TRAIN.isdisjoint(splits.values()):
        splits = {}
    roles = _Roles([], [], {n: split for n, split in splits.items() if split not in _TRAIN})
    names = [name for name in names if name not in roles.other_splits]
    # x.tar, x.tar.gz and x.parquet belong together: one unit for the archives, and no other for the
    # table. Nor are there others for what img2dataset writes beside archives or tables: statistics
    # and, in x/, the fields of the table's row once more beside its picture.
    stems: set[str] = set()
    tars = {_archive_stem(n) for n in names if _is_archive(n) and not is_hidden(n)}
    tables = {n.removesuffix(".parquet") for n in names if n.endswith(".parquet")}
    beside = {*tars, *(f"{stem}_stats.json" for stem in tars | tables)}
    pictures = (n.rpartition(".")[0] for n in names if is_media(n))
    beside.update(f"{stem}.json" for stem in pictures if posixpath.dirname(stem) in tables)
    for name in names:
        stem = _archive_stem(name)
        if _is_archive(name) and not is_hidden(name):
            if stem not in stems:
                roles.units.append(name)
            stems.add(stem)
        elif stem not in beside:
            holds_samples = table_form(name) is not None and not is_hidden(name)
            (roles.units if holds_samples else roles.others).append(name)
    return roles


def _web_omissions(corpus: Corpus, split: str) -> Iterator[Omission]:
    """Yields the files that look like data and are in no unit, and those of other splits."""
    del split  # Web corpora have one.
    units, others, other_splits = _corpus_file_roles(corpus)
    for name, other in other_splits.items():
        reason = f"of split {other}, beside one to train on"
        yield Omission(source=corpus.relative(corpus.folder / name), reason=reason)
    yield from data_files(corpus, "web", others)
    yield from unfollowed(corpus)
    lists = (corpus.folder / name for name in units if table_form(name))
    listed = itertools.chain.from_iterable(media_names(corpus, path) for path in lists)
    yield from unlisted_media(corpus, others, listed)


def read_web_unit(corpus: Corpus, unit: str) -> Iterator[Item | Reject]:
    """Yields every would-be record of a file, and of all archives that share its stem.

    Ids begin with the stem, so archives of one stem, whose ids may be the same, are one unit.
    """
    licences = licence_fields(corpus.features)
    others_read = {*licences.values(), *(PICTURES if table_form(unit) else ())}
    for file in unit_archives(corpus, unit) or [corpus.folder / unit]:
        counts = corpus.omission_counts(file)
        for sample in note_empty(corpus, file, _samples_of_file(corpus, file, unit)):
            if isinstance(sample, Reject):
                yield sample
                continue
            for reason in sample.unread_fields(others_read):
                counts.add(reason if len(counts) < MAX_REASONS else "further fields", sample.id)
            items = web_image_items(sample, per_task=corpus.per_task, tasks=corpus.tasks)
            try:
                licence = stated_licence(sample.metadata, licences)
            except BadInput as error:
                yield Reject(
                    id=sample.id, stage=STAGE, reason=str(error), source=sample.media.source
                )
            else:
                yield from (with_licence(item, licence) for item in items)


def _samples_of_file(corpus: Corpus, file: Path, unit: str) -> Iterator[WebImage | Reject]:
    form = table_form(unit)
    return _read_tar(corpus, file) if form is None else form.read(corpus, file)


def unit_archives(corpus: Corpus, unit: str) -> list[Path]:
    """Returns the archives of a unit; none for a table, which may name other files."""
    if not _is_archive(unit):
        return []
    archives: list[Path] = []
    for suffix in _ARCHIVES:
        archive = corpus.folder / f"{_archive_stem(unit)}{suffix}"
        # A disk that ignores capitals has x.TAR where it has x.tar.
        if corpus.has(archive) and not (
            corpus.is_local and any(os.path.samefile(archive, other) for other in archives)
        ):
            archives.append(archive)
    return archives


def _is_archive(name: str) -> bool:
    return name.endswith(_ARCHIVES)


def _archive_stem(name: str) -> str:
    suffixes = (*_ARCHIVES, ".parquet")
    return name.removesuffix(max((s for s in suffixes if name.endswith(s)), key=len, default=""))


_HEAD = 32
"""Bytes shown of a file that is no archive: an error page, or a pointer to the file."""

_MAX_KEPT = 64 << 20
"""Most texts of an archive kept for links to them [characters]."""


def _read_tar(corpus: Corpus, path: Path) -> Iterator[WebImage | Reject]:
    """Yields the samples of one archive; a damaged tail is one reject."""
    corpus.annotation(path)
    source = corpus.relative(path)
    base = PurePosixPath("web", _archive_stem(path.relative_to(corpus.folder).as_posix()))
    # Members of one sample follow each other and share a key:
    #
    #   000000012.jpg  000000012.json  000000012.txt  |  000000013.jpg …
    members: list[_NamedContent] = []
    keys: set[int] = set()
    counts, num_members = corpus.omission_counts(path), 0
    # Opened outside of the `try`: an archive that cannot be opened may well be whole.
    with path.open("rb") as file:
        packed = is_packed(cast(BinaryIO, file))
        try:
            # Not unpacked by `tarfile`, which takes the end of gzip's first stream for the file's,
            # and not as its stream, which goes on past the end of what a header overstates.
            with (
                unpack(cast(BinaryIO, file)) as content,
                tarfile.open(None, "r:", content, tarinfo=CheckedMember) as archive,
            ):
                contents = _Contents(corpus, archive, source, packed)
                for member in archive:
                    num_members += 1
                    if (unused := _reason_unused(member)) is not None:
                        if unused:
                            counts.add(unused, member.name)
                        contents.note(member)
                        continue
                    key, extension = _split_name(member.name)
                    if members and members[0][0] != key:
                        yield from _samples_of_members(base, source, members, counts, keys)
                        members = []
                    members.append((key, extension, member.name, contents.read(member, extension)))
                _check_archive_end(archive)
        except (tarfile.TarError, ValueError, OverflowError, *DAMAGE) as error:
            if is_of_machine(error):
                raise
            reason = f"damaged archive: {reason_of(error)}"
            if not num_members and not packed:
                file.seek(0)
                head = file.read(_HEAD)
                reason = f"no archive: it begins with {head!r}" if head else "empty file"
            yield Reject(id=str(base), stage=STAGE, reason=reason, source=source)
    if members:
        yield from _samples_of_members(base, source, members, counts, keys)


def _reason_unused(member: tarfile.TarInfo) -> str | None:
    """Returns why a member is nobody's; "" for a folder, which holds nothing, None if it is."""
    if member.isdir():
        return ""
    name = posixpath.basename(member.name)
    if name.startswith("."):
        return "hidden members (their names begin with a dot)"
    if not (member.isfile() or member.islnk() or member.issym()):
        return "members that are no files"
    return None if "." in name else "members without an extension"


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


class _Fault(str):
    """Why a member cannot be read, in place of its content."""


class _Contents:
    """Contents of an archive's members, and of the links between them."""

    def __init__(self, corpus: Corpus, archive: tarfile.TarFile, source: str, packed: bool) -> None:
        self._corpus, self._archive, self._source = corpus, archive, source
        self._packed = packed
        # What a link may lead to. A plain archive on a disk is read at any place again; of another
        # one, what was read is kept.
        self._members: dict[str, tarfile.TarInfo] = {}
        self._texts: dict[str, Media | str] = {}
        self._num_kept = 0
        self._is_random = corpus.is_local and not packed

    def note(self, member: tarfile.TarInfo) -> None:
        """Notes a member that is not read itself; a link may lead to it."""
        if self._is_random and member.isfile():
            self._members[posixpath.normpath(member.name)] = member

    def read(self, member: tarfile.TarInfo, extension: str) -> Media | str:
        """Returns an image's reference, a text's content, or why the member cannot be read.

        Members of any other kind have the content "": they are no part of the sample.
        """
        if extension not in (*_IMAGES, *_TEXT_SUFFIXES, "json"):
            self.note(member)
            return ""
        name = posixpath.normpath(member.name)
        if member.isfile():
            content = self._read_archive_member(member, member.name, extension)
            self.note(member)
            if not self._is_random and self._num_kept < _MAX_KEPT:
                self._texts[name] = content
                self._num_kept += len(content) if isinstance(content, str) else 0
            return content
        # A hard link names a member from the archive's root, a symbolic one from its own folder.
        folder = "" if member.islnk() else posixpath.dirname(name)
        target = posixpath.normpath(posixpath.join(folder, member.linkname))
        if target in self._members:
            self._members[name] = self._members[target]
            return self._read_archive_member(self._members[target], member.name, extension)
        content = self._texts.get(target)
        is_image = extension in _IMAGES
        if content is None or is_image is not isinstance(content, Media):
            kind = "hard" if member.islnk() else "symbolic"
            reason = f"is a {kind} link to {member.linkname}, which was not read before it"
            return _Fault(f"{member.name} {reason}")
        self._texts[name] = content
        return content

    def _read_archive_member(
        self, member: tarfile.TarInfo, name: str, extension: str
    ) -> Media | str:
        if extension in _IMAGES:
            return self._locate_archive_image(member, name)
        if member.size > _MAX_TEXT:
            return _Fault(f"{name} has {member.size} bytes")
        file = self._archive.extractfile(member)
        try:
            return text_of(file.read() if file else b"", name)
        except BadInput as error:
            return _Fault(str(error))

    def _locate_archive_image(self, member: tarfile.TarInfo, name: str) -> Media | str:
        # An image is not read: in a plain archive its offset finds it again. A packed one has no
        # such offsets, and the bytes of a sparse member are not in one piece: these are unpacked.
        place: dict = {"offset": member.offset_data, "size": member.size}
        if member.size > MAX_ENCODED:
            return _Fault(f"{name} has {member.size} bytes")
        file = self._archive.extractfile(member)
        if self._packed or member.issparse():
            place = self._corpus.unpacked.append(file.read() if file else b"")
        elif file and not self._corpus.is_local:
            with contextlib.suppress(ReadError):  # Cut short: reading the next header fails, too.
                place["crc32c"] = crc32c(file.read())
        return Media(path=self._source, member=name, **place)


_NamedContent = tuple[str, str, str, Media | str]
"""Key, extension, name and content of a member."""


def _samples_of_members(
    base: PurePosixPath,
    source: str,
    members: list[_NamedContent],
    counts: OmissionCounts,
    keys: set[int],
) -> Iterator[WebImage | Reject]:
    """Yields the sample of a key's members, or a reject for each of its pictures.

    The hashes of the archive's keys before it are `keys`, to which its own is added.
    """
    key = members[0][0]
    extensions = ", ".join(f".{extension}" for _, extension, _, _ in members)

    def reject(reason: str, key: str = key) -> Reject:
        return Reject(id=str(base / key), stage=STAGE, reason=reason, source=f"{source}/{key}")

    is_apart = stable_hash(key) in keys
    keys.add(stable_hash(key))
    # An error that a member carries makes the sample a reject, and so do two members of one name.
    seen = [extension for _, extension, _, _ in members]
    caption, metadata, images, others = "", {}, [], []
    for _, extension, name, content in members:
        if extension != "" and seen.count(extension) > 1:
            yield reject(f"{seen.count(extension)} members .{extension}, one is expected")
            return
        if isinstance(content, Media):
            images.append(content)
        elif isinstance(content, _Fault):
            yield reject(content)
            return
        elif extension == "json":
            try:
                metadata = parse_row(content)
            except (ValueError, RecursionError) as error:
                yield reject(f"metadata is {reason_of(error)}")
                return
        elif extension in _TEXT_SUFFIXES:
            if caption.strip() and content.strip() not in ("", caption.strip()):
                yield reject(
                    f"different captions in {extensions}: {caption!r:.40}, {content!r:.40}"
                )
                return
            caption = content if content.strip() else caption
        else:
            others.append((extension, name))
    if len(images) > 1:
        yield reject(f"{len(images)} images among {extensions}, one is expected")
    elif not images:
        # Pictures whose extensions have a further dot: each is named, since none is the sample's.
        pictures = [e for e, _ in others if e.rpartition(".")[2] in _IMAGES]
        for extension in pictures:
            yield reject(
                f"a key ends at the first dot of the name: .{extension} is no image's extension",
                f"{key}.{extension}",
            )
        if not pictures:
            rest = "; the key has more before, and members of a sample must follow each other"
            yield reject(f"no image among {extensions}{rest * is_apart}")
    elif not isinstance(metadata, dict | None):
        yield reject(f"metadata is {kind_of(metadata)}, not an object")
    else:
        for extension, name in others:
            counts.add(f"members .{extension}, which no sample uses", name)
        try:
            fields = with_partition(without_absent(metadata or {}), source)
        except BadInput as error:
            yield reject(str(error))
        else:
            yield WebImage.from_fields(str(base / key), images[0], fields, caption)


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
        omissions=_web_omissions,
        anywhere=True,
        antialias=True,
        antialias_eval=True,
    ),
)
