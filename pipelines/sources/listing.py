"""Listing a source: its would-be records as shards of work, and the files it depends on."""

import contextlib
import hashlib
import heapq
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pipelines.records.dataset import REJECTS, shard_of
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Reject
from pipelines.sources.item import Corpus, Item, Spool, stable_hash
from pipelines.sources.registry import SourceSpec, get


class RawFile(NamedTuple):
    """One file a dataset is made from: its path below the data root, digest [hex], size [bytes]."""

    path: str
    sha256: str
    size: int


def inventory(
    source: str, split: str, data_root: str | os.PathLike[str], *, path: str | None = None
) -> list[RawFile]:
    """Returns every file that preparing `split` of `source` would read, sorted by path.

    Media that annotations name but nobody has are left out: their absence shows in the rejects.

    Args:
      source: name of the corpus layout.
      split: such as "train", or "train+val".
      data_root: the folder that holds the source's own.
      path: the source's folder below it; None takes the usual one.

    Raises:
      ValueError: if the source or the split does not exist.
      FileNotFoundError: if an annotation file is missing, naming it.
    """
    spec = get(source)
    corpus = Corpus(data_root, path or spec.folder, Spool(None))
    paths = {
        media.path
        for found in spec.read_splits(corpus, split)
        if isinstance(found, Item)
        for media in found.media
    }
    present = sorted(
        p for p in paths | corpus.annotations if os.path.isfile(os.path.join(data_root, p))
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda p: _digest(Path(data_root), p), present))


def _digest(data_root: Path, path: str) -> RawFile:
    with (data_root / path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return RawFile(path=path, sha256=digest, size=file.tell())


def work_file(work: str | os.PathLike[str], shard: int) -> Path:
    """Returns where the items of one shard are listed."""
    return Path(work) / f"{shard:05d}.items"


class Listed(NamedTuple):
    """What a source holds: items, inputs that could not even be listed, and names of parts."""

    num_items: int
    num_rejects: int
    parts: tuple[str, ...]


def list_work(
    spec: SourceSpec, corpus: Corpus, split: str, work: Path, *, num_shards: int, limit: int | None
) -> Listed:
    """Lists the items of every shard in its `work_file`, and the rejects in `REJECTS` beside them.

    Memory does not grow with the corpus.
    """
    found = spec.read_splits(corpus, split)
    if limit is not None:
        found = iter(heapq.nsmallest(limit, found, key=lambda one: (stable_hash(one.id), one.id)))
    num_items, num_rejects, parts = 0, 0, set()
    with contextlib.ExitStack() as stack:
        rejected = stack.enter_context((work / REJECTS).open("wb"))
        paths = [work_file(work, shard) for shard in range(num_shards)]
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for one in found:
            one, line = _line(one)
            if isinstance(one, Reject):
                rejected.write(line)
                num_rejects += 1
            else:
                files[shard_of(one.id, num_shards)].write(line)
                num_items += 1
                parts.add(one.part)
    corpus.spool.close()
    return Listed(num_items, num_rejects, tuple(sorted(parts)))


def _line(one: Item | Reject) -> tuple[Item | Reject, bytes]:
    """Returns what was found as a line, a reject if it cannot be: half a UTF-16 pair in JSON."""
    try:
        return one, f"{one.to_json()}\n".encode()
    except UnicodeEncodeError:
        source = one.media[0].source if isinstance(one, Item) else one.source
        reason = "text is not Unicode" if isinstance(one, Item) else one.reason
        identity, reason, source = (
            field.encode("utf-8", "backslashreplace").decode() for field in (one.id, reason, source)
        )
        reject = Reject(id=identity, stage="read", reason=reason, source=source)
        return reject, f"{reject.to_json()}\n".encode()


def read_work(work: str | os.PathLike[str], shard: int) -> Iterator[Item]:
    """Yields the items of one shard, sorted by id."""
    lines = sorted_lines([work_file(work, shard)], lambda row: row["id"], str(work))
    return map(Item.from_json, lines)
