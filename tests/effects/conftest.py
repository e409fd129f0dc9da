"""A `parcel serve` on a store that was empty, for the tests of this process."""

from collections.abc import Iterator

import pytest

from tests.effects.browser import Page, browsing
from tests.effects.product import Served, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a browser of its own."""
    with browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made
