"""A source as shards of work: lists of its would-be records."""

import contextlib
import heapq
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipelines.records.dataset import REJECTS, shard_of
from pipelines.records.hashing import stable_hash
from pipelines.records.lines import sorted_lines
from pipelines.records.schema import Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.spec import SourceSpec


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
