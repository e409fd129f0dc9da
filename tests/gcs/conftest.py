"""A server with one bucket, "testing", and a client for it."""

from collections.abc import Iterator

import pytest

from tests.gcs.client import Client
from tests.gcs.server import GCS


@pytest.fixture
def gcs() -> Iterator[GCS]:
    with GCS() as server:
        server.bucket("testing")
        yield server


@pytest.fixture
def client(gcs: GCS) -> Client:
    return Client(gcs.url)


@pytest.fixture
def found(gcs: GCS, monkeypatch: pytest.MonkeyPatch) -> GCS:
    """The server, where the clients of this process look for one."""
    for name, value in gcs.environment.items():
        monkeypatch.setenv(name, value)
    return gcs
