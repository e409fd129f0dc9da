"""Reports of equal methods hold in shapes that no interval, prior or bound was chosen on."""

import pytest

from tests.night.statistics.judge import judge
from tests.night.statistics.shapes import SHAPES

STUDIES = 60


@pytest.mark.night
@pytest.mark.parametrize("name", SHAPES)
def test_intervals_hold_and_stars_are_seldom_in_every_shape(name: str):
    """The noise of 60 reports is two binomial standard errors; docs/explanation/statistics.md."""
    found = judge(SHAPES[name], STUDIES, 46)
    assert found.held >= 0.93 - 2 * (0.05 * 0.95 / STUDIES) ** 0.5
    assert found.starred <= 0.05 + 2 * (0.05 * 0.95 / STUDIES) ** 0.5
    assert found.width <= 1.3
