"""What can be scored without looking: the best guess from the training texts or masks alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable

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


def blind_baseline(train_dir: str, eval_dir: str, metric: str) -> float:
    """Returns the score (0-100) of a guess that never sees the pixels it is asked about.

    Texts: the most common training suffix of the same prefix; of all, for a prefix never trained
    on. Masks: the mean training mask, cut where its IoU with the training masks is best.

    Args:
      train_dir: the dataset the transfer trains on [path].
      eval_dir: the dataset it is scored on [path].
      metric: a name of the registry.
    """
    chosen = get_metric(metric)
    train, held_out = Dataset(train_dir), Dataset(eval_dir)
    if chosen.reads_masks:
        return 100 * _blind_iou(
            (rle for record in train.records() for rle in record.masks),
            (rle for record in held_out.records() for rle in fields_of(record)["masks"]),
        )
    guess, scorer = _Guess(train.records()), Scorer(metric)
    for record in held_out.records():
        scorer.add(guess.best(record.prefix), fields_of(record))
    return scorer.finish().result.total.score if scorer.num else 0.0


class _Guess:
    def __init__(self, records: Iterable[Record]) -> None:
        self._by_prefix: dict[str, Counter[str]] = defaultdict(Counter)
        self._overall: Counter[str] = Counter()
        for record in records:
            for number, suffix in enumerate(record.suffixes):
                for prefix in record.prefixes_of(number):
                    self._by_prefix[prefix][suffix] += 1
            self._overall.update(record.suffixes)

    def best(self, prefix: str) -> str:
        """Returns the most common suffix; of equally common ones the first by alphabet."""
        counts = self._by_prefix.get(prefix, self._overall)
        return min(counts, key=lambda suffix: (-counts[suffix], suffix)) if counts else ""


def _blind_iou(train: Iterable[str], held_out: Iterable[str]) -> float:
    grids = np.stack([_small(decode_mask(rle)) for rle in train])
    mean = grids.mean(axis=0)
    candidates = [mean > t for t in _THRESHOLDS if (mean > t).any()]
    best = max(candidates, key=lambda guess: _mean_iou(guess, grids > 0.5))
    ious = []
    for mask in map(decode_mask, held_out):
        height, width = mask.shape
        full = Image.fromarray(best.astype(np.uint8) * 255).resize((width, height))
        guess = np.asarray(full) > 127
        ious.append((guess & mask).sum() / max(1, (guess | mask).sum()))
    return float(np.mean(ious)) if ious else 0.0


def _small(mask: Bool[np.ndarray, "H W"]) -> Float[np.ndarray, "64 64"]:
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    resized = image.resize((_GRID, _GRID), Image.Resampling.BOX)
    return np.asarray(resized, np.float32) / 255


def _mean_iou(guess: Bool[np.ndarray, "64 64"], masks: Bool[np.ndarray, "N 64 64"]) -> float:
    inter = (masks & guess[None]).sum(axis=(1, 2))
    union = (masks | guess[None]).sum(axis=(1, 2))
    return float(np.mean(inter / np.maximum(union, 1)))
