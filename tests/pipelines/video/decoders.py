"""decord has wheels for Linux on x86-64 only; elsewhere its tests are skipped."""

import importlib.util

import pytest

HAS_DECORD = importlib.util.find_spec("decord") is not None
needs_decord = pytest.mark.skipif(
    not HAS_DECORD, reason="no decord: it has no wheel for this machine"
)
PREFERRED = ["pyav", pytest.param("decord", marks=needs_decord)]
"""Decoders that a study may prefer, as values of a parameter."""
