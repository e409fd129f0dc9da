"""Which budgets run where: routing, buckets, draws, and what is refused."""

import collections
import dataclasses

import pytest

from model import presets
from model.config import ConnectorConfig, ModelConfig, VisionConfig
from model.connector import budgets
from model.connector.budgets import Bucket

PARCEL = presets.paligemma2_3b(ConnectorConfig(kind="parcel"))
PARCEL_448 = presets.paligemma2_3b(ConnectorConfig(kind="parcel"), image_px=448)
MQT = presets.paligemma2_3b(ConnectorConfig(kind="mqt"))
M3 = presets.paligemma2_3b(ConnectorConfig(kind="m3"))


def test_every_method_serves_its_published_budgets():
    assert budgets.supported_budgets(presets.paligemma2_3b()) == (256,)
    assert budgets.supported_budgets(M3) == (4, 16, 64, 256)
    assert budgets.supported_budgets(MQT) == tuple(range(2, 257, 2))
    assert budgets.supported_budgets(PARCEL) == tuple(range(16, 257, 2))
    assert len(budgets.supported_budgets(PARCEL)) == 121


@pytest.mark.parametrize(
    ("cfg", "budget", "anchors"),
    [
        (PARCEL, 16, 16),
        (PARCEL, 62, 16),
        (PARCEL, 64, 64),
        (PARCEL, 256, 64),
        (PARCEL_448, 62, 16),
        (PARCEL_448, 254, 64),
        (PARCEL_448, 256, 256),
        (PARCEL_448, 1024, 256),
        (MQT, 64, 0),
        (M3, 64, 0),
    ],
)
def test_routing_picks_the_anchors(cfg: ModelConfig, budget: int, anchors: int):
    assert budgets.num_anchors(cfg, budget) == anchors


@pytest.mark.parametrize(("cfg", "most"), [(PARCEL, 8), (PARCEL_448, 12), (MQT, 8), (M3, 4)])
def test_few_buckets_hold_every_budget_with_its_own_anchors(cfg: ModelConfig, most: int):
    declared = budgets.buckets(cfg)
    assert len(declared) <= most
    for budget in budgets.supported_budgets(cfg):
        bucket = budgets.bucket_of(cfg, budget)
        assert bucket in declared
        assert bucket.size >= budget
        assert bucket.num_anchors == budgets.num_anchors(cfg, budget)


def test_a_bucket_edge_lies_between_62_and_64():
    assert budgets.bucket_of(PARCEL, 62) == Bucket(size=62, num_anchors=16)
    assert budgets.bucket_of(PARCEL, 64) == Bucket(size=96, num_anchors=64)
    assert budgets.exact_bucket(PARCEL, 64) == Bucket(size=64, num_anchors=64)


def test_two_buckets_are_enough_for_a_short_run():
    few = dataclasses.replace(PARCEL, connector=ConnectorConfig(kind="parcel", buckets=(62, 256)))
    assert [b.num_anchors for b in budgets.buckets(few)] == [16, 64]
    assert budgets.bucket_of(few, 16).size == 62


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        ({"kind": "parcel", "buckets": (256,)}, "none for 16 .*add 62"),
        ({"kind": "parcel", "buckets": (62, 128)}, "none for 130 .*add 256"),
        ({"kind": "parcel", "buckets": (61, 256)}, r"must be budgets of 'parcel'.*got \[61\]"),
        ({"kind": "m3", "buckets": (256,)}, "must be exactly"),
        ({"kind": "resampler"}, "connector.kind must be one of vanilla, m3, mqt, parcel"),
        ({"kind": "mqt", "num_heads": 7}, "connector.num_heads must divide"),
    ],
)
def test_a_bad_connector_is_refused_with_its_cure(connector: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ModelConfig(connector=ConnectorConfig(**connector))


@pytest.mark.parametrize(("cfg", "budget"), [(PARCEL, 14), (PARCEL, 63), (M3, 36), (MQT, 258)])
def test_an_unsupported_budget_is_refused_with_the_list(cfg: ModelConfig, budget: int):
    with pytest.raises(ValueError, match=f"budget must be one of .*, got {budget}"):
        budgets.bucket_of(cfg, budget)


def test_draws_depend_on_seed_and_step_alone_and_cover_the_range():
    first = [budgets.draw_budget(PARCEL, 7, step) for step in range(4000)]
    assert first == [budgets.draw_budget(PARCEL, 7, step) for step in range(4000)]
    assert first != [budgets.draw_budget(PARCEL, 8, step) for step in range(4000)]
    counts = collections.Counter(first)
    assert set(counts) == set(budgets.supported_budgets(PARCEL))
    assert max(counts.values()) < 3 * 4000 / 121
    assert {budgets.draw_budget(PARCEL, 7, s, choices=(16, 64)) for s in range(50)} == {16, 64}


def test_vision_sizes_must_fit():
    with pytest.raises(ValueError, match=r"vision.image_px must be a multiple .* got 225"):
        VisionConfig(image_px=225)
