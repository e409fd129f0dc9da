"""A checkpoint of one resolution starts a stage at another."""

import dataclasses
import functools
import typing

import numpy as np
import pytest

from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.config import ModelConfig
from model.train import start
from model.train.resolution import (
    POSITIONS,
    check_resolutions,
    extend_bank,
    resize_positions,
)
from model.train.start import starting_params
from tests.model.tiny_models import VISION, tiny_config


def at(kind: str, px: int) -> ModelConfig:
    return tiny_config(kind, vision=dataclasses.replace(VISION, depth=1, image_px=px))


@functools.cache
def init_params(cfg: ModelConfig, seed: int) -> vlm.Params:
    """Returns random parameters of the model's shapes, without compiling anything."""
    rng, shapes = np.random.default_rng(seed), flatten_params(vlm.abstract_params(cfg))
    return unflatten_params({p: rng.normal(size=x.shape).astype(np.float32) for p, x in shapes})


@pytest.mark.parametrize(("old", "new"), [(16, 32), (16, 64), (3, 7), (5, 3), (16, 17), (4, 4)])
def test_positions_are_resized_as_scipy_does(old: int, new: int):
    ndimage = pytest.importorskip("scipy.ndimage")
    grid = np.random.default_rng(0).normal(size=(old, old, 6)).astype(np.float32)
    expected = ndimage.zoom(grid, (new / old, new / old, 1), order=1)
    found = resize_positions(grid.reshape(old * old, 6), new * new)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.reshape(new * new, 6), rtol=1e-6, atol=1e-6)


def test_resized_positions_keep_corners_and_planes():
    rows, columns = np.mgrid[0:4, 0:4] / 3.0
    plane = np.stack([rows, columns, np.ones((4, 4))], axis=-1).reshape(16, 3)
    rows, columns = np.mgrid[0:7, 0:7] / 6.0
    larger = np.stack([rows, columns, np.ones((7, 7))], axis=-1).reshape(49, 3)
    np.testing.assert_allclose(resize_positions(plane, 49), larger, atol=1e-12)
    np.testing.assert_allclose(resize_positions(larger, 16), plane, atol=1e-12)


def test_positions_of_no_square_are_refused():
    with pytest.raises(ValueError, match="square grid, got 15 for 64"):
        resize_positions(np.zeros((15, 2)), 64)


def test_a_bank_goes_on_with_fresh_rows():
    trained, fresh = np.ones((2, 3)), np.zeros((5, 3))
    np.testing.assert_array_equal(extend_bank(trained, fresh)[:, 0], [1, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("kind", "bank", "rows"),
    [
        ("vanilla", None, (0, 0)),
        ("parcel", "connector/queries", (192, 768)),
        ("mqt", "connector/queries", (256, 1024)),
        ("mqt_sa", "connector/mqt/queries", (256, 1024)),
    ],
)
def test_a_stage_starts_from_half_its_resolution(
    monkeypatch: pytest.MonkeyPatch, kind: str, bank: str | None, rows: tuple[int, int]
):
    small, large = at(kind, 32), at(kind, 64)
    trained = dict(flatten_params(init_params(small, 1)))
    _serve(monkeypatch, trained)
    started = dict(flatten_params(starting_params(large, "checkpoint", 2)))
    wanted = dict(flatten_params(vlm.abstract_params(large)))
    assert {p: v.shape for p, v in started.items()} == {p: v.shape for p, v in wanted.items()}
    resized = resize_positions(np.asarray(trained[POSITIONS]), 1024)
    np.testing.assert_array_equal(started[POSITIONS], resized)
    if bank is not None:
        old, new = rows
        assert (len(trained[bank]), len(started[bank])) == (old, new)
        np.testing.assert_array_equal(started[bank][:old], trained[bank])
        fresh = dict(flatten_params(init_params(large, 2)))[bank]
        np.testing.assert_array_equal(started[bank][old:], fresh[old:])
    for path in set(trained) - {POSITIONS, bank}:
        np.testing.assert_array_equal(started[path], trained[path], err_msg=path)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    _serve(monkeypatch, dict(flatten_params(init_params(at("parcel", 64), 1))))
    with pytest.raises(ValueError, match=r"queries: \(768, 12\) for \(192, 12\).*at most its res"):
        starting_params(at("parcel", 32), "checkpoint", 2)
    with pytest.raises(ValueError, match=r"unknown \['connector/.*or with none"):
        starting_params(at("vanilla", 64), "checkpoint", 2)
    # A connector that lacks a part is another method's, not a fresh one's.
    _serve(monkeypatch, dict(flatten_params(init_params(at("parcel_vit_only", 32), 1))))
    with pytest.raises(ValueError, match=r"missing \['connector/pool_attn"):
        starting_params(at("parcel", 32), "checkpoint", 2)


def test_a_bank_of_ones_own_is_checked_before_any_stage():
    own = "tests.model.connector.own_connectors"
    check_resolutions(at(f"{own}:Prefix", 32), at(f"{own}:Prefix", 64))
    check_resolutions(at("mqt_sa", 32), at("mqt_sa", 64))
    # What the check says is what a stage would have said.
    small, large = at(f"{own}:OtherBank", 32), at(f"{own}:OtherBank", 64)
    with pytest.raises(
        ValueError,
        match=r"connector/bank has shape \(256, 12\) at 32 px and \(1024, 12\) at 64 px.*named "
        r"connector/queries",
    ):
        check_resolutions(small, large)


def _serve(monkeypatch: pytest.MonkeyPatch, params: dict[str, typing.Any]) -> None:
    arrays = unflatten_params({path: np.asarray(value) for path, value in params.items()})
    monkeypatch.setattr(start, "load_params", lambda path: arrays)
    monkeypatch.setattr(vlm, "init_params", init_params)


def test_a_class_tokens_row_stays_when_a_tower_is_resized(monkeypatch: pytest.MonkeyPatch):
    def clip(px: int) -> ModelConfig:
        vision = dataclasses.replace(VISION, family="clip", depth=1, image_px=px)
        return tiny_config("parcel", vision=vision)

    small, large = clip(32), clip(64)
    check_resolutions(small, large)
    trained = dict(flatten_params(init_params(small, 1)))
    _serve(monkeypatch, trained)
    started = dict(flatten_params(starting_params(large, "checkpoint", 2)))
    assert started[POSITIONS].shape == (32 * 32 + 1, VISION.width)
    np.testing.assert_array_equal(started[POSITIONS][0], trained[POSITIONS][0])
    # The patches' rows are a grid of their own, whose corners stay.
    patches = trained[POSITIONS][1:].reshape(16, 16, -1)
    resized = started[POSITIONS][1:].reshape(32, 32, -1)
    np.testing.assert_array_equal(resized[[0, -1], [0, -1]], patches[[0, -1], [0, -1]])
    np.testing.assert_array_equal(
        resized, resize_positions(trained[POSITIONS][1:], 1024).reshape(32, 32, -1)
    )
    np.testing.assert_array_equal(started["vision/class_token"], trained["vision/class_token"])


def test_a_grid_with_a_class_token_does_not_fit_one_without():
    with pytest.raises(ValueError, match="square grid, got 17 for 64"):
        resize_positions(np.zeros((17, 2)), 64)
