"""What is left out of an import is left out of that import alone."""

import importlib
import sys
import threading

import pytest

from pipelines.prepare.lean_imports import imports_without

NAME = "wave"
"""A module of the standard library that nothing here uses."""


def test_a_module_is_absent_in_the_block_and_in_this_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    names: list[str] = []
    with imports_without(NAME, "sys"):
        with pytest.raises(ModuleNotFoundError, match=NAME) as raised:
            importlib.import_module(NAME)
        assert raised.value.name == NAME
        assert importlib.import_module("sys") is sys  # Loaded before.
        monkeypatch.delitem(sys.modules, NAME, raising=False)
        other = threading.Thread(
            target=lambda: names.append(importlib.import_module(NAME).__name__)
        )
        other.start()
        other.join()
        assert names == [NAME]
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    assert importlib.import_module(NAME).__name__ == NAME
