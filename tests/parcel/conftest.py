"""The fixtures of `tests/flows`: a command called in this process, and a store with a study."""

from tests.flows.conftest import forget, parcel, toy

__all__ = ["forget", "parcel", "toy"]
