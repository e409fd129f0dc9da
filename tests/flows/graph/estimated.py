"""Artifacts of which a test needs only what they took."""

from types import SimpleNamespace
from typing import Any


def took(seconds: float, *, devices: int = 1) -> Any:
    """Returns an artifact that was made in some seconds, on so many devices."""
    environment = {"device_seconds": devices * seconds}
    return SimpleNamespace(manifest=SimpleNamespace(seconds=seconds, environment=environment))
