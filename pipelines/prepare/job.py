"""What every worker of a run is told, and where it leaves what it has done.

    <work>/request.json               what is prepared; another request does not go on from here
           code                       digest of the pipelines' code; other code begins anew
           lists/00007                items of a group of units: by shard, then by id
           lists/00007.json           how many, and where each shard's begin; it appears last
           found/00007                the same of all there is, where only a part is taken
           found/00007.ranks          hashes of its ids
           found/bounds.json          least and greatest hash that is taken
           names/00007                names of the raw files of a group of units (see `raw_files`)
           unpacked/00007             bytes that cannot be found again by offset
           todo/00003-00012           the items of a piece of a shard, by id
           todo/00003.json            how many pieces there are; it appears last
           pieces/00003-00012.<part>  its records, and their index (.idx)
           pieces/00003-00012.json    what became of each item; it appears last
           shards/<name>              a finished shard, and its index
           shards/00003.json          its digests and counts; it appears last
           earlier/00003              rejects of an earlier dataset, by the shard of their ids
           error.json                 why the run failed, where that is known

A file that appears last is the receipt of those before it. Whoever finds one goes on from there:
what is done twice has the same bytes.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import google_crc32c

import infra
import pipelines
from infra.store.files import Files
from infra.store.manifest import File
from infra.store.places import open_files
from infra.store.raw_path import raw_path
from infra.store.store import full_uri
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.corpus import Corpus, Spool
from pipelines.sources.own_source import OwnSource
from pipelines.sources.registry import get
from pipelines.sources.slicing import Slice
from pipelines.sources.spec import SourceSpec
from pipelines.transforms.decode import DecodeConfig

ERROR = "error.json"
_UNITS = 16
"""Most units in a list."""
_LISTS = 64
"""Lists at least, if there are as many units: so many workers list at a time."""
_TRIES = 4
"""Of a range that came with another checksum."""
_CHUNK = 4 << 20
"""Of a list that is read at a time [bytes]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What every worker of a run shares; plain values, so it travels to any worker.

    Attributes:
      config: the run.
      source: name of the corpus layout, or one of the user's own.
      split: such as "train".
      data_root: where the raw files are [path or URI].
      path: the source's folder below it.
      features: which feature of an Example holds what.
      work: where work is left [path or URI].
      by_archive: whether a shard is a group of archives; otherwise it goes by the id's hash.
      code: digest of the pipelines' code where the run was started; a worker has the same.
      earlier: a dataset whose shards are taken where their inputs are the same.
      part: what of all that is listed is taken; None takes all.
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
    code: str = dataclasses.field(default_factory=lambda: code_sha256())
    earlier: "Earlier | None" = None

    @property
    def spec(self) -> SourceSpec:
        """The corpus layout."""
        return get(self.source)

    @property
    def decode(self) -> DecodeConfig:
        """How the source's media become pixels."""
        return self.config.decode_config(self.spec, self.split)

    def shard_name(self, part: str, shard: int) -> str:
        """Returns the file name of one part's shard."""
        return f"{part}-{shard:05d}-of-{self.config.num_shards:05d}.tfrecord"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """A dataset of the same config that the same code made from other raw files.

    Attributes:
      store: a folder, or gs://bucket/prefix, that both it and the work folder are in.
      folder: its own name there.
    """

    store: str
    folder: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartShard:
    """The records of one part in a shard, or in a piece of one: how many, and their files."""

    num_records: int
    data: File
    index: File


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What became of the items of a shard, or of a piece of one.

    Attributes:
      num_items: how many there were, those that could not even be listed included.
      num_rejects: of them, how many did not become records.
      parts: part -> its records.
      inputs: digest of the items and of what they refer to; "" where none is known [hex].
      is_taken: whether it is an earlier dataset's.
    """

    num_items: int
    num_rejects: int
    parts: dict[str, PartShard]
    inputs: str = ""
    is_taken: bool = False

    def to_json(self) -> bytes:
        """Returns the report as the bytes of a receipt."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Reads a receipt."""
        raw = json.loads(text)
        for part, found in raw["parts"].items():
            files = {name: File(**found[name]) for name in ("data", "index")}
            raw["parts"][part] = PartShard(num_records=found["num_records"], **files)
        return cls(**raw)


def begun(
    config: PrepareConfig,
    *,
    source: str | OwnSource,
    split: str,
    data_root: str,
    work: str,
    path: str | None = None,
    features: Mapping[str, str] | None = None,
    earlier: Earlier | None = None,
) -> tuple[Job, list[str]]:
    """Returns a run, and the names of what can be listed apart for it; "" is the whole.

    Args:
      config: how.
      source: name of the corpus layout, or one of the user's own.
      split: such as "train", or "train+val".
      data_root: the folder that holds the source's own, or gs://bucket/prefix.
      work: a folder of this run alone, or gs://bucket/prefix.
      path: the source's folder below `data_root`; None takes the usual one.
      features: which feature of an Example holds what; see `pipelines.sources.corpus.FEATURES`.
      earlier: a dataset whose shards are taken where their inputs are the same.

    Raises:
      ValueError: if the source or the split does not exist.
      FileNotFoundError: if the corpus is missing, naming it.
    """
    spec = get(source)
    spec.parse(split)
    job = Job(
        config=config,
        source=source,
        split=split,
        data_root=place_of("data_root", data_root),
        path=path or spec.folder,
        features=features or {},
        work=work,
        earlier=earlier,
    )
    whole, part = spec.part_of(split, config.limit)
    if config.limit and part is None:
        return job, [""]
    units = spec.units_of(Desk(job).corpus(Spool()), whole)
    if units == [""]:
        return job, units
    if part is not None:
        return dataclasses.replace(job, part=part), units
    by_archive = config.shard_by == "archive" and spec.has_own_ids
    return dataclasses.replace(job, by_archive=by_archive), units


class Desk:
    """A worker's access to one run: its work folder, its raw data. Of one thread.

    Attributes:
      files: the work folder.

    Raises:
      RuntimeError: if this process has other code than the one that started the run.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.files: Files = open_files(job.work)
        if job.code != code_sha256():
            error = RuntimeError(
                f"worker on {socket.gethostname()} has other code of the pipelines than the "
                f"process that started the run; install the same version there."
            )
            self.note_error(error)
            raise error

    @functools.cached_property
    def data_root(self) -> Path:
        """The raw data, with a connection of this worker's own."""
        return raw_path(self.job.data_root)

    def corpus(self, spool: Spool) -> Corpus:
        """Returns the source's folder."""
        config = self.job.config
        return Corpus(
            self.data_root,
            self.job.path,
            spool,
            per_task=config.examples_per_task,
            tasks=config.tasks,
            features=self.job.features,
        )

    def receipt(self, name: str) -> bytes | None:
        """Returns a receipt, or None if there is none yet."""
        try:
            return self.files.read(name)
        except FileNotFoundError:
            return None

    def lines(self, name: str) -> Iterator[str]:
        """Yields the lines of a work file, which is read whole and compared with its checksum."""
        return lines_of(self.files.read(name))

    def section(self, name: str, start: int, end: int, crc: int) -> Iterator[str]:
        """Yields the lines in bytes start..end-1 of a work file, compared with their crc32c.

        Memory does not grow with them.

        Raises:
          OSError: if other bytes come, again and again.
        """
        with tempfile.SpooledTemporaryFile(_CHUNK) as copy:
            for _ in range(_TRIES):
                copy.seek(0)
                found = 0
                for begin in range(start, end, _CHUNK):
                    data = self.files.read_range(name, begin, min(_CHUNK, end - begin))
                    found = google_crc32c.extend(found, data)
                    copy.write(data)
                if found == crc:
                    copy.seek(0)
                    yield from io.TextIOWrapper(copy, "utf-8", newline="\n")  # type: ignore[arg-type]
                    return
        raise OSError(f"{self.job.work}/{name} came with other bytes than were written")

    def note_error(self, error: BaseException) -> None:
        """Leaves word of why the run fails, for whoever started it."""
        text = " ".join(str(error).split())
        kinds = [kind.__name__ for kind in type(error).__mro__]
        with contextlib.suppress(OSError):  # As where the disk is full; the runner tells then.
            self.files.put(ERROR, json.dumps({"kinds": kinds, "text": text}).encode())


def lines_of(data: bytes) -> Iterator[str]:
    """Yields lines of JSON, each with its end."""
    # Not `splitlines`, which knows more ends of lines than JSON escapes.
    return (f"{line}\n" for line in data.decode().split("\n") if line)


@functools.cache
def code_sha256() -> str:
    """Returns the digest of the pipelines' code, and of the store's, as this process has it."""
    digest = hashlib.sha256()
    for package in (pipelines, infra):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def work_counts(files: Files) -> dict[str, int]:
    """Returns how many receipts there are, by folder."""
    folders = ("names", "found", "lists", "todo", "pieces", "shards")
    return {f: sum(n.endswith(".json") for n in files.listing(f)) for f in folders}


def load(text: bytes | None) -> Any:
    """Returns the value of a receipt."""
    return None if text is None else json.loads(text)


def grouped(units: Sequence[str]) -> Iterator[list[str]]:
    """Yields the units in groups of neighbours, each of which is listed by one worker."""
    size = max(1, min(_UNITS, len(units) // _LISTS))
    for start in range(0, len(units), size):
        yield list(units[start : start + size])


def place_of(field: str, uri: str) -> str:
    """Returns a folder's absolute path, or its URI.

    Raises:
      ValueError: if it is neither, naming the field.
    """
    try:
        return full_uri(uri)
    except ValueError:
        raise ValueError(f"{field} must be a folder or gs://bucket/prefix, got {uri!r}.") from None
