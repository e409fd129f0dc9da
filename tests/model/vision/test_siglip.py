import dataclasses

import numpy as np
import pytest

from model import vlm
from model.vision.layers import sincos_positions
from tests.model.tiny_models import tiny_config


@pytest.mark.slow
def test_fixed_positions_start_the_table_and_change_nothing_else():
    normal = tiny_config("vanilla")
    fixed = dataclasses.replace(normal, position_init="sincos")
    drawn, given = vlm.init_params(normal, 3), vlm.init_params(fixed, 3)
    expected = sincos_positions(normal.vision.grid, normal.vision.width)
    np.testing.assert_array_equal(given["vision"]["positions"], expected)
    assert abs(float(np.std(drawn["vision"]["positions"])) - normal.vision.width**-0.5) < 0.05
    np.testing.assert_array_equal(
        given["vision"]["patches"]["kernel"], drawn["vision"]["patches"]["kernel"]
    )
    np.testing.assert_array_equal(given["text"]["embedding"], drawn["text"]["embedding"])


def test_fixed_positions_need_four_channels_each():
    normal = tiny_config("vanilla")
    vision = dataclasses.replace(normal.vision, width=6, num_heads=2)
    with pytest.raises(ValueError, match=r"vision\.width must be a multiple of 4.*got 6"):
        dataclasses.replace(normal, vision=vision, position_init="sincos")
