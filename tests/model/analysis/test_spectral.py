"""Spectra of grids whose spectrum is known."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis import spectral
from model.analysis.measure import measure_spectra
from tests.model.tiny_models import VISION, init_params, tiny_config

sides = st.integers(2, 17)


def grating(height: int, width: int, down: int, across: int, phase: float = 0.3) -> np.ndarray:
    """A wave of `down` and `across` cycles per side; (H, W, 1)."""
    rows, columns = np.mgrid[0:height, 0:width]
    angle = 2 * np.pi * (down * rows / height + across * columns / width) + phase
    return np.cos(angle)[..., None]


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def profile(grid: np.ndarray) -> np.ndarray:
    return spectral.radial_mean_power(spectral.power_spectrum(grid))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("cycles", range(1, 8))
def test_a_grating_has_all_its_power_in_one_bin(cycles: int, axis: int):
    shares = spectral.normalized(profile(grating(16, 16, *np.roll([cycles, 0], axis))))
    expected = np.arange(1, 9) == cycles
    np.testing.assert_allclose(shares, expected, atol=1e-12)


def test_a_slanted_grating_lies_at_the_length_of_its_frequency():
    shares = spectral.normalized(profile(grating(16, 16, 3, 4)))
    np.testing.assert_allclose(shares, np.arange(1, 9) == 5, atol=1e-12)
    shares = spectral.normalized(profile(grating(16, 16, 2, 2)))  # 2.83 is nearest to 3.
    np.testing.assert_allclose(shares, np.arange(1, 9) == 3, atol=1e-12)


def test_a_gratings_power_is_two_conjugate_halves():
    power = spectral.power_spectrum(5.0 * grating(16, 12, 2, -3))
    assert power[8 + 2, 6 - 3] == pytest.approx(25 / 4)
    assert power[8 - 2, 6 + 3] == pytest.approx(25 / 4)
    assert power.sum() == pytest.approx(25 / 2)


def test_the_transform_is_the_appendix_sum():
    height, width, channels = 5, 4, 3
    grid = noise(0, height, width, channels)
    centered = spectral.remove_dc(grid)
    rows, columns = np.mgrid[0:height, 0:width]
    for i, u in enumerate(range(-2, 3)):
        for j, v in enumerate(range(-2, 2)):
            basis = np.exp(-2j * np.pi * (u * rows / height + v * columns / width))
            coefficients = np.einsum("hwc,hw->c", centered, basis) / (height * width)
            expected = np.mean(np.abs(coefficients) ** 2)
            assert spectral.power_spectrum(grid)[i, j] == pytest.approx(expected, abs=1e-15)


@given(sides, sides, st.integers(1, 5), st.integers(0, 99))
def test_parseval(height: int, width: int, channels: int, seed: int):
    grid = noise(seed, height, width, channels)
    energy = np.mean(np.square(grid - grid.mean(axis=(0, 1))))
    assert spectral.power_spectrum(grid).sum() == pytest.approx(energy, rel=1e-6)


@given(sides, sides, st.integers(0, 99), st.floats(-1e3, 1e3))
def test_a_constant_added_changes_nothing(height: int, width: int, seed: int, constant: float):
    grid = noise(seed, height, width, 3)
    shifted = grid + constant * np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(profile(shifted), profile(grid), rtol=1e-6, atol=1e-12)
    power = spectral.power_spectrum(shifted)
    assert power[height // 2, width // 2] == pytest.approx(0, abs=1e-18)


@given(st.integers(2, 12), st.integers(0, 99))
def test_rolling_turning_and_mirroring_change_nothing(side: int, seed: int):
    grid = noise(seed, side, side, 2)
    for moved in (np.roll(grid, (1, 2), (0, 1)), np.rot90(grid), grid[::-1], grid[:, ::-1]):
        # An even grid has -n/2 and not n/2: turning it keeps distances all the same.
        np.testing.assert_allclose(profile(moved), profile(grid), rtol=1e-9, atol=1e-15)


@given(st.integers(2, 12), st.integers(0, 99), st.floats(0.1, 10))
def test_shares_sum_to_one_and_do_not_depend_on_scale(side: int, seed: int, scale: float):
    mean_power = profile(noise(seed, side, side, 2))
    np.testing.assert_allclose(spectral.normalized(mean_power).sum(), 1, rtol=1e-9)
    rising = spectral.concentration(mean_power)
    assert np.all(np.diff(rising) >= 0)
    assert rising[-1] == pytest.approx(1)
    np.testing.assert_allclose(spectral.concentration(scale * mean_power), rising, rtol=1e-9)


def test_a_checkerboard_lies_beyond_the_nyquist_circle():
    board = (np.indices((16, 16)).sum(axis=0) % 2)[..., None].astype(float)
    power = spectral.power_spectrum(board)
    assert power[0, 0] == pytest.approx(0.25)  # Frequency (-8, -8), at distance 11.3.
    np.testing.assert_allclose(profile(board), 0, atol=1e-30)
    stripes = (np.indices((16, 16))[0] % 2)[..., None].astype(float)
    assert profile(stripes)[-1] > 0  # Frequency (-8, 0), on the circle.


@pytest.mark.parametrize(
    ("height", "width", "last"), [(16, 16, 8), (8, 8, 4), (7, 9, 3), (2, 2, 1)]
)
def test_bins_end_at_the_nyquist_radius(height: int, width: int, last: int):
    assert spectral.radii(height, width).tolist() == list(range(1, last + 1))
    assert profile(noise(0, height, width, 1)).shape == (last,)


def test_a_mean_does_not_favour_wide_rings():
    flat = np.ones((16, 16))
    np.testing.assert_allclose(spectral.radial_mean_power(flat), 1)


def test_white_noise_is_flat_and_its_pooled_grid_too():
    white = noise(1, 400, 16, 16, 8)
    pooled = white.reshape(400, 8, 2, 8, 2, 8).mean(axis=(2, 4))
    for grids in (white, pooled):
        shares = spectral.normalized(profile(grids).mean(axis=0))
        np.testing.assert_allclose(shares * len(shares), 1, rtol=0.03)


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(0, 99))
def test_even_attention_sees_the_features_themselves(queries: int, seed: int):
    features = noise(seed, 6, 4, 3)
    weights = np.full((queries, 24), 1 / 24)
    seen = spectral.attended_power_spectrum(features, weights)
    np.testing.assert_allclose(seen, spectral.power_spectrum(features), rtol=1e-9, atol=1e-15)


def test_attention_is_averaged_over_queries_after_the_transform():
    features, weights = noise(2, 4, 6, 3), np.exp(noise(3, 5, 24))
    weights /= weights.sum(axis=1, keepdims=True)
    each = [spectral.power_spectrum(features * (24 * w).reshape(4, 6, 1)) for w in weights]
    expected = np.mean(each, axis=0)

    def check(weights: np.ndarray, **chunk: int) -> None:
        seen = spectral.attended_power_spectrum(features, weights, **chunk)
        np.testing.assert_allclose(seen, expected, atol=1e-15)

    check(weights)
    check(7 * weights)
    check(weights, chunk_size=150)  # Two queries at a time, and one left over.


def test_attention_to_stripes_puts_the_power_where_the_stripes_are():
    features = np.ones((16, 16, 2))
    stripes = 1 + 0.9 * grating(16, 16, 0, 6)[..., 0]
    seen = spectral.attended_power_spectrum(features, stripes.reshape(1, 256) / 256)
    shares = spectral.normalized(spectral.radial_mean_power(seen))
    np.testing.assert_allclose(shares, np.arange(1, 9) == 6, atol=1e-12)


@pytest.mark.slow
def test_a_pooling_to_one_cell_has_no_curve():
    vision = dataclasses.replace(VISION, image_px=24 * VISION.patch_px)
    cfg = tiny_config("m3", vision=vision)
    image = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
    curves = measure_spectra(cfg, init_params(cfg, 0), [image], (1, 9, 144))
    assert [(curve.budget, curve.grid) for curve in curves] == [(None, 24), (9, 3), (144, 12)]
