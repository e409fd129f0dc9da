"""An ordinal classifier: it predicts, from an input's features, the least budget that is enough.

    P(budget k is not enough) = sigmoid(w · x - cut[k])        cut[0] <= cut[1] <= ...

All budgets share one direction `w`, so that a larger one is never less likely to be enough. Source:
CORAL, Cao et al., arXiv:1901.07884. The loss is convex: the same items give the same head, without
a seed, a learning rate or a number of steps.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, special

_DECAYS = (1.0, 1e-1, 1e-2, 1e-3)
"""Weight decays that are tried, the strongest first."""
_FOLDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """The head's parameters.

    Attributes:
      budgets: budgets to choose from, ascending [tokens per image].
      center: mean of each feature.
      scale: factor of each centered feature; 0 for those that did not vary.
      weights: weights of the scaled features.
      cuts: one cut for each budget but the largest, ascending.
      decay: weight decay that was chosen.
      left_out: mean cross-entropy on items from sources that were left out of the fit [nats].
    """

    budgets: tuple[int, ...]
    center: Float[np.ndarray, " F"]
    scale: Float[np.ndarray, " F"]
    weights: Float[np.ndarray, " F"]
    cuts: Float[np.ndarray, " K1"]
    decay: float = 0.0
    left_out: float = float("nan")

    def need(self, features: Float[np.ndarray, "N F"]) -> Float[np.ndarray, "N K1"]:
        """Returns the probability that each budget but the largest is not enough, descending."""
        rows = (features - self.center) * self.scale
        return special.expit((rows @ self.weights)[:, None] - self.cuts)

    def save(self, path: Path) -> None:
        """Writes an `.npz`; equal heads give equal bytes."""
        np.savez(
            path,
            budgets=np.array(self.budgets),
            center=self.center,
            scale=self.scale,
            weights=self.weights,
            cuts=self.cuts,
            decay=self.decay,
            left_out=self.left_out,
        )

    @classmethod
    def load(cls, path: Path) -> "Head":
        """Reads what `save` wrote."""
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        numbers = {name: float(arrays.pop(name)) for name in ("decay", "left_out")}
        return cls(budgets=tuple(arrays.pop("budgets").tolist()), **numbers, **arrays)


def choose(need: Float[np.ndarray, "N K1"], threshold: float) -> Int[np.ndarray, " N"]:
    """Returns the index of the least budget that is enough, among the ascending ones."""
    # `need` only falls with the budget, so the count of those above the threshold is that index.
    return (need > threshold).sum(axis=1)


def least_enough(losses: Float[np.ndarray, "N K"], epsilon: float) -> Int[np.ndarray, " N"]:
    """Returns the index of the least budget whose loss is within `epsilon` of the largest one's.

    Args:
      losses: loss of each item at each of the ascending budgets [nats per token].
      epsilon: see `RouterConfig`.
    """
    return (losses <= losses[:, -1:] + epsilon).argmax(axis=1)


def fit(
    features: Float[np.ndarray, "N F"],
    labels: Int[np.ndarray, " N"],
    sources: Sequence[str],
    budgets: tuple[int, ...],
) -> Head:
    """Returns a head fitted to items, with the weight decay that predicts left-out sources best.

    Args:
      features: features of each item.
      labels: index of the least budget that is enough for each item.
      sources: source (picture) of each item; items of one source are left out together.
      budgets: budgets to choose from, ascending [tokens per image].

    Raises:
      ValueError: if there are too few sources to leave some out.
    """
    folds = np.array([zlib.crc32(source.encode()) % _FOLDS for source in sources])
    if len(set(folds.tolist())) < 2:
        raise ValueError(
            f"items to learn from must be about several pictures, got {len(set(sources))}; "
            f"hold back more of the training split (auto.held_back)."
        )

    def left_out(decay: float) -> float:
        total = 0.0
        for fold in sorted(set(folds.tolist())):
            out = folds == fold
            head = _fit(features[~out], labels[~out], budgets, decay)
            total += cross_entropy(head, features[out], labels[out]) * out.sum()
        return total / len(labels)

    lost = {decay: left_out(decay) for decay in _DECAYS}
    decay = min(lost, key=lambda decay: lost[decay])
    return dataclasses.replace(_fit(features, labels, budgets, decay), left_out=lost[decay])


def cross_entropy(
    head: Head, features: Float[np.ndarray, "N F"], labels: Int[np.ndarray, " N"]
) -> float:
    """Returns the cross-entropy, summed over cuts and averaged over items [nats]."""
    wanted = labels[:, None] > np.arange(len(head.cuts))
    need = np.clip(head.need(features), 1e-12, 1 - 1e-12)
    return float(-np.log(np.where(wanted, need, 1 - need)).sum(axis=1).mean())


def _fit(features: np.ndarray, labels: np.ndarray, budgets: tuple[int, ...], decay: float) -> Head:
    center, spread = features.mean(axis=0), features.std(axis=0)
    # Rows of length about 1, so that a decay means the same at every width.
    scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0.0) / np.sqrt(len(center))
    rows = (features - center) * scale
    wanted = (labels[:, None] > np.arange(len(budgets) - 1)).astype(np.float64)
    width = rows.shape[1]

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights, cuts = values[:width], values[width:]
        logits = (rows @ weights)[:, None] - cuts
        loss = (np.logaddexp(0, logits) - wanted * logits).sum() / len(rows)
        slopes = (special.expit(logits) - wanted) / len(rows)
        # Cuts decay a little, too: if all items have the same label, they would grow without end.
        by_weights = rows.T @ slopes.sum(axis=1) + decay * weights
        by_cuts = -slopes.sum(axis=0) + 1e-4 * cuts
        decayed = decay / 2 * weights @ weights + 1e-4 / 2 * cuts @ cuts
        return float(loss + decayed), np.concatenate([by_weights, by_cuts])

    start = np.zeros(width + len(budgets) - 1)
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B").x
    return Head(
        budgets=budgets,
        center=center,
        scale=scale,
        weights=found[:width],
        cuts=np.sort(found[width:]),
        decay=decay,
    )
