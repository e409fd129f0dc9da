"""Scores a checkpoint on a prepared benchmark split at its budgets, by decoding."""

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from infra.progress import Progress
from infra.store.places import open_place
from model import vlm
from model.checkpoint.folder import (
    load_config,
    load_params,
    mask_codec_path,
    stated_digest,
    tokenizer_path,
)
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Batch, decode_images
from model.data.parts import open_parts, records_by_id
from model.data.text import eval_row
from model.decode.decoding import decode
from model.eval.config import EvalConfig
from model.eval.metrics.registry import get_metric
from model.eval.scorer import Scorer, fields_of
from model.files import PREDICTIONS, SCORE
from model.masks.codec import MaskCodec
from model.text.tokenizer import Tokenizer
from pipelines.records.schema import Record

_PREFETCHED = 2
"""Batches made ahead of the one that is decoded."""


@dataclasses.dataclass(frozen=True)
class _Loaded:
    model: ModelConfig
    params: dict[str, Any]
    tokenizer: Tokenizer
    codec: MaskCodec | None


def evaluate(
    checkpoint: str, *, data: str, config: EvalConfig, out: Mapping[int, str]
) -> Iterator[Progress]:
    """Scores a checkpoint; when exhausted, `out` holds predictions and score of each budget.

    The split is read as it is decoded: a few batches of its images are in memory, and the vision
    tower looks at each once, for all budgets. Of a video its first window counts.

    `predictions.jsonl` has a row per record, by id; `score.json` the metric, its score (0-100),
    the number of records, the sum of their scores and, where there is a breakdown, its parts.

    Args:
      checkpoint: written by `fit`: a folder, or a place in a bucket.
      data: prepared dataset, all of whose records are scored; as in `StagePaths`.
      config: how to decode and score.
      out: budget, soft tokens per image that the connector serves -> an existing folder [path].

    Raises:
      ValueError: if a budget is not served, or the metric reads masks and there is no codec.
    """
    loaded = _load(checkpoint, stated_digest(checkpoint))
    for budget in out:
        budgets.check_budget(loaded.model, budget)
    metric = get_metric(config.metric)
    if metric.reads_masks and loaded.codec is None:
        raise ValueError(f"metric {config.metric!r} needs a mask codec; the checkpoint has none.")
    parts = open_parts([data], loaded.model.vision.image_px)
    total = len(out) * sum(len(part) for part in parts.values())
    scored = {budget: _Answers(config.metric) for budget in out}
    given = {"decode_mask": loaded.codec.decode} if loaded.codec else {}
    structure = vlm.structure(loaded.model)
    for number, (chosen, batch) in enumerate(_batches(records_by_id(parts), config, loaded)):
        # On their way to the device once, and of one batch only.
        batch["image"] = vlm.see(structure, loaded.params, batch["image"])
        for budget, answers in scored.items():
            texts = _decode(loaded, batch, budget, config, number)
            for record, text in zip(chosen, texts, strict=False):
                answers.add(record, text, {**fields_of(record), **given})
            yield Progress(done=sum(len(a.rows) for a in scored.values()), total=total)
    for budget, answers in scored.items():
        answers.write(Path(out[budget]))


class _Answers:
    """The answers at one budget."""

    def __init__(self, metric: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self._scorer = Scorer(metric)

    def add(self, record: Record, prediction: str, fields: Mapping[str, Any]) -> None:
        """Adds the answer to a record; `fields` are what the metric reads."""
        self._scorer.add(prediction, fields)
        row = {
            "id": record.id,
            "prefix": record.prefix,
            "prediction": prediction,
            "answers": list(record.answers),
            "source": record.source,
            "source_sha256": record.source_sha256,
        }
        self.rows.append(row)

    def write(self, out: Path) -> None:
        """Writes predictions and score into a folder."""
        scored = self._scorer.finish()
        by_id = sorted(zip(self.rows, scored.items, strict=True), key=lambda pair: pair[0]["id"])
        lines = [
            json.dumps({**row, "score": item.score}, ensure_ascii=False, sort_keys=True) + "\n"
            for row, item in by_id
        ]
        (out / PREDICTIONS).write_text("".join(lines))
        result = scored.result.as_json(self._scorer.name)
        (out / SCORE).write_text(json.dumps(result, sort_keys=True) + "\n")


def _batches(
    records: Iterator[Record], config: EvalConfig, loaded: _Loaded
) -> Iterator[tuple[Sequence[Record], Batch]]:
    """Yields (records, batch) with a batch or two prepared in the background.

    The examples of a batch have as many images as each other, so none's answer depends on those
    beside it; batches with as many images are of one shape.
    """
    size, px = config.batch_size, loaded.model.vision.image_px

    def make(chosen: Sequence[Record]) -> tuple[Sequence[Record], Batch]:
        filled = [*chosen, *[chosen[-1]] * (size - len(chosen))]
        texts, valid = zip(
            *(eval_row(loaded.tokenizer, r.prefix, config.text_len) for r in filled), strict=True
        )
        num_images = _num_images(chosen[0], config)
        images = np.stack([decode_images(r.window(), num_images, px) for r in filled])
        batch = {"image": images, "text": np.stack(texts), "mask_input": np.stack(valid)}
        return chosen, {**batch, "real": np.arange(size) < len(chosen)}

    made = map(make, _grouped(records, size, lambda record: _num_images(record, config)))
    with ThreadPoolExecutor(1) as pool:
        waiting: collections.deque[Future[tuple[Sequence[Record], Batch] | None]]
        waiting = collections.deque(pool.submit(next, made, None) for _ in range(_PREFETCHED))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, made, None))
            yield batch


def _num_images(record: Record, config: EvalConfig) -> int:
    return min(config.max_frames, len(record.window()))


def _grouped(
    records: Iterator[Record], size: int, key: Callable[[Record], int]
) -> Iterator[Sequence[Record]]:
    """Yields up to `size` records that share a key, in the order in which a group is whole."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        group = groups.setdefault(key(record), [])
        group.append(record)
        if len(group) == size:
            yield groups.pop(key(record))
    for _, group in sorted(groups.items()):
        yield group


def _decode(
    loaded: _Loaded, batch: Batch, budget: int, config: EvalConfig, number: int
) -> list[str]:
    tokens = decode(
        vlm.structure(loaded.model),
        loaded.params,
        vlm.Prompt(batch["image"], batch["text"], batch["mask_input"], real=batch["real"]),
        vlm.Slots(budgets.exact_bucket(loaded.model, budget).size, budget),
        max_new_tokens=config.text_len,
        stop=loaded.tokenizer.eos_id,
        decoding=config.decoding,
        number=number,
    )
    return [loaded.tokenizer.decode(row) for row in np.asarray(tokens).tolist()]


@functools.lru_cache(maxsize=2)
def _load(checkpoint: str, digest: str) -> _Loaded:
    """Loads a checkpoint once for all budgets; `digest` tells a folder written anew."""
    del digest
    place = open_place(checkpoint)
    codec = mask_codec_path(place)
    return _Loaded(
        model=load_config(place),
        params=jax.tree.map(jax.numpy.asarray, load_params(place)),
        tokenizer=Tokenizer(tokenizer_path(place)),
        codec=MaskCodec.load(codec) if codec else None,
    )
