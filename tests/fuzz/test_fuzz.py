"""Odd inputs of every reader are read, or refused in one clear line; the checks themselves work."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.changes import change_bytes
from tests.fuzz.run import fuzz, read_odd
from tests.fuzz.targets import TARGETS, Reader, accounts


@pytest.mark.deep
@pytest.mark.parametrize("name", TARGETS)
def test_every_odd_input_is_read_or_refused_in_one_clear_line(name: str):
    tally = fuzz(TARGETS[name], 200, seed=1)
    assert tally.counts.total() == 200
    assert tally.first == {}
    assert tally.counts["ok"] < 200 or name in ("archives", "frames", "tables")  # These reject.


def test_rows_of_drawn_inputs_are_accounted(tmp_path: Path):
    for reader in accounts(tmp_path):
        for number in range(25):
            outcome, place, message = read_odd(reader, b"%d" % number)
            assert outcome in ("ok", "refused"), (number, place, message)


def reader(read: Any) -> Reader:
    return Reader(whole=b"x" * 40, change=change_bytes, read=read, named="x.json")


def test_other_errors_and_memory_are_seen():
    def allocate(data: bytes) -> None:
        del data
        bytearray(2**30)

    assert read_odd(reader(len), b"")[0] == "ok"
    assert read_odd(reader(lambda data: {}[data]), b"")[0] == "unclean"
    assert read_odd(reader(lambda data: int(data)), b"")[0] == "unclean"  # In Python's words.
    assert read_odd(reader(allocate), b"")[0] == "memory"


def test_a_line_of_ours_must_name_the_file():
    from infra.typed_json import parse_json

    assert read_odd(reader(lambda data: parse_json(data, "x.json")), b"{")[0] == "refused"
    assert read_odd(reader(lambda data: parse_json(data, "y.json")), b"{")[0] == "unclean"


def endless(folder: Path) -> list[Reader]:
    """A target that does not end with one input in eight."""
    del folder

    def read(data: bytes) -> None:
        while data[:1] != b"x":
            time.process_time()

    return [reader(read)]


def fatal(folder: Path) -> list[Reader]:
    """A target that ends its process with some inputs."""
    del folder
    return [reader(lambda data: data[:1] == b"x" or os.abort())]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "seen"), [(endless, "hang"), (fatal, "crash")])
def test_hangs_and_crashes_are_counted_and_the_rest_is_tried(target, seen: str):
    tally = fuzz(target, 12, seed=2, cpu_s=0.5)
    assert tally.counts.total() == 12
    assert set(tally.counts) == {"ok", seen}


def test_inputs_are_always_the_same():
    def inputs() -> list[bytes]:
        return [change_bytes(random.Random(f"0 x {number}"), b"whole" * 9) for number in range(50)]

    assert inputs() == inputs()
    assert len(set(inputs())) > 40
