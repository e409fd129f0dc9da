"""A store's server, and Prefect's client set to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def served_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with a server that asks for an auth string, as the client of this process knows."""
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_HOME,
        temporary_settings,
    )

    from infra.prefect.server import Beside, server_of

    store = tmp_path_factory.mktemp("served") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(store / "prefect"))
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
            patch.setenv(name, "")
            patch.delenv(name)
        beside = Beside(function="flows.pages.app:pages_of", argument=str(store))
        with server_of(store, auth="me:secret", beside=beside) as note:
            patch.setenv("PREFECT_API_URL", note.api)
            patch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
            settings = {
                PREFECT_API_URL: note.api,
                PREFECT_API_AUTH_STRING: "me:secret",
                PREFECT_HOME: store / "prefect",
            }
            with temporary_settings(settings):
                yield store
