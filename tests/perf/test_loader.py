"""The measure of the loader's pace runs, on so few pictures that its figures mean nothing."""

import os
from pathlib import Path

import pytest

from perf import loader


def test_each_number_of_threads_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NPROC", "1")
    data = loader.write_squares(tmp_path / "data", 12, px=16)
    tokenizer = loader.write_tokenizer(tmp_path / "tokenizer.model")
    sizes = {"rounds": 1, "num_batches": 2, "batch_size": 4, "px": 16}
    (table,) = loader.measure(data, tokenizer, [2, 5], **sizes)
    header, *rows = (line.split() for line in table.splitlines())
    assert header[:2] == ["threads", "pictures/s"]
    assert [row[0] for row in rows] == ["2", "5"]
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
    assert os.environ["NPROC"] == "1"
