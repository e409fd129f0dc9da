"""Spatial-frequency spectra of feature grids, as the paper defines them.

Source: PARCEL, appendix "Spectral Analysis Protocol". Everything is computed in float64, on the
grid's own resolution: pooled grids are never upsampled. Frequencies are in cycles per image side.

Letters: H, W a grid's sides, C channels, Q queries, R = floor(min(H, W) / 2) radial bins.
"""

import math

import numpy as np
from jaxtyping import Float, Int

EPSILON = 1e-15
"""Keeps the normalizations finite. Source: PARCEL, appendix "Spectral Analysis Protocol"."""


def remove_dc(grid: Float[np.ndarray, "*B H W C"]) -> Float[np.ndarray, "*B H W C"]:
    """Returns the grid minus each channel's spatial mean, in float64."""
    grid = np.asarray(grid, np.float64)
    return grid - grid.mean(axis=(-3, -2), keepdims=True)


def power_spectrum(grid: Float[np.ndarray, "*B H W C"]) -> Float[np.ndarray, "*B H W"]:
    """Returns the power of every frequency, averaged over channels, without the constant part.

    The transform is divided by H * W: the powers sum to the mean square of the deviations from
    each channel's mean, whatever the grid's size. Frequency 0 is at [H // 2, W // 2].
    """
    height, width = grid.shape[-3:-1]
    spectrum = np.fft.fft2(remove_dc(grid), axes=(-3, -2)) / (height * width)
    power = np.mean(np.square(spectrum.real) + np.square(spectrum.imag), axis=-1)
    return np.fft.fftshift(power, axes=(-2, -1))


def nyquist_radius(height: int, width: int) -> float:
    """Returns the radius of the largest circle of frequencies that a grid represents whole."""
    return min(height, width) / 2


def radii(height: int, width: int) -> Int[np.ndarray, " R"]:
    """Returns the centers of a grid's radial bins: 1, 2, ... up to its Nyquist radius."""
    return np.arange(1, math.floor(nyquist_radius(height, width)) + 1)


def radial_mean_power(power: Float[np.ndarray, "*B H W"]) -> Float[np.ndarray, "*B R"]:
    """Returns the mean power of the frequencies in each ring of width 1.

    Ring r holds the frequencies at distance [r - 1/2, r + 1/2) of 0, up to the Nyquist radius;
    frequencies beyond, in the corners, are left out. Being a mean, a wide ring weighs no more.

    Args:
      power: power spectra from `power_spectrum`.
    """
    # The rings of a 4 x 4 grid, frequency 0 at [2, 2]. Corners are beyond the Nyquist radius of 2,
    # and 0 itself is the constant part:
    #
    #     .  .  2  .
    #     .  1  1  1
    #     2  1  0  1
    #     .  1  1  1
    height, width = power.shape[-2:]
    distance = np.hypot(
        *np.meshgrid(_centered_frequencies(height), _centered_frequencies(width), indexing="ij")
    )
    inside = distance <= nyquist_radius(height, width)
    rings = [
        inside & (radius - 0.5 <= distance) & (distance < radius + 0.5)
        for radius in radii(height, width)
    ]
    return np.stack([power[..., ring].mean(axis=-1) for ring in rings], axis=-1)


def normalized(mean_power: Float[np.ndarray, "*B R"]) -> Float[np.ndarray, "*B R"]:
    """Returns each bin's share of the sum over all bins.

    Args:
      mean_power: a radial profile; for a dataset, the mean of its images' profiles.
    """
    return mean_power / (np.sum(mean_power, axis=-1, keepdims=True) + EPSILON)


def concentration(mean_power: Float[np.ndarray, "*B R"]) -> Float[np.ndarray, "*B R"]:
    """Returns the share of all bins up to each: it rises fast where low frequencies dominate."""
    return np.cumsum(normalized(mean_power), axis=-1)


def attended_power_spectrum(
    features: Float[np.ndarray, "H W C"],
    weights: Float[np.ndarray, "Q P"],
    *,
    chunk_size: int = 1 << 22,
) -> Float[np.ndarray, "H W"]:
    """Returns the power spectrum of the features as a query weighs them, averaged over queries.

    Queries have no grid of their own, so the spectrum is that of the features they attend to. Each
    query's weights are scaled to a spatial mean of 1, and multiply the features before the
    transform.

    Args:
      features: features of the vision tower, on their grid.
      weights: softmax weights of each query, averaged over heads; P = H * W, row by row.
      chunk_size: complex numbers transformed at a time; the default takes 64 MiB.
    """
    height, width, channels = features.shape
    features = np.asarray(features, np.float64)
    maps = np.asarray(weights, np.float64).reshape(-1, height, width)
    maps = maps / (maps.mean(axis=(1, 2), keepdims=True) + EPSILON)
    # A spectrum for each of Q queries and C channels is too much to hold; a few queries are
    # transformed at a time, and only their sum is kept.
    chunk = max(1, chunk_size // (height * width * channels))
    total = np.zeros((height, width))
    for start in range(0, len(maps), chunk):
        weighted = features[None] * maps[start : start + chunk, :, :, None]
        total += power_spectrum(weighted).sum(axis=0)
    return total / len(maps)


def _centered_frequencies(side: int) -> Int[np.ndarray, " side"]:
    return np.arange(side) - side // 2
