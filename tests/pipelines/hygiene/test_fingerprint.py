"""Pictures are known again however they were changed, and others are not taken for them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from perf.hygiene import CHANGES, main, rate, read_folder, recall, stored, with_itself
from perf.hygiene import index_of as benchmark_index
from pipelines.hygiene.alignment import align_fingerprints
from pipelines.hygiene.detail import FineEdges
from pipelines.hygiene.fingerprint import FULL_AXIS, WINDOWS, coarse_vectors, fingerprint
from pipelines.hygiene.index import PictureIndex, SimilarPicture
from tests.pipelines.hygiene.conftest import draw

CHARTS = Path(__file__).parents[3] / ".." / "shared" / "data" / "opencqa" / "chart_images"
NUM = 30


def index_of(*images: Image.Image) -> PictureIndex:
    data = [stored(image) for image in images]
    return PictureIndex([print_of(one) for one in data], data.__getitem__)


def search(index: PictureIndex, *images: Image.Image, **options) -> list[list[SimilarPicture]]:
    data = [stored(image) for image in images]
    return index.search([print_of(one) for one in data], data.__getitem__, **options)


def print_of(data: bytes) -> np.ndarray:
    made = fingerprint(data)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def index() -> PictureIndex:
    return index_of(*map(draw, range(NUM)))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CHANGES))
def test_planted_duplicates_are_found(index, name):
    rng = np.random.default_rng(3)
    found = search(index, *(CHANGES[name](draw(seed), rng) for seed in range(NUM)))
    hits = [seed in {one.row for one in row} for seed, row in enumerate(found)]
    assert np.mean(hits) >= 0.95


def test_other_pictures_are_not(index):
    assert search(index, *map(draw, range(1000, 1000 + NUM))) == [[] for _ in range(NUM)]


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), down=st.floats(0, 0.1), across=st.floats(0, 0.1))
@settings(max_examples=15)
def test_any_crop_of_a_tenth_is_the_same_picture_both_ways(seed, down, across):
    whole = draw(seed)
    left, top = round(across * whole.width), round(down * whole.height)
    part = whole.crop((left, top, left + 270, top + 270))
    assert search(index_of(whole), part)[0]
    assert search(index_of(part), whole)[0]


def test_alignment_says_more_than_the_bare_overlap():
    whole = draw(5)
    a, b = (fingerprint(stored(i)) for i in (whole, whole.crop((30, 0, 300, 270))))
    bare = float((a * 1.0 * b).sum() / np.linalg.norm(a * 1.0) / np.linalg.norm(b * 1.0))
    aligned, crop = align_fingerprints(b, a, ((0.9, 0.02), (0.9, 0.08)))
    assert bare < 0.5 < 0.75 < aligned
    np.testing.assert_allclose(crop, ((0.9, 0.0), (0.9, 0.1)), atol=0.01)
    assert align_fingerprints(a, a, (FULL_AXIS, FULL_AXIS))[0] == pytest.approx(1, abs=1e-3)


def test_what_agrees_at_large_and_not_in_every_part_is_another_picture():
    whole, other = draw(5), draw(6)
    mixed = whole.copy()
    mixed.paste(other.crop((0, 0, 300, 90)), (0, 0))
    a, b, c = (stored(image) for image in (whole, mixed, whole))
    assert align_fingerprints(print_of(a), print_of(b), (FULL_AXIS, FULL_AXIS))[0] > 0.5
    assert FineEdges(a).likeness(FineEdges(b), (FULL_AXIS, FULL_AXIS)) < 0.15
    assert FineEdges(a).likeness(FineEdges(c), (FULL_AXIS, FULL_AXIS)) == pytest.approx(1, abs=1e-3)


def test_detail_knows_a_crop_where_it_lies_and_not_elsewhere():
    whole = draw(7, side=600)
    part = stored(whole.crop((30, 60, 570, 600)))
    there, elsewhere = ((0.9, 0.1), (0.9, 0.05)), ((0.9, 0.0), (0.9, 0.05))
    assert FineEdges(part).likeness(FineEdges(stored(whole)), there) > 0.8
    assert FineEdges(part).likeness(FineEdges(stored(whole)), elsewhere) < 0.3


def test_the_first_window_is_the_whole_picture():
    made = fingerprint(stored(draw(1)))
    vectors = coarse_vectors(np.stack([made, made]))
    assert vectors.shape == (len(WINDOWS), 2, 192)
    assert WINDOWS[0] == (FULL_AXIS, FULL_AXIS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-4)


def test_blank_pictures_have_no_fingerprint():
    assert fingerprint(stored(Image.new("RGB", (50, 40), (200, 30, 30)))) is None


def test_only_earlier_rows_are_looked_at_where_asked():
    found = search(index_of(draw(1), draw(1)), draw(1), draw(1), row_limits=[0, 1])
    assert [[one.row for one in row] for row in found] == [[], [0]]


def test_an_empty_index_finds_nothing():
    assert search(index_of(), draw(1)) == [[]]


def test_a_frame_and_a_grid_do_not_make_pictures_alike():
    def framed(seed: int | None) -> Image.Image:
        image = Image.new("RGB", (400, 300), "white")
        pen = ImageDraw.Draw(image)
        for y in range(30, 300, 40):
            pen.line((20, y, 390, y), fill="black", width=3)
        pen.rectangle((20, 10, 390, 290), outline="black", width=8)
        spots = [] if seed is None else np.random.default_rng(seed).integers(30, 250, (12, 2))
        for x, y in spots:
            pen.ellipse((x, y, x + 25, y + 25), fill=(90, 90, 200))
        return image

    found = search(index_of(*map(framed, range(4))), framed(None), framed(9), framed(2))
    assert [[one.row for one in row] for row in found] == [[], [], [2]]


@pytest.mark.slow
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


@pytest.mark.deep
@pytest.mark.parity
@pytest.mark.skipif(not CHARTS.is_dir(), reason="needs ../shared/data, published charts")
def test_real_charts_are_found_and_told_apart():
    pictures = read_folder(CHARTS, limit=30)
    index = benchmark_index(pictures)
    found = recall(pictures, index, range(len(pictures)))
    together = found.pop("everything")
    assert min(found.values()) >= 0.95 * len(pictures)
    assert together >= 0.8 * len(pictures)
    assert not list(with_itself(pictures, index).pairs())
