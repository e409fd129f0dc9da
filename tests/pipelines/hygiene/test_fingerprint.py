"""Pictures are known again however they were changed, and others are not taken for them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from benchmarks.hygiene import CHANGES, main, rate, read_folder, recall, stored, with_itself
from pipelines.hygiene.alignment import likeness
from pipelines.hygiene.fingerprint import WHOLE, WINDOWS, coarse_vectors, fingerprint
from pipelines.hygiene.index import MIN_LIKENESS, Index
from tests.pipelines.hygiene.conftest import draw

CHARTS = Path(__file__).parents[3] / ".." / "shared" / "data" / "opencqa" / "chart_images"
NUM = 30


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


def test_a_frame_and_a_grid_do_not_make_pictures_alike():
    def framed(seed: int | None) -> np.ndarray:
        image = Image.new("RGB", (400, 300), "white")
        pen = ImageDraw.Draw(image)
        for y in range(30, 300, 40):
            pen.line((20, y, 390, y), fill="black", width=3)
        pen.rectangle((20, 10, 390, 290), outline="black", width=8)
        spots = [] if seed is None else np.random.default_rng(seed).integers(30, 250, (12, 2))
        for x, y in spots:
            pen.ellipse((x, y, x + 25, y + 25), fill=(90, 90, 200))
        return fingerprint(stored(image))

    found = Index([framed(seed) for seed in range(4)]).search([framed(None), framed(9), framed(2)])
    assert [[one.row for one in row] for row in found] == [[], [], [2]]


def test_every_picture_that_looks_like_another_is_told(tmp_path):
    for name, seed in {"photos/a": 1, "photos/b": 2, "mirror/b": 2, "mirror/c": 3}.items():
        path = tmp_path / "kind" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(seed).save(path, quality=80 if name == "mirror/b" else 95)
    main([str(tmp_path / "kind"), "--planted", "2", "--pairs", str(tmp_path / "pairs")])
    for name in ("itself", "half-the-sources"):
        (pair,) = map(json.loads, (tmp_path / "pairs" / f"{name}.jsonl").read_text().splitlines())
        assert {Path(p).name for p in pair[1:]} == {"b.jpg"}
        assert (tmp_path / "pairs" / f"{name}-0.png").exists()


def test_rates_have_exact_intervals():
    assert rate(0, 3000) == "0/3000 0.00% (0.00%-0.12%)"  # 1 - 0.025 ** (1 / 3000)
    assert rate(0, 0) == "-"


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.skipif(not CHARTS.is_dir(), reason="needs ../shared/data, published charts")
def test_real_charts_are_found_and_told_apart():
    pictures = read_folder(CHARTS, limit=30)
    index = Index([picture.print for picture in pictures])
    found = recall(pictures, index, range(len(pictures)))
    together = found.pop("everything")
    assert min(found.values()) >= 0.95 * len(pictures)
    assert together >= 0.8 * len(pictures)
    assert not list(with_itself(pictures, index).pairs())
