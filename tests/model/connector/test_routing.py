"""The arithmetic of one routing value."""

import dataclasses

from model.connector.registry import CONNECTORS
from model.connector.routing import halves


def test_a_grid_is_halved_as_published():
    assert halves(16) == (2, 4, 8, 16)  # PARCEL's 4, 16, 64 and 256 tokens.
    assert halves(32) == (2, 4, 8, 16, 32)
    assert halves(24) == (1, 3, 6, 12, 24)  # The 1, 9, 36, 144 and 576 of M3.
    assert halves(27) == (1, 27)
    assert halves(1) == (1,)


def test_anchors_are_the_even_halves_of_the_patch_grid():
    routing = CONNECTORS["parcel"].routing
    assert routing.anchor_counts(16) == (16, 64)
    assert routing.anchor_counts(24) == (36, 144)  # Kernels of 4 and 2 patches, as on 16 x 16.
    assert routing.anchor_counts(32) == (16, 64, 256)
    assert routing.anchor_counts(64) == (16, 64, 256, 1024)
    assert routing.anchor_counts(40) == (100, 400)  # 5 x 5 would make every budget odd.
    for kind, kernel in (("parcel_fixed4", 4), ("parcel_fixed2", 2)):
        fixed = CONNECTORS[kind].routing
        assert fixed.anchor_counts(16) == ((16 // kernel) ** 2,)
        assert fixed.anchor_counts(24) == ((24 // kernel) ** 2,)
    assert CONNECTORS["parcel_fixed2"].routing.anchor_counts(64) == (64,)


def test_stated_grids_of_anchors_stay_as_they_are():
    routing = dataclasses.replace(
        CONNECTORS["parcel"].routing, anchor_halves=(), anchor_grids=(4, 8, 16)
    )
    assert routing.anchor_counts(24) == (16, 64)  # 8 x 8 divides it, 16 x 16 is over half.


def test_a_budget_has_the_finest_anchors_that_fit():
    routing = CONNECTORS["parcel"].routing
    assert [routing.num_anchors(16, budget) for budget in (16, 62, 64, 256)] == [16, 16, 64, 64]
    assert CONNECTORS["mqt"].routing.num_anchors(16, 256) == 0
