"""Answers a prepared benchmark split with a checkpoint, at its budgets. Nothing is scored here.

Every device of the process decodes a batch of its own at a time. A batch's records, and the program
that decodes it, are those of an evaluation by one device, and so are its answers.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import statistics
import time
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from infra.cores import num_cores
from infra.progress import COMPILING, Progress
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
from model.data.text import answer_text, eval_row, prefix_ids
from model.decode.config import DecodeConfig
from model.decode.memory import free_bytes, row_bytes, rows_that_fit
from model.decode.rows import decode_rows, decoding_params, encode_rows, local_mesh
from model.eval.predictions_file import write_predictions
from model.text.tokenizer import Tokenizer
from pipelines.records.schema import Record

_PREFETCHED = 2
"""Number of batches made ahead of those that are decoded, for each device."""
_PROMPT_SHARES = (0.25, 0.5, 1.0)
"""Lengths that a batch of prompts is padded to, as shares of `DecodeConfig.text_len`."""
_LEAST_PROMPT = 16
"""Shortest of these lengths [tokens]."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory: config, parameters, tokenizer, and the devices that decode.

    Attributes:
      model: the model's config.
      params: the parameters as a nested dict, as `decoding_params` gives them.
      tokenizer: the tokenizer.
      mesh: the devices, each with a copy of the parameters.
    """

    model: ModelConfig
    params: dict[str, Any]
    tokenizer: Tokenizer
    mesh: Mesh

    @classmethod
    def of(cls, model: ModelConfig, params: dict[str, Any], tokenizer: Tokenizer) -> "Loaded":
        """Returns a checkpoint from its float32 parameters, on all devices of this process."""
        mesh = local_mesh()
        return cls(model, decoding_params(model, params, mesh), tokenizer, mesh)


class _Numbered(typing.NamedTuple):
    """A batch: its number, its records, and its arrays, or None if it is not decoded."""

    number: int
    records: Sequence[Record]
    batch: Batch | None

    @property
    def shape(self) -> tuple[int, int]:
        """Images per row, and length of the prompts; these decide the program."""
        assert self.batch is not None
        return self.batch["image"].shape[1], self.batch["text"].shape[1]


@dataclasses.dataclass(kw_only=True)
class Answered:
    """Answers to some records.

    Attributes:
      texts: budget -> record's id -> the answer.
      seconds: budget -> mean time of an answer in each round of full batches, but for the first of
        a shape [s].
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
      Budget -> time per answer, vision tower included: the median over rounds of full batches, one
      on each device, without the first of a shape, which compiles [s]. Budgets without such a
      round are absent.

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

    answers_of = _answer_split_batches(loaded, data, config, [*out], is_missing, limit)
    for progress, records, answered in answers_of:
        if answered:
            found.add(answered)
        for budget, texts in found.texts.items():
            rows[budget] += (_prediction_row(record, texts[record.id]) for record in records)
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

    for progress, _, answered in _answer_split_batches(loaded, data, config, budgets, is_ours):
        if answered:
            found.add(answered)
            yield progress
    return found


def _answer_split_batches(
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
    done, rows_of_shape = 0, dict[tuple[int, int], int]()
    batches = _prepare_evaluation_batches(
        itertools.islice(records_by_id(parts), limit), config, loaded, is_wanted
    )
    for group in _group_batches_by_shape(batches, loaded.mesh.size):
        records = [record for numbered in group for record in numbered.records]
        answered = None
        if group[0].batch is not None:
            is_first = (shape := group[0].shape) not in rows_of_shape
            if is_first:
                yield Progress(done=done, total=total, note=COMPILING), (), None
                rows_of_shape[shape] = _rows_at_a_time(loaded, config, served, *shape)
            answered = _answer_round(loaded, config, served, group, rows_of_shape[shape])
            # The first round of a shape compiles, and one that is partly filler is no fair measure
            # of the time per answer. Neither is counted.
            is_full = len(records) == config.batch_size * loaded.mesh.size
            if is_first or not is_full:
                answered.seconds.update({budget: [] for budget in served})
        done += len(served) * len(records)
        yield Progress(done=done, total=total), records, answered


def _group_batches_by_shape(
    batches: Iterator[_Numbered], size: int
) -> Iterator[Sequence[_Numbered]]:
    """Yields batches in groups of at most `size` of one shape; those that are not wanted, alone."""
    waiting: dict[tuple[int, int], list[_Numbered]] = {}
    for numbered in batches:
        if numbered.batch is None:
            yield [numbered]
            continue
        group = waiting.setdefault(numbered.shape, [])
        group.append(numbered)
        if len(group) == size:
            yield waiting.pop(numbered.shape)
    for _, group in sorted(waiting.items()):
        yield group


def _answer_round(
    loaded: Loaded,
    config: DecodeConfig,
    served: Sequence[int],
    group: Sequence[_Numbered],
    rows: int,
) -> Answered:
    """Returns the answers to a group of batches, one for each device, and the time per answer.

    Each device decodes `rows` rows of its batch at a time.
    """
    # A device without a batch gets a copy of another one's, none of whose rows is waited for.
    batches = [numbered.batch for numbered in group if numbered.batch is not None]
    idle = {**batches[-1], "real": np.zeros(config.batch_size, bool)}
    numbers = fill_up([numbered.number for numbered in group], loaded.mesh.size)
    batches += [idle] * (loaded.mesh.size - len(batches))
    answered, num = Answered.none(served), sum(len(numbered.records) for numbered in group)
    took = dict.fromkeys(served, 0.0)
    # Memory for half a batch: every device decodes first rows 0 to 15 of its batch, then 16 to 31.
    # Parts that would be filler on every device are left out.
    for start in range(0, max(len(numbered.records) for numbered in group), rows):
        part = {
            name: np.concatenate([batch[name][start : start + rows] for batch in batches])
            for name in batches[0]
        }
        # What the clock sees at budgets 16 and 64; the tower's time is in both:
        #
        #     tower ─▶ saw    saw + connector, prefill, tokens at 16     = took at 16
        #                     saw + connector, prefill, tokens at 64     = took at 64
        began = time.perf_counter()
        # Images go to the devices once for all budgets, one part at a time.
        structure = vlm.structure(loaded.model)
        part["image"] = jax.block_until_ready(
            encode_rows(structure, loaded.params, part["image"], loaded.mesh)
        )
        saw = time.perf_counter() - began
        for budget in served:
            began = time.perf_counter()
            texts = _decode_predictions(loaded, part, budget, config, numbers)
            took[budget] += saw + time.perf_counter() - began
            for number, numbered in enumerate(group):
                # A batch is filled up with copies, so there may be more texts than records.
                ids = (record.id for record in numbered.records[start : start + rows])
                answers = texts[number * rows : (number + 1) * rows]
                answered.texts[budget].update(zip(ids, answers, strict=False))
    answered.seconds.update({budget: [seconds / num] for budget, seconds in took.items()})
    return answered


def _rows_at_a_time(
    loaded: Loaded, config: DecodeConfig, served: Sequence[int], num_images: int, text_len: int
) -> int:
    """Returns the number of a batch's rows that a device decodes at a time: all, if they fit."""
    if config.decoding.temperature:
        return config.batch_size  # A row's draw depends on its place in the batch.
    needed = row_bytes(
        loaded.model,
        max(budgets.exact_bucket(loaded.model, budget).size for budget in served),
        num_images=num_images,
        text_len=text_len,
        new_tokens=config.text_len,
        beams=config.decoding.beams,
    )
    return rows_that_fit(config.batch_size, needed, free_bytes(loaded.mesh.devices[0]))


def _prediction_row(record: Record, prediction: str) -> dict[str, Any]:
    return {
        "id": record.id,
        "prefix": record.prefix,
        "prediction": prediction,
        "answers": list(record.answers),
        "source": record.source,
        "source_sha256": record.source_sha256,
    }


def _prepare_evaluation_batches(
    records: Iterator[Record],
    config: DecodeConfig,
    loaded: Loaded,
    is_wanted: Callable[[int, Sequence[Record]], bool],
) -> Iterator[_Numbered]:
    """Yields batches, prepared ahead in the background.

    All examples of a batch have the same number of images, so no answer depends on its neighbours,
    and batches with the same number of images, and prompts of about one length, have the same
    shape.
    """
    size, px = config.batch_size, loaded.model.vision.image_px

    def make(number: int, chosen: Sequence[Record]) -> _Numbered:
        if not is_wanted(number, chosen):
            return _Numbered(number, chosen, None)
        num_images = num_images_of(chosen[0], config)
        images = np.empty((size, num_images, px, px, 3), np.uint8)

        def decode(row: int) -> None:
            images[row] = decode_images(chosen[row].window(), num_images, px)

        decoded = decoders.map(decode, range(len(chosen)))
        # The last batch of a shape is filled up by repeating a record, so that it needs no program
        # of its own. "real" marks the copies: decoding does not wait for their answers.
        prefixes = [record.prefix for record in fill_up(chosen, size)]
        prompt = loaded.model.prompt
        longest = max(len(prefix_ids(loaded.tokenizer, prefix, prompt)) for prefix in prefixes)
        length = prompt_length(longest, config.text_len)
        rows = [eval_row(loaded.tokenizer, prefix, length, prompt=prompt) for prefix in prefixes]
        for _ in decoded:  # Waits, and raises what a thread raised.
            pass
        images[len(chosen) :] = images[len(chosen) - 1]
        batch = {"image": images, **{name: np.stack([r[name] for r in rows]) for name in rows[0]}}
        return _Numbered(number, chosen, {**batch, "real": np.arange(size) < len(chosen)})

    made = itertools.starmap(make, enumerate(grouped(records, config)))
    # A single thread advances the iterator, so batches stay in order while they are made ahead; it
    # has others decode the images.
    with ThreadPoolExecutor(num_cores()) as decoders, ThreadPoolExecutor(1) as pool:
        waiting: collections.deque[Future[_Numbered | None]] = collections.deque(
            pool.submit(next, made, None) for _ in range(_PREFETCHED * loaded.mesh.size)
        )
        while (numbered := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, made, None))
            yield numbered


def prompt_length(longest: int, text_len: int) -> int:
    """Returns the length that a batch of prompts is padded to, one of a few [tokens].

    Args:
      longest: length of the longest prompt.
      text_len: greatest length; longer prompts are cut.
    """
    # Of text_len 64: 16, 32 or 64, so that a budget needs at most three programs.
    for share in _PROMPT_SHARES:
        length = min(text_len, max(_LEAST_PROMPT, math.ceil(share * text_len)))
        if longest <= length:
            return length
    return text_len


def num_images_of(record: Record, config: DecodeConfig) -> int:
    """Returns the number of images that a record is answered with.

    Raises:
      ValueError: if it has none.
    """
    if not record.images:
        raise ValueError(
            f"a question must have a picture to be scored, got record {record.id!r} of text alone."
        )
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


def _decode_predictions(
    loaded: Loaded, batch: Batch, budget: int, config: DecodeConfig, numbers: Sequence[int]
) -> list[str]:
    tokens = decode_rows(
        vlm.structure(loaded.model),
        loaded.params,
        vlm.Prompt(
            batch["image"],
            batch["text"],
            batch["mask_input"],
            batch.get("mask_ar"),
            real=batch["real"],
        ),
        # No masked slots. An evaluation is at a few budgets, so each can have its own program,
        # which computes no slot that is not used.
        vlm.Slots(budgets.exact_bucket(loaded.model, budget).size, budget),
        mesh=loaded.mesh,
        max_new_tokens=config.text_len,
        stop=loaded.tokenizer.eos_id,
        decoding=config.decoding,
        numbers=numbers,
    )
    prompt = loaded.model.prompt
    return [answer_text(loaded.tokenizer, row, prompt) for row in np.asarray(tokens).tolist()]


def load_checkpoint(checkpoint: str) -> Loaded:
    """Returns a checkpoint in memory; the last two stay there, unless their folder is rewritten."""
    return _load_evaluation_checkpoint(checkpoint, stated_digest(checkpoint))


@functools.lru_cache(maxsize=2)
def _load_evaluation_checkpoint(checkpoint: str, digest: str) -> Loaded:
    del digest  # It only tells apart what a folder held at different times.
    place = open_stored_folder(checkpoint)
    return Loaded.of(load_config(place), load_params(place), Tokenizer(tokenizer_path(place)))
