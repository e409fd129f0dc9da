"""One finished study, for all tests of its pages."""

from pathlib import Path

import pytest

from infra.store.store import Store
from tests.flows.pages.studies import write_study


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with the study `toy`; nobody writes to it."""
    store = Store(Path(tmp_path_factory.mktemp("toy")))
    write_study(store)
    return store
