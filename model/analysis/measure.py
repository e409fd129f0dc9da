"""Spectra of a checkpoint's features, pooled tokens and queries, averaged over images."""

import dataclasses
import functools
import typing
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Float, UInt8

from model import vlm
from model.analysis import spectral
from model.analysis.attention import record_attention
from model.config import ModelConfig
from model.connector import budgets

FEATURES, POOLED, QUERIES = "features", "pooled", "queries"

BATCH = 8
"""Images that are measured at a time."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A radial profile, averaged over images.

    Attributes:
      what: kind of curve: "features" of the vision tower, "pooled" soft tokens on their own grid,
        or "queries", which is the features as queries weigh them.
      budget: soft tokens per image; None for the features, which have no budget.
      grid: side of the grid it was computed on.
      mean_power: mean power in each radial bin, 1 to grid / 2 cycles per image side.
    """

    what: str
    budget: int | None
    grid: int
    mean_power: tuple[float, ...]

    @property
    def radii(self) -> list[int]:
        """Centers of the bins [cycles per image side]."""
        return spectral.radii(self.grid, self.grid).tolist()

    @property
    def shares(self) -> list[float]:
        """Normalized radial mean power [fraction]."""
        return spectral.normalized(np.array(self.mean_power)).tolist()

    @property
    def cumulative(self) -> list[float]:
        """Cumulative spectral concentration [fraction]."""
        return spectral.concentration(np.array(self.mean_power)).tolist()


def measure_spectra(
    cfg: ModelConfig,
    params: vlm.Params,
    images: Sequence[UInt8[np.ndarray, "H W 3"]],
    requested_budgets: Iterable[int],
) -> list[Curve]:
    """Returns the curve of the features, then of pooled tokens and queries at each budget.

    A budget without pooled tokens, or without queries, has no such curve.

    Args:
      cfg: the model.
      params: its parameters.
      images: pixels as in training; at least one.
      requested_budgets: budgets to measure at; the connector must serve all of them.

    Raises:
      ValueError: if a budget is not served, or there is no image.
    """
    # A budget that is listed twice is measured once, in the place where it came first.
    budgets_at = list(dict.fromkeys(requested_budgets))
    for budget in budgets_at:
        budgets.check_budget(cfg, budget)
    if not images:
        raise ValueError("images must hold at least one, got none.")
    profiles: dict[tuple[str, int | None], list[np.ndarray]] = {}
    grids: dict[tuple[str, int | None], int] = {}
    # Features are in memory a batch at a time. Of each image, only its radial profile is kept: as
    # many numbers as there are rings.
    for features in _tower_features(cfg, params, images):
        for kind, budget, grid, spectra in _spectra_of_batch(cfg, params, features, budgets_at):
            profiles.setdefault((kind, budget), []).append(spectral.radial_mean_power(spectra))
            grids[kind, budget] = grid
    # Averaged over images last, so that batches of different sizes do not matter.
    return [
        Curve(*key, grids[key], tuple(np.concatenate(profile).mean(axis=0).tolist()))
        for key, profile in profiles.items()
    ]


def _tower_features(
    cfg: ModelConfig, params: vlm.Params, images: Sequence[np.ndarray]
) -> Iterator[tuple[Float[np.ndarray, "B P C"], int]]:
    """Yields the tower's features of a batch, and how many of its images are not padding."""
    size = min(BATCH, len(images))
    for start in range(0, len(images), size):
        # The last batch is filled up by repeating an image, so that the tower is compiled once. How
        # many are real goes along, and the copies never reach a spectrum.
        batch = list(images[start : start + size])
        filled = np.stack(batch + [batch[-1]] * (size - len(batch)))
        features = _tower(vlm.structure(cfg), params, filled[:, None])[:, 0]
        yield features, len(batch)


_tower = functools.partial(jax.jit, static_argnums=0)(vlm.image_features)


def _spectra_of_batch(
    cfg: ModelConfig,
    params: vlm.Params,
    features_and_count: tuple[typing.Any, int],
    shown_budgets: Sequence[int],
) -> Iterator[tuple[str, int | None, int, Float[np.ndarray, "B H W"]]]:
    features, count = features_and_count
    grid = cfg.vision.grid
    # One spectrum of what goes in, then for each budget one of the pooled cells and one of what the
    # queries read; a connector may lack either.
    source = _token_grid(features[:count], grid)
    yield FEATURES, None, grid, spectral.power_spectrum(source)
    for budget in shown_budgets:
        tokens, weights = record_attention(cfg, params.get("connector", {}), features, budget)
        routing = cfg.connector.routing
        # A pooling method's tokens are all cells of a grid; of PARCEL's, the anchors are.
        pooled = budget if routing.pooled else budgets.num_anchors(cfg, budget)
        if pooled and routing.kernel != 1:  # Vanilla's tokens are the features themselves.
            side = round(pooled**0.5)
            if side * side != pooled or side == 1:
                continue  # A user's own tokens need not form a square, and one cell has no waves.
            cells = _token_grid(tokens[:count, :pooled], side)
            yield POOLED, budget, side, spectral.power_spectrum(cells)
        if weights is not None:
            maps = np.asarray(weights[:count], np.float64)
            outputs = [
                spectral.attended_power_spectrum(*pair) for pair in zip(source, maps, strict=True)
            ]
            yield QUERIES, budget, grid, np.stack(outputs)


def _token_grid(tokens: typing.Any, side: int) -> Float[np.ndarray, "B side side C"]:
    rows = np.asarray(tokens, np.float64)
    return rows.reshape(len(rows), side, side, -1)
