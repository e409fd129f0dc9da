"""Scores of a baseline that never looks: the best guess from training texts or masks alone."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image

from model.eval.metrics.registry import get_metric
from model.eval.scorer import Scorer, fields_of
from pipelines.records.dataset import Dataset
from pipelines.records.rle import decode_mask
from pipelines.records.schema import Record

_GRID = 64
_THRESHOLDS = np.linspace(0.02, 0.8, 40)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlindScores:
    """Scores of a guess made without pixels.

    Attributes:
      score: score of all records, 0-100.
      rows: id, source_sha256 and score of each record, as in `items.parquet`.
    """

    score: float
    rows: tuple[dict[str, Any], ...]


def blind_baseline(train_dir: str, eval_dir: str, metric: str) -> BlindScores:
    """Returns the scores of a guess that never sees the pixels it is asked about.

    For texts, the guess is the most common training suffix of the same prefix, or of all prefixes
    if that one was never trained on. For masks, it is the mean training mask, cut off at the
    threshold where its IoU with the training masks is best.

    Args:
      train_dir: the dataset the transfer trains on [path].
      eval_dir: the dataset it is scored on [path].
      metric: a name of the registry.
    """
    # The guess is made from the training texts or masks alone; pixels are never opened.
    train, held_out = Dataset(train_dir), Dataset(eval_dir)
    questions, scores = [], []
    if get_metric(metric).reads_masks:
        guess = _best_mask(rle for record in train.records() for rle in record.masks)
        for record in held_out.records():
            questions.append(record)
            iou = _mask_guess_iou(guess, decode_mask(fields_of(record)["masks"][0]))
            scores.append({"score": iou})
        score = 100 * float(np.mean([row["score"] for row in scores])) if scores else 0.0
    else:
        texts, scorer = _Guess(train.records()), Scorer(metric)
        for record in held_out.records():
            questions.append(record)
            scorer.add(texts.best(record.prefix), fields_of(record))
        blind_result = scorer.finish() if scorer.num else None
        score = blind_result.result.total.score if blind_result else 0.0
        scores = [*blind_result.rows()] if blind_result else []
    # A row per question, as a model's predictions have: both are compared record by record.
    rows = (
        {"id": record.id, "source_sha256": record.source_sha256, **row}
        for record, row in zip(questions, scores, strict=True)
    )
    return BlindScores(score=score, rows=tuple(rows))


class _Guess:
    def __init__(self, records: Iterable[Record]) -> None:
        self._by_prefix: dict[str, Counter[str]] = defaultdict(Counter)
        self._overall: Counter[str] = Counter()
        # "answer en how many?" -> {"2": 310, "3": 120, …}: all suffixes of each prefix are counted.
        for record in records:
            for number, suffix in enumerate(record.suffixes):
                for prefix in record.prefixes_of(number):
                    self._by_prefix[prefix][suffix] += 1
            self._overall.update(record.suffixes)

    def best(self, prefix: str) -> str:
        """Returns the most common suffix; of equally common ones, the first in string order."""
        counts = self._by_prefix.get(prefix, self._overall)
        return min(counts, key=lambda suffix: (-counts[suffix], suffix)) if counts else ""


def _best_mask(masks: Iterable[str]) -> Bool[np.ndarray, "64 64"]:
    grids = np.stack([_shrink_mask_to_grid(decode_mask(rle)) for rle in masks])
    # A mean mask has values between 0 and 1. Every cut makes another guess; the best on the
    # training masks is taken.
    mean = grids.mean(axis=0)
    candidates = [mean > t for t in _THRESHOLDS if (mean > t).any()]
    return max(candidates, key=lambda guess: _mean_iou(guess, grids > 0.5))


def _mask_guess_iou(guess: Bool[np.ndarray, "64 64"], mask: Bool[np.ndarray, "H W"]) -> float:
    height, width = mask.shape
    full = Image.fromarray(guess.astype(np.uint8) * 255).resize((width, height))
    predicted = np.asarray(full) > 127
    return float((predicted & mask).sum() / max(1, (predicted | mask).sum()))


def _shrink_mask_to_grid(mask: Bool[np.ndarray, "H W"]) -> Float[np.ndarray, "64 64"]:
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    resized = image.resize((_GRID, _GRID), Image.Resampling.BOX)
    return np.asarray(resized, np.float32) / 255


def _mean_iou(guess: Bool[np.ndarray, "64 64"], masks: Bool[np.ndarray, "N 64 64"]) -> float:
    inter = (masks & guess[None]).sum(axis=(1, 2))
    union = (masks | guess[None]).sum(axis=(1, 2))
    return float(np.mean(inter / np.maximum(union, 1)))
