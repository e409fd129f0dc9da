"""The benchmarks run, on models so small that their figures mean nothing."""

import collections
import dataclasses
import json
from pathlib import Path

import pytest

from model import presets
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


WORDS = "--size tiny --batches 2 --text-len 8 --rounds 1 --tokens 2 --budgets 16 64 --clips 1"


@pytest.mark.deep
def test_accelerator(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = tmp_path / "report.json"
    words = [*WORDS.split(), "--rows", "1", "2", "--minutes", "60", "--json", str(report)]
    accelerator.main(words)
    measured = json.loads(report.read_text())
    rows = collections.defaultdict(list)
    for row in measured["rows"]:
        assert "left_out" not in row
        rows[row["part"]].append(row)
    (stage,) = rows["stage"]
    assert stage["twice_equal"]
    assert (stage["killed_after"], stage["resumed_from"], stage["resumed_equal"]) == (3, 3, True)
    programs = [(row["batch"], row["remat"], row["budget"]) for row in rows["train"]]
    assert programs == [(2, remat, budget) for remat in ("full", "minimal") for budget in (16, 64)]
    assert [(row["batch"], row["budget"]) for row in rows["prefill"]] == [
        (size, budget) for size in (1, 2) for budget in (16, 64)
    ]
    assert [row["budget"] for row in rows["video"]] == [16, 64]
    assert [row["budget"] for row in rows["token"]] == [16, 64]
    # A clip has sixteen images, whose features take more room than those of one.
    assert rows["video"][0]["compiled_gib"] > rows["prefill"][0]["compiled_gib"] > 0
    assert all(row["mfu"] is None for row in rows["train"])  # A CPU has no peak here.
    capsys.readouterr()
    accelerator.main(["--tables", str(report)])
    printed = capsys.readouterr().out
    assert "| train minimal | 2 | 64 |" in printed
    assert "equal bytes; killed after update 3 and resumed from 3: equal bytes." in printed


def test_what_would_begin_too_late_is_left_out(capsys: pytest.CaptureFixture[str]):
    accelerator.main([*WORDS.split(), "--only", "token", "--until", "1"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("left_out") for row in rows[1:]] == ["out of time", "out of time"]


def test_a_stage_keeps_its_widths_and_has_few_layers():
    cfg = presets.paligemma2_3b()
    few = accelerator.shallow(cfg)
    assert (few.vision.depth, few.text.depth) == (2, 2)
    assert dataclasses.replace(few.text, depth=cfg.text.depth) == cfg.text
