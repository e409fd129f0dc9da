"""The benchmarks run, on models so small that their figures mean nothing."""

import pytest

from perf import accelerator
from perf.timing import table, take_turns

pytestmark = pytest.mark.usefixtures("fast_compiler")


def test_programs_take_turns_in_alternating_order():
    ran: list[str] = []
    timings = take_turns({name: lambda name=name: ran.append(name) for name in "ab"}, 2)
    assert "".join(ran) == "abbaab"
    assert timings["a"].wall >= 0
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        take_turns({}, 0)


def test_tables_are_aligned():
    assert table(["a", "bb"], [["ccc", 1]]) == "a    bb\nccc   1"


@pytest.mark.deep
def test_accelerator(capsys: pytest.CaptureFixture[str]):
    words = "--size tiny --batch-size 1 --text-len 8 --rounds 1 --tokens 2 --budgets 16"
    accelerator.main(words.split())
    *_, train, prefilled, token = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in (train, prefilled, token)] == [
        ["train", "16"],
        ["prefill", "16"],
        ["token", "16"],
    ]
    assert token.split()[-1] == "-"  # A CPU has no peak here.
