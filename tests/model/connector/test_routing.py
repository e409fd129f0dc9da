"""The arithmetic of one routing value."""

import dataclasses

from model.connector.registry import CONNECTORS


def test_anchors_are_at_most_half_the_patch_grid_and_divide_it():
    routing = CONNECTORS["parcel"].routing
    assert routing.anchor_counts(16) == (16, 64)
    assert routing.anchor_counts(24) == (16, 64)  # 8 x 8 divides it, 16 x 16 is over half.
    assert routing.anchor_counts(64) == (16, 64, 256, 1024)
    assert dataclasses.replace(routing, anchor_grids=(8,)).anchor_counts(64) == (64,)


def test_a_budget_has_the_finest_anchors_that_fit():
    routing = CONNECTORS["parcel"].routing
    assert [routing.num_anchors(16, budget) for budget in (16, 62, 64, 256)] == [16, 16, 64, 64]
    assert CONNECTORS["mqt"].routing.num_anchors(16, 256) == 0
