"""Which rows of a batch are computed together, so that their texts fit into few places.

A device computes its rows of a batch in parts, one after the other (`microbatch`). The texts of a
part are packed into a number of places that its program is compiled for (`model.text.packing`). So
the rows of a host are dealt out to its devices and their parts until all have about as much text.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int

from model.data.loader import Batch, Loader
from model.sharding import AXES
from model.train.config import TrainConfig
from model.train.step import LENGTH, NUMBER

_MAX_UPDATES, _MIN_UPDATES, _MAX_ROWS = 64, 16, 4096
"""Updates whose texts say how many places are needed: 64, or fewer where that would be more than
4,096 rows to read on a host, but at least 16."""

_AHEAD = 2
"""Updates before which processes ask each other whether all have packed theirs."""

_MULTIPLE = 4
"""What a number of places that is chosen here is a multiple of [tokens]."""

_LEAST_GAIN = 0.95
"""Share of the padded length above which packing is not worth a second program."""


def text_lengths(mask_loss: Int[np.ndarray, "B T1"]) -> Int[np.ndarray, " B"]:
    """Returns how many tokens of each text are read for its targets; 0 without targets.

    What is behind the token before the last target has no effect: it is padding, the end itself, or
    a question without an answer, and nothing before it sees it.
    """
    # Read a b c d . .; targets are c and d, so a b c are read:
    #
    #     text        a b c d . .
    #     mask_loss   0 0 1 1 0 0      targets: position 1 predicts c, position 2 predicts d
    places = np.arange(1, mask_loss.shape[1])
    return np.max(np.where(mask_loss[:, 1:] > 0, places, 0), axis=1).astype(np.int32)


def deal(lengths: Int[np.ndarray, " B"], num_parts: int) -> Int[np.ndarray, "P R"]:
    """Returns rows for each of P parts, R = B / P, so that sums of lengths differ little."""
    # From the longest to the shortest, to and fro, as captains choose teams:
    #
    #     lengths   9 8 7 6 5 4         part   0  1  2 | 2  1  0      sums 13, 13, 13
    order = np.argsort(-lengths, kind="stable").reshape(-1, num_parts)
    order[1::2] = order[1::2, ::-1]
    return np.sort(order.T, axis=1)


def packed_batch(batch: Batch, num_parts: int, places: int, first: int = 0) -> Batch:
    """Returns a batch with its rows dealt out to parts, and with what packing needs to know.

    It has two more arrays: `number`, of each row's example in the whole batch, and `length` of its
    text. Where the texts of a part do not fit, `length` is missing: this batch is not packed.

    Args:
      batch: this host's rows of a batch.
      num_parts: parts of this host's devices; consecutive rows belong to one.
      places: places for the texts of a part.
      first: number of the first row's example in the batch of all hosts.
    """
    lengths = text_lengths(batch["mask_loss"])
    parts = deal(lengths, num_parts)
    rows = parts.ravel()
    dealt = {name: array[rows] for name, array in batch.items()}
    dealt[NUMBER] = (first + rows).astype(np.int32)
    if lengths[parts].sum(axis=1).max() <= places:
        dealt[LENGTH] = lengths[rows]
    return dealt


def packed_shards(batch: Batch, num_shards: int, passes: int, places: int, first: int = 0) -> Batch:
    """Returns a batch whose virtual shards are packed each for itself; see `packed_batch`.

    Where the texts of a shard do not fit, its lengths are -1: that shard is not packed.

    Args:
      batch: this host's rows of a batch.
      num_shards: shards of this host.
      passes: parts of a shard.
      places: places for the texts of a part.
      first: number of the first row's example in the batch of all hosts.
    """
    rows = len(batch["text"]) // num_shards
    shards = []
    for start in range(0, num_shards * rows, rows):
        shard = {name: array[start : start + rows] for name, array in batch.items()}
        shard = packed_batch(shard, passes, places, first + start)
        shards.append({LENGTH: np.full(rows, -1, np.int32), **shard})
    return {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}


def is_packed(batch: Batch) -> bool:
    """Returns whether all texts of this host's rows are packed."""
    return LENGTH in batch and bool(np.all(batch[LENGTH] >= 0))


def with_packing(train: TrainConfig, loader: Loader) -> TrainConfig:
    """Returns the recipe with a number, or none, in place of `pack: auto`.

    All processes that train together get the same: the most that any of the first updates needs,
    rounded up, so that most seeds share programs; a pure function of data, recipe and devices.

    Args:
      train: the training recipe, with a number for `microbatch`.
      loader: the loader of this process's rows.
    """
    if train.pack != "auto":
        fills = train.text_places >= train.text_len
        return dataclasses.replace(train, pack=None) if fills else train
    if jax.default_backend() == "cpu":
        return dataclasses.replace(train, pack=None)
    num_parts, rows = _parts_of_host(train)
    num_updates = min(train.total_steps, _MAX_UPDATES)
    # Of virtual shards the number is for any number of hosts: all rows count, not this host's.
    rows_read = num_parts * rows if train.exact_shards is None else train.batch_size
    num_updates = min(num_updates, max(_MIN_UPDATES, _MAX_ROWS // rows_read))
    needed = 0
    for texts in loader.texts(num_updates):
        lengths = text_lengths(texts["mask_loss"])
        for shard in np.split(lengths, _num_shards_of_host(train)):
            parts = deal(shard, num_parts * len(shard) // len(lengths))
            needed = max(needed, int(shard[parts].sum(axis=1).max()))
    if jax.process_count() > 1:
        needed = int(multihost_utils.process_allgather(np.int32(needed)).max())
    pack = max(1, -(-needed // (rows * _MULTIPLE))) * _MULTIPLE
    is_worth_it = pack <= _LEAST_GAIN * train.text_len
    return dataclasses.replace(train, pack=pack if is_worth_it else None)


def packed_batches(
    loader: Loader, train: TrainConfig, mesh: Mesh, start: int, stop: int
) -> Iterator[Batch]:
    """Yields the batches of steps start..stop-1, packed where `pack` is a number and they fit.

    All processes have theirs packed, or none has: each runs the same program.

    Args:
      loader: the loader of this process's rows.
      train: the training recipe, with numbers for `microbatch` and `pack`.
      mesh: the mesh of devices.
      start: first step.
      stop: end of the steps.
    """
    if not train.text_places:
        yield from loader.batches(start, stop)
        return
    num_parts, rows = _parts_of_host(train)
    places, first = rows * train.text_places, jax.process_index() * num_parts * rows
    if train.exact_shards is not None:
        shards = _num_shards_of_host(train)
        yield from loader.batches(
            start, stop, lambda b: packed_shards(b, shards, num_parts // shards, places, first)
        )
        return
    batches = loader.batches(start, stop, lambda b: packed_batch(b, num_parts, places, first))
    if not mesh.is_multi_process:
        yield from batches
        return
    sharding = NamedSharding(mesh, P(AXES))
    all_of = jax.jit(jnp.all, out_shardings=NamedSharding(mesh, P()))
    # Processes ask each other two updates before the answer is read, so that no device waits for
    # it, and the host runs ahead of the devices as it does without:
    #
    #     devices    all 0 | all 1 | all 2 | step 0 | all 3 | step 1 | all 4 | step 2 …
    ahead = collections.deque[tuple[Batch, jax.Array]]()
    for batch in batches:
        fits = np.full(mesh.local_mesh.size, LENGTH in batch)
        ahead.append((batch, all_of(jax.make_array_from_process_local_data(sharding, fits))))
        if len(ahead) > _AHEAD:
            yield _drop_lengths_unless_packed(*ahead.popleft())
    yield from itertools.starmap(_drop_lengths_unless_packed, ahead)


def _drop_lengths_unless_packed(batch: Batch, is_packed: jax.Array) -> Batch:
    if bool(is_packed):
        return batch
    return {name: array for name, array in batch.items() if name != LENGTH}


def _num_shards_of_host(train: TrainConfig) -> int:
    """Returns in how many shards, each packed alone, a host's rows are; 1 without virtual ones."""
    return 1 if train.exact_shards is None else train.exact_shards // jax.process_count()


def _parts_of_host(train: TrainConfig) -> tuple[int, int]:
    """Returns the number of parts that a host's devices compute, and the rows of each."""
    rows = train.rows_of_part(jax.device_count())
    passes = train.num_passes(rows)
    return train.batch_size // rows // jax.process_count() * passes, rows // passes
