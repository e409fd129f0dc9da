"""What tests of Prefect's server leave as they found it."""

import pytest

from infra.prefect import best_effort


@pytest.fixture(autouse=True)
def _no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets servers that did not answer: the commands of later tests would exit at once."""
    monkeypatch.setattr(best_effort, "_last_look", ("", float("-inf"), True))
