"""The one table of kinds: every kind is built and counted by its value."""

import dataclasses

import pytest
from flax import nnx

from model.analysis.flops import connector_flops
from model.connector.build import build_connector
from model.connector.routing import KINDS, ROUTINGS, Kind
from tests.model.tiny_models import tiny_config


def test_every_kind_has_a_value_and_no_two_have_the_same():
    assert tuple(ROUTINGS) == KINDS
    assert len(set(ROUTINGS.values())) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_says_what_is_built(kind: Kind):
    cfg = tiny_config(kind)
    module = nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0)))
    assert type(module).__name__ == ROUTINGS[kind].module
    parameters = len(nnx.to_flat_state(nnx.state(module, nnx.Param)))
    assert (parameters > 0) == ROUTINGS[kind].has_attention
    full = ROUTINGS[kind].budgets(cfg.vision.grid)[-1]
    assert (connector_flops(cfg, full) > 0) == ROUTINGS[kind].has_attention


def test_anchors_are_at_most_half_the_patch_grid_and_divide_it():
    routing = ROUTINGS["parcel"]
    assert routing.anchor_counts(16) == (16, 64)
    assert routing.anchor_counts(24) == (16, 64)  # 8 x 8 divides it, 16 x 16 is over half.
    assert routing.anchor_counts(64) == (16, 64, 256, 1024)
    assert dataclasses.replace(routing, anchor_grids=(8,)).anchor_counts(64) == (64,)
