"""Answers a prepared benchmark split with a checkpoint, at its budgets. Nothing is scored here."""

import collections
import dataclasses
import functools
import itertools
import json
import statistics
import time
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from infra.progress import Progress
from infra.store.stored_folder import open_stored_folder
from model import vlm
from model.checkpoint.folder import (
    load_config,
    load_params,
    stated_digest,
    tokenizer_path,
)
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Batch
from model.data.parts import open_parts, records_by_id
from model.data.pixels import decode_images
from model.data.text import eval_row
from model.decode.config import DecodeConfig
from model.decode.decoding import decode_tokens
from model.eval.predictions_file import write_predictions
from model.text.tokenizer import Tokenizer
from pipelines.records.schema import Record

_PREFETCHED = 2
"""Number of batches made ahead of the one that is decoded."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory: config, parameters as a nested dict, and tokenizer."""

    model: ModelConfig
    params: dict[str, Any]
    tokenizer: Tokenizer


@dataclasses.dataclass(kw_only=True)
class Answered:
    """Answers to some records.

    Attributes:
      texts: budget -> record's id -> the answer.
      seconds: budget -> mean time of an answer in each full batch but the first [s].
    """

    texts: dict[int, dict[str, str]]
    seconds: dict[int, list[float]]

    @classmethod
    def none(cls, budgets: Iterable[int]) -> "Answered":
        """Returns an empty collection, to add answers to."""
        budgets = list(budgets)
        return cls(texts={b: {} for b in budgets}, seconds={b: [] for b in budgets})

    def add(self, other: "Answered") -> None:
        """Adds answers to other records, at the same budgets."""
        for budget in self.texts.keys() & other.texts.keys():
            self.texts[budget] |= other.texts[budget]
            self.seconds[budget] += other.seconds[budget]

    def to_json(self) -> str:
        """Returns the answers as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Answered":
        """Returns the answers that `to_json` wrote."""
        raw = json.loads(text)
        return cls(**{part: {int(b): of for b, of in raw[part].items()} for part in raw})


def predict(
    checkpoint: str,
    *,
    data: str,
    config: DecodeConfig,
    out: Mapping[int, str],
    known: Sequence[Answered] = (),
) -> Generator[Progress, None, dict[int, float]]:
    """Answers a split; when exhausted, `out` holds the predictions at each budget.

    The split is read while it is decoded: only a few batches of images are in memory, and the
    vision tower runs once per image for all budgets. Of a video, only the first window is used.

    `predictions.jsonl` has a row per record, by id.

    Args:
      checkpoint: checkpoint written by `fit`: a folder, or a place in a bucket.
      data: prepared dataset, all of whose records are answered; as in `StagePaths`.
      config: how to decode.
      out: budget (soft tokens per image, which the connector serves) -> existing folder [path].
      known: results of `predict_piece` for pieces of the split. Only the other records are decoded;
        the written files are the same with or without these.

    Returns:
      Budget -> time per answer, vision tower included: the median over full batches without the
      first, which compiles [s]. Budgets without such a batch are absent.

    Raises:
      ValueError: if a budget is not served.
    """
    loaded = load_checkpoint(checkpoint)
    return (yield from predict_loaded(loaded, data=data, config=config, out=out, known=known))


def predict_loaded(
    loaded: Loaded,
    *,
    data: str,
    config: DecodeConfig,
    out: Mapping[int, str],
    known: Sequence[Answered] = (),
    limit: int | None = None,
) -> Generator[Progress, None, dict[int, float]]:
    """Answers a split with parameters that are in memory already, as `predict` does.

    Args:
      loaded: the checkpoint that answers.
      data: as in `predict`.
      config: likewise.
      out: likewise.
      known: likewise.
      limit: number of records to answer, the first by id; None takes all.
    """
    # Answers come from `known`, or are decoded below. Both are written in the same way, so the
    # files do not show who decoded what.
    rows: dict[int, list[dict[str, Any]]] = {budget: [] for budget in out}
    found = Answered.none(out)
    for piece in known:
        found.add(piece)

    def is_missing(number: int, records: Sequence[Record]) -> bool:
        # A batch is decoded as a whole: if one of its records lacks an answer at one budget, all of
        # them are decoded again at all budgets.
        return any(record.id not in texts for texts in found.texts.values() for record in records)

    answers_of = _answers(loaded, data, config, [*out], is_missing, limit)
    for progress, records, answered in answers_of:
        if answered:
            found.add(answered)
        for budget, texts in found.texts.items():
            rows[budget] += (_row(record, texts[record.id]) for record in records)
        yield progress
    for budget, rows_of_budget in rows.items():
        write_predictions(Path(out[budget]), rows_of_budget)
    return {budget: statistics.median(times) for budget, times in found.seconds.items() if times}


def predict_piece(
    checkpoint: str,
    *,
    data: str,
    config: DecodeConfig,
    budgets: Sequence[int],
    piece: int,
    num_pieces: int,
) -> Generator[Progress, None, Answered]:
    """Returns the answers to a piece of a split, for `predict` to combine.

    A piece consists of batches that `predict` would make of the whole split. In its last digits an
    answer may depend on its batch; with equal batches, it does not depend on who decodes it.

    Args:
      checkpoint: as in `predict`.
      data: likewise.
      config: likewise.
      budgets: soft tokens per image.
      piece: number of the piece, from 0.
      num_pieces: number of pieces of the split.
    """
    loaded = load_checkpoint(checkpoint)
    found = Answered.none(budgets)

    def is_ours(number: int, records: Sequence[Record]) -> bool:
        # Pieces take batches in turn. Of three pieces, piece 0 decodes batches 0 3 6 …, piece 1
        # batches 1 4 7 …; each batch is the same as in an evaluation by one process.
        return number % num_pieces == piece

    for progress, _, answered in _answers(loaded, data, config, budgets, is_ours):
        if answered:
            found.add(answered)
            yield progress
    return found


def _answers(
    loaded: Loaded,
    data: str,
    config: DecodeConfig,
    served: Sequence[int],
    is_wanted: Callable[[int, Sequence[Record]], bool],
    limit: int | None = None,
) -> Iterator[tuple[Progress, Sequence[Record], Answered | None]]:
    """Yields the records of each batch of a split, with their answers where these are wanted."""
    # First of all: a budget that is not served should not fail after an hour at another one.
    for budget in served:
        budgets.check_budget(loaded.model, budget)
    parts = open_parts([data], loaded.model.vision.image_px)
    num = sum(len(part) for part in parts.values())
    total = len(served) * min(num, num if limit is None else limit)
    structure = vlm.structure(loaded.model)
    done, is_first = 0, True
    batches = _batches(itertools.islice(records_by_id(parts), limit), config, loaded, is_wanted)
    for number, (records, batch) in enumerate(batches):
        answered = None
        if batch is not None:
            # What the clock sees of a batch at budgets 16 and 64; the tower's time is in both:
            #
            #     tower ─▶ saw    saw + connector, prefill, tokens at 16     = took at 16
            #                     saw + connector, prefill, tokens at 64     = took at 64
            answered = Answered.none(served)
            began = time.perf_counter()
            # Images go to the device once for all budgets, one batch at a time.
            batch["image"] = jax.block_until_ready(
                vlm.encode_images(structure, loaded.params, batch["image"])
            )
            saw = time.perf_counter() - began
            for budget in served:
                began = time.perf_counter()
                texts = _decode(loaded, batch, budget, config, number)
                took = saw + time.perf_counter() - began
                # The batch is filled up with copies, so there may be more texts than records.
                ids = (record.id for record in records)
                answered.texts[budget] = dict(zip(ids, texts, strict=False))
                # The first batch compiles, and a batch that is partly filler is no fair measure of
                # the time per answer. Neither is counted.
                if not is_first and len(records) == config.batch_size:
                    answered.seconds[budget] = [took / len(records)]
            is_first = False
        done += len(served) * len(records)
        yield Progress(done=done, total=total), records, answered


def _row(record: Record, prediction: str) -> dict[str, Any]:
    return {
        "id": record.id,
        "prefix": record.prefix,
        "prediction": prediction,
        "answers": list(record.answers),
        "source": record.source,
        "source_sha256": record.source_sha256,
    }


def _batches(
    records: Iterator[Record],
    config: DecodeConfig,
    loaded: Loaded,
    is_wanted: Callable[[int, Sequence[Record]], bool],
) -> Iterator[tuple[Sequence[Record], Batch | None]]:
    """Yields (records, batch), prepared ahead in the background; batch is None if not wanted.

    All examples of a batch have the same number of images, so no answer depends on its neighbours,
    and batches with the same number of images have the same shape.
    """
    size, px = config.batch_size, loaded.model.vision.image_px

    def make(number: int, chosen: Sequence[Record]) -> tuple[Sequence[Record], Batch | None]:
        if not is_wanted(number, chosen):
            return chosen, None
        # The last batch of a shape is filled up by repeating a record, so that it needs no program
        # of its own. "real" marks the copies: decoding does not wait for their answers.
        filled = fill_up(chosen, size)
        texts, valid = zip(
            *(eval_row(loaded.tokenizer, r.prefix, config.text_len) for r in filled), strict=True
        )
        num_images = num_images_of(chosen[0], config)
        images = np.stack([decode_images(r.window(), num_images, px) for r in filled])
        batch = {"image": images, "text": np.stack(texts), "mask_input": np.stack(valid)}
        return chosen, {**batch, "real": np.arange(size) < len(chosen)}

    made = itertools.starmap(make, enumerate(grouped(records, config)))
    # A single thread advances the iterator, so batches stay in order while they are made ahead.
    with ThreadPoolExecutor(1) as pool:
        waiting: collections.deque[Future[tuple[Sequence[Record], Batch | None] | None]]
        waiting = collections.deque(pool.submit(next, made, None) for _ in range(_PREFETCHED))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, made, None))
            yield batch


def num_images_of(record: Record, config: DecodeConfig) -> int:
    """Returns the number of images that a record is answered with."""
    return min(config.max_frames, len(record.window()))


T = typing.TypeVar("T")


def fill_up(rows: Sequence[T], size: int) -> list[T]:
    """Returns the rows, filled up to `size` by repeating the last."""
    return [*rows, *[rows[-1]] * (size - len(rows))]


def grouped(records: Iterator[Record], config: DecodeConfig) -> Iterator[Sequence[Record]]:
    """Yields batches of records with equal numbers of images, in the order in which they fill."""
    # Batches of 2, from photos (p, one image) and clips (v, eight frames):
    #
    #     records   p1 v1 p2 p3 v2 p4 p5
    #     batches   [p1 p2] [v1 v2] [p3 p4] [p5]
    groups: dict[int, list[Record]] = {}
    for record in records:
        num = num_images_of(record, config)
        group = groups.setdefault(num, [])
        group.append(record)
        if len(group) == config.batch_size:
            yield groups.pop(num)
    for _, group in sorted(groups.items()):
        yield group


def _decode(
    loaded: Loaded, batch: Batch, budget: int, config: DecodeConfig, number: int
) -> list[str]:
    tokens = decode_tokens(
        vlm.structure(loaded.model),
        loaded.params,
        vlm.Prompt(batch["image"], batch["text"], batch["mask_input"], real=batch["real"]),
        # No masked slots. An evaluation is at a few budgets, so each can have its own program,
        # which computes no slot that is not used.
        vlm.Slots(budgets.exact_bucket(loaded.model, budget).size, budget),
        max_new_tokens=config.text_len,
        stop=loaded.tokenizer.eos_id,
        decoding=config.decoding,
        number=number,
    )
    return [loaded.tokenizer.decode(row) for row in np.asarray(tokens).tolist()]


def load_checkpoint(checkpoint: str) -> Loaded:
    """Returns a checkpoint in memory; the last two stay there, unless their folder is rewritten."""
    return _load(checkpoint, stated_digest(checkpoint))


@functools.lru_cache(maxsize=2)
def _load(checkpoint: str, digest: str) -> Loaded:
    del digest  # It only tells apart what a folder held at different times.
    place = open_stored_folder(checkpoint)
    return Loaded(
        model=load_config(place),
        params=jax.tree.map(jax.numpy.asarray, load_params(place)),
        tokenizer=Tokenizer(tokenizer_path(place)),
    )
