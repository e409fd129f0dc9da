"""The job that every worker of a run gets, and the work folder where workers leave their output.

    <work>/request.json               digest of the request; another request starts over
           code                       digest of the code that works here; other code starts over
           lists/00007                items of a group of units, sorted by shard, then by id
           lists/00007.json           receipt: counts, and where each shard's items end
           lists/00007.omissions      what their reading passed over, if anything (found/ and
                                      pieces/ have such files, too)
           found/00007                candidates, if only a part of the split is taken
           found/00007.ranks          hashes of the candidates' ids
           found/bounds.json          smallest and largest hash that is taken
           names/00007                names of the raw files of a group of units (see `raw_files`)
           unpacked/00007             bytes that cannot be found again by offset
           todo/00003-00012           items of a piece of a shard, sorted by id
           todo/00003.json            receipt: number of pieces of the shard
           pieces/00003-00012.<part>  records of the piece, and their index (.idx)
           pieces/00003-00012.json    receipt: counts, digests
           shards/<name>              a finished shard, and its index
           shards/00003.json          receipt: counts, digests
           earlier/00003              rejects of an earlier dataset, by the shard of their ids
           error.json                 why the run failed, if that is known

A receipt is written after the files it stands for, so a worker that finds one skips that work. Two
workers that do the same work write the same bytes.
"""

import contextlib
import dataclasses
import functools
import io
import json
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import google_crc32c

from infra.source_code import checkout, code_sha256
from infra.store.backend import StoreBackend
from infra.store.manifest import File
from infra.store.raw_path import raw_path
from infra.store.store import canonical_uri
from infra.store.stored_folder import open_backend
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.licence import LICENCES_ENDING, NO_LICENCE, Licence
from pipelines.records.tfrecord import INDEX_ENDING
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.slicing import Slice
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.registry import reader_module, source_spec
from pipelines.transforms.decode import DecodeConfig
from pipelines.video.client import installed_decoder

ERROR = "error.json"
OMITTED = ".omissions"
"""End of the names of files that say what reading has passed over."""

_UNITS = 16
"""Most units in a list."""
_LISTS = 64
"""Fewest lists, if there are as many units: this many workers can list in parallel."""
_TRIES = 4
"""Reads of a range whose checksum does not match, before that is an error."""
_CHUNK = 4 << 20
"""Size of one read from a list [bytes]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareJob:
    """One run as every worker sees it; it has plain values only, so it can be pickled.

    Attributes:
      config: settings of the run.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train".
      data_root: folder of the raw files [path or URI].
      path: the source's folder below `data_root`.
      features: field of the source -> feature of an Example that holds it.
      work: the work folder [path or URI].
      by_archive: whether a shard is a group of archives; otherwise the hash of its id decides a
        record's shard.
      code: digest of the pipelines' code where the run was started (`code_digest`); a worker must
        have the same. "" takes this process's.
      decoder: decoder of videos where the run was started; a worker must have the same. "" takes
        this process's.
      earlier: a dataset whose shards are reused if their inputs are unchanged.
      part: the part of the listed items that is taken; None takes all.
      licence: licence of the source, for the records whose rows state none.
      licences: which licences are allowed; None allows all.
    """

    config: PrepareConfig
    source: str | OwnSource
    split: str
    data_root: str
    path: str
    work: str
    part: Slice | None = None
    features: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by_archive: bool = False
    code: str = ""
    decoder: str = ""
    earlier: "EarlierDataset | None" = None
    licence: Licence = NO_LICENCE
    licences: LicencesConfig | None = None

    def __post_init__(self) -> None:
        if not self.code:
            object.__setattr__(self, "code", self.process_code)
        if not self.decoder:
            object.__setattr__(self, "decoder", installed_decoder(self.config.decoder))

    @property
    def process_code(self) -> str:
        """The digest of the code by which this process would do the job."""
        return code_digest(self.source if isinstance(self.source, str) else self.source.reader)

    @property
    def spec(self) -> SourceSpec:
        """The corpus layout."""
        return source_spec(self.source)

    @property
    def decode(self) -> DecodeConfig:
        """The settings that turn the source's media into pixels."""
        return self.config.decode_config(self.spec, self.split)

    def corpus(self, data_root: Path, unpacked: UnpackedMedia) -> Corpus:
        """Returns the source's folder below the opened data root."""
        return Corpus(
            data_root,
            self.path,
            unpacked,
            per_task=self.config.examples_per_task,
            tasks=self.config.tasks,
            features=self.features,
        )

    def shard_name(self, part: str, shard: int) -> str:
        """Returns the file name of one part's shard."""
        return f"{part}-{shard:05d}-of-{self.config.num_shards:05d}.tfrecord"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlierDataset:
    """A dataset that the same code and config made from an earlier state of the raw files.

    Attributes:
      store: folder or gs://bucket/prefix that holds both this dataset and the work folder.
      folder: the dataset's folder in `store`.
    """

    store: str
    folder: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartShard:
    """One part's records in a shard or in a piece of one: their number and files.

    Attributes:
      num_records: number of records.
      data: the records.
      index: their offsets.
      licences: their licences; None if no record states one.
    """

    num_records: int
    data: File
    index: File
    licences: File | None = None

    @property
    def files(self) -> dict[str, File]:
        """Ending of the name -> file; that of the records has none."""
        files = {"": self.data, INDEX_ENDING: self.index}
        return files | ({LICENCES_ENDING: self.licences} if self.licences else {})


def file_of_shard(shard: str, ending: str) -> str:
    """Returns the name of a file of a finished shard, by its ending in `PartShard.files`."""
    return str(Path(shard).with_suffix(ending)) if ending else shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardReport:
    """Receipt of a shard or of a piece of one.

    Attributes:
      num_items: number of items, including those that could not even be listed.
      num_rejects: number of items that did not become records.
      parts: part -> its records.
      inputs: digest of the items and of the media they refer to; "" if it is unknown [hex].
      is_taken: whether the shard was reused from an earlier dataset.
      num_composed: records in which the background shows through transparent pixels.
      decoders: decoder of videos -> records that it decoded; empty unless decord is wanted.
    """

    num_items: int
    num_rejects: int
    parts: dict[str, PartShard]
    inputs: str = ""
    is_taken: bool = False
    num_composed: int = 0
    decoders: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def to_json(self) -> bytes:
        """Returns the report as the bytes of a receipt."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Reads a receipt."""
        raw = json.loads(text)
        for part, fields in raw["parts"].items():
            named = {name: fields.get(name) for name in ("data", "index", "licences")}
            files: Any = {name: file and File(**file) for name, file in named.items()}
            raw["parts"][part] = PartShard(num_records=fields["num_records"], **files)
        return cls(**raw)


def plan_job(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    work: str,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    earlier: EarlierDataset | None = None,
    licence: Licence = NO_LICENCE,
    licences: LicencesConfig | None = None,
) -> tuple[PrepareJob, list[str]]:
    """Returns the job of a run and the units that can be listed separately; "" is the whole split.

    Args:
      config: settings of the run.
      source: name of the corpus layout, or a source that the user wrote.
      split: the split, for example "train" or "train+val".
      data_root: folder or gs://bucket/prefix that holds the source's folder.
      work: a folder or gs://bucket/prefix that only this run uses.
      path: the source's folder below `data_root`; None takes the usual one.
      features: field -> feature of an Example; see `pipelines.sources.reading.corpus.FEATURES`.
      earlier: a dataset whose shards are reused if their inputs are unchanged.
      licence: licence of the source, for the records whose rows state none.
      licences: which licences are allowed; None allows all.

    Raises:
      ValueError: if the source or the split does not exist.
      FileNotFoundError: if the corpus is missing, naming it.
    """
    spec = source_spec(source)
    spec.parse(split)
    job = PrepareJob(
        config=config,
        source=source,
        split=split,
        data_root=resolve_folder("data_root", data_root),
        path=path or spec.folder,
        features=features or {},
        work=work,
        earlier=earlier,
        licence=licence,
        licences=licences,
    )
    # Three ways to list, from the most parallel to the least:
    #
    #   units apart              each worker lists some of them
    #   part of a split          the same, and then a second step narrows the lists
    #   [""], the whole split    one worker lists it all, as an order over all of it decides
    listed_split, part = spec.part_of(split, config.limit)
    # A limit on several splits, or on a part of one, counts over all of them: one list for all.
    if config.limit and part is None:
        return job, [""]
    units = spec.units_of(WorkFolder(job).corpus(UnpackedMedia()), listed_split)
    if units == [""]:
        return job, units
    if part is not None:
        return dataclasses.replace(job, part=part), units
    # Shards by archive need ids that cannot collide between archives: nothing compares them later.
    by_archive = config.shard_by == "archive" and spec.has_unique_ids
    return dataclasses.replace(job, by_archive=by_archive), units


class WorkFolder:
    """A worker's access to the work folder and the raw data of one run. Not thread-safe.

    Attributes:
      files: the work folder.

    Raises:
      RuntimeError: if this process runs other code than the process that started the run, or has
        another decoder of videos.
    """

    def __init__(self, job: PrepareJob) -> None:
        self.job = job
        self.files: StoreBackend = open_backend(job.work)
        different = ""
        if job.code != job.process_code:
            different = "runs a different version of the pipelines' code than"
        elif (decoder := installed_decoder(job.config.decoder)) != job.decoder:
            different = f"decodes videos with {decoder}, not with {job.decoder} as does"
        if different:
            error = RuntimeError(
                f"worker on {socket.gethostname()} {different} the process that started the run; "
                f"install the same version there."
            )
            self.note_error(error)
            raise error

    @functools.cached_property
    def data_root(self) -> Path:
        """The raw data, over a connection that only this worker uses."""
        return raw_path(self.job.data_root)

    def corpus(self, unpacked: UnpackedMedia) -> Corpus:
        """Returns the source's folder."""
        return self.job.corpus(self.data_root, unpacked)

    def receipt(self, name: str) -> bytes | None:
        """Returns a receipt, or None if there is none yet."""
        try:
            return self.files.read(name)
        except FileNotFoundError:
            return None

    def lines(self, name: str) -> Iterator[str]:
        """Yields the lines of a work file; it is read whole and, from a bucket, verified."""
        return split_json_lines(self.files.read(name))

    def section(self, name: str, start: int, end: int, crc: int) -> Iterator[str]:
        """Yields the lines in bytes start..end-1 of a work file, checked against their crc32c.

        Memory does not grow with their number.

        Raises:
          OSError: if the checksum does not match in any of `_TRIES` reads.
        """
        # A bucket checks whole objects only, so the receipt holds a checksum per range. The lines
        # are yielded after the check, from a copy: no consumer may see bytes that turn out wrong.
        with tempfile.SpooledTemporaryFile(_CHUNK) as copy:
            for _ in range(_TRIES):
                copy.seek(0)
                checksum = 0
                for begin in range(start, end, _CHUNK):
                    data = self.files.read_range(name, begin, min(_CHUNK, end - begin))
                    checksum = google_crc32c.extend(checksum, data)
                    copy.write(data)
                if checksum == crc:
                    copy.seek(0)
                    yield from io.TextIOWrapper(copy, "utf-8", newline="\n")  # type: ignore[arg-type]
                    return
        raise OSError(f"{self.job.work}/{name} does not match its checksum")

    def note_omissions(self, name: str, corpus: Corpus) -> None:
        """Notes what reading has passed over, beside a list or a piece, if anything."""
        if lines := "".join(f"{omission.to_json()}\n" for omission in corpus.omissions()):
            self.files.put(f"{name}{OMITTED}", lines.encode())

    def note_error(self, error: BaseException) -> None:
        """Notes why the run fails, for the process that started it."""
        text = " ".join(str(error).split())
        kinds = [kind.__name__ for kind in type(error).__mro__]
        with contextlib.suppress(OSError):  # The disk may be full; then the runner's error counts.
            self.files.put(ERROR, json.dumps({"kinds": kinds, "text": text}).encode())


def split_json_lines(data: bytes) -> Iterator[str]:
    """Yields lines of JSON, each with its newline."""
    # Not `splitlines`: it also splits at characters (such as U+2028) that JSON leaves unescaped.
    return (f"{line}\n" for line in data.decode().split("\n") if line)


@functools.cache
def code_digest(reader: str) -> str:
    """Returns the digest of the code by which this process prepares what a reader reads [hex].

    It is the code of a step, as `infra.source_code` defines it, as far as workers have it: an edit
    of a comment, or of another reader, leaves it as it is, and half-prepared data with it.
    """
    start = ("pipelines.prepare.run", reader_module(reader))
    # The registry knows every reader, but one of them makes a dataset.
    return code_sha256(checkout().reach(start, stop=("pipelines.sources.registry",)))


def count_receipts(files: StoreBackend) -> dict[str, int]:
    """Returns the number of receipts in each folder."""
    folders = ("names", "found", "lists", "todo", "pieces", "shards")
    return {f: sum(n.endswith(".json") for n in files.listing(f)) for f in folders}


def parse_receipt(text: bytes | None) -> Any:
    """Returns the value of a receipt."""
    return None if text is None else json.loads(text)


def group_units(units: Sequence[str]) -> Iterator[list[str]]:
    """Yields the units in groups of neighbours; one worker lists a group."""
    # 1,000 units ─▶ 67 lists of 15; 10 units ─▶ 10 lists of 1; 10,000 units ─▶ 625 lists of 16.
    size = max(1, min(_UNITS, len(units) // _LISTS))
    for start in range(0, len(units), size):
        yield list(units[start : start + size])


def resolve_folder(field: str, uri: str) -> str:
    """Returns a folder's absolute path, or its URI.

    Raises:
      ValueError: if it is neither, naming the field.
    """
    try:
        return canonical_uri(uri)
    except ValueError:
        raise ValueError(f"{field} must be a folder or gs://bucket/prefix, got {uri!r}.") from None
