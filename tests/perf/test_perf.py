"""The benchmarks run, on models so small that their figures mean nothing."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from model import presets
from perf import accelerator
from perf.timing import aligned_table, time_in_turns

pytestmark = pytest.mark.usefixtures("fast_compiler")


def test_programs_take_turns_in_alternating_order():
    ran: list[str] = []
    timings = time_in_turns({name: lambda name=name: ran.append(name) for name in "ab"}, 2)
    assert "".join(ran) == "abbaab"
    assert timings["a"].wall >= 0
    with pytest.raises(ValueError, match=r"rounds .*at least 1, got 0"):
        time_in_turns({}, 0)


def test_tables_are_aligned():
    assert aligned_table(["a", "bb"], [["ccc", 1]]) == "a    bb\nccc   1"


WORDS = [
    "--size",
    "tiny",
    "--batches",
    "2",
    "--text-len",
    "8",
    "--rounds",
    "1",
    "--tokens",
    "2",
    "--clips",
    "1",
]


def measured(words: list[str], report: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the rows that the command writes, none of them left out."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # For the command's children.
    accelerator.main([*WORDS, *words, "--minutes", "60", "--json", str(report)])
    rows = json.loads(report.read_text())["rows"]
    assert not [row for row in rows if "left_out" in row]
    return rows


@pytest.mark.deep
def test_accelerator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    report = tmp_path / "report.json"
    words = [
        "--parts",
        "train",
        "prefill",
        "token",
        "--budgets",
        "16",
        "64",
        "--remats",
        "minimal",
        "--rows",
        "1",
    ]
    rows = measured(words, report, monkeypatch)
    names = ("part", "batch", "budget")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("train", 2, 16),
        ("train", 2, 64),
        ("prefill", 1, 16),
        ("prefill", 1, 64),
        ("video", 1, 16),
        ("video", 1, 64),
        ("token", 1, 16),
        ("token", 1, 64),
    ]
    # A clip has sixteen images, whose features take more room than those of one.
    assert rows[4]["compiled_gib"] > rows[2]["compiled_gib"] > 0
    assert all(row["mfu"] is None for row in rows)  # A CPU has no peak here.
    capsys.readouterr()
    accelerator.main(["--tables", str(report)])
    assert "| train minimal | 2 | 64 |" in capsys.readouterr().out


@pytest.mark.night
def test_a_stage_gives_the_same_bits_twice_and_after_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    report = tmp_path / "report.json"
    (stage,) = measured(["--parts", "stage", "--budgets", "16"], report, monkeypatch)
    assert stage["twice_equal"]
    assert (stage["killed_after"], stage["resumed_from"], stage["resumed_equal"]) == (3, 3, True)
    capsys.readouterr()
    accelerator.main(["--tables", str(report)])
    told = "equal bytes; killed after update 3 and resumed from 3: equal bytes."
    assert told in capsys.readouterr().out


def test_what_would_begin_too_late_is_left_out(capsys: pytest.CaptureFixture[str]):
    accelerator.main([*WORDS, "--budgets", "16", "64", "--only", "token", "--until", "1"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("left_out") for row in rows[1:]] == ["out of time", "out of time"]


def test_a_stage_keeps_its_widths_and_has_few_layers():
    cfg = presets.paligemma2_3b()
    few = accelerator.shallow(cfg)
    assert (few.vision.depth, few.text.depth) == (2, 2)
    assert dataclasses.replace(few.text, depth=cfg.text.depth) == cfg.text
