"""Pictures are known again however they were changed, and others are not taken for them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.hygiene import CHANGES, measure, read_folder, stored
from pipelines.hygiene.alignment import likeness
from pipelines.hygiene.fingerprint import WHOLE, WINDOWS, coarse_vectors, fingerprint
from pipelines.hygiene.index import MIN_LIKENESS, Index
from tests.pipelines.hygiene.conftest import draw

CHARTS = Path(__file__).parents[3] / ".." / "shared" / "data" / "opencqa" / "chart_images"
NUM = 40


@pytest.fixture(scope="module")
def index() -> Index:
    prints = [fingerprint(stored(draw(seed))) for seed in range(NUM)]
    return Index([p for p in prints if p is not None])


@pytest.mark.parametrize("name", list(CHANGES))
def test_planted_duplicates_are_found(index, name):
    rng = np.random.default_rng(3)
    planted = [fingerprint(stored(CHANGES[name](draw(seed), rng))) for seed in range(NUM)]
    found = index.search(planted)
    hits = [seed in {one.row for one in row} for seed, row in enumerate(found)]
    assert np.mean(hits) >= 0.95


def test_other_pictures_are_not(index):
    others = [fingerprint(stored(draw(1000 + seed))) for seed in range(NUM)]
    assert index.search(others) == [[] for _ in range(NUM)]


@given(seed=st.integers(0, 10_000), down=st.floats(0, 0.1), across=st.floats(0, 0.1))
@settings(deadline=None, max_examples=15)
def test_any_crop_of_a_tenth_is_the_same_picture_both_ways(seed, down, across):
    whole = draw(seed)
    left, top = round(across * whole.width), round(down * whole.height)
    part = whole.crop((left, top, left + 270, top + 270))
    a, b = (fingerprint(stored(image)) for image in (whole, part))
    assert Index([a]).search([b])[0]
    assert Index([b]).search([a])[0]


def test_alignment_says_more_than_the_bare_overlap():
    whole = draw(5)
    a, b = (fingerprint(stored(i)) for i in (whole, whole.crop((30, 0, 300, 270))))
    bare = float((a * 1.0 * b).sum() / np.linalg.norm(a * 1.0) / np.linalg.norm(b * 1.0))
    aligned = likeness(b, a, ((0.9, 0.0), (0.9, 0.1)))
    assert bare < 0.5 < MIN_LIKENESS < aligned
    assert likeness(a, a, (WHOLE, WHOLE)) == pytest.approx(1, abs=1e-3)


def test_the_first_window_is_the_whole_picture():
    made = fingerprint(stored(draw(1)))
    vectors = coarse_vectors(np.stack([made, made]))
    assert vectors.shape == (len(WINDOWS), 2, 192)
    assert WINDOWS[0] == (WHOLE, WHOLE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-4)


def test_blank_pictures_have_no_fingerprint():
    assert fingerprint(stored(Image.new("RGB", (50, 40), (200, 30, 30)))) is None


def test_only_earlier_rows_are_looked_at_where_asked():
    made = fingerprint(stored(draw(1)))
    found = Index([made, made]).search([made, made], before=[0, 1])
    assert [[one.row for one in row] for row in found] == [[], [0]]


def test_an_empty_index_finds_nothing():
    assert Index([]).search([fingerprint(stored(draw(1)))]) == [[]]


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.skipif(not CHARTS.is_dir(), reason="needs ../shared/data, published charts")
def test_real_charts_are_found_and_told_apart():
    pictures = read_folder(CHARTS, limit=30)
    prints = [fingerprint(stored(image)) for image in pictures.values()]
    result = measure(pictures, Index(prints), 0)
    together = result["recall"].pop("everything")
    assert min(result["recall"].values()) >= 0.95
    assert together >= 0.8
    assert result["alarms"]["0.70"] == 0
