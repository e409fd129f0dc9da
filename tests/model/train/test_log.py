"""Tests of the training log: rows that survive a kill, lost time, speed."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from model.analysis.flops import Modality, update_flops
from model.train.config import TrainConfig
from model.train.log import Clock, Lines, Speed, note_of, row_of
from model.train.step import StepMetrics
from tests.model.tiny_model import tiny_model

TRAIN = TrainConfig(batch_size=6, text_len=16)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("half", ['{"step": 7, "lo', '{"step": 7, "lost": {"a": 1}'])
def test_lines_after_the_checkpoint_and_half_ones_are_written_again(tmp_path: Path, half: str):
    path = tmp_path / "deep" / "log.jsonl"
    lines = Lines(path, 0)
    assert (lines.saved_row, lines.undone_row) == (None, None)
    for step in (2, 4, 6):
        lines.add({"step": step})
    path.write_text(path.read_text() + half)
    again = Lines(path, 4, '{"step": 2}\n{"step": 4}\n')
    assert (again.saved_row, again.undone_row) == ({"step": 4}, {"step": 6})
    assert rows(path) == [{"step": 2}, {"step": 4}]
    elsewhere = Lines(tmp_path / "other" / "log.jsonl", 4, path.read_text())
    assert (elsewhere.saved_row, elsewhere.undone_row) == ({"step": 4}, None)
    assert rows(elsewhere.path) == rows(path)


def test_a_restart_tells_what_it_did_again(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    lines = Lines(path, 0)
    first = {"start": 1.0, "compile": 5.0, "input": 0.0, "save": 0.5, "watch": 0.0, "again": 0.0}
    lines.add({"step": 4, "seconds": 20.0, "lost": first})
    lines.add({"step": 8, "seconds": 30.0, "lost": first | {"input": 2.0}})
    before, after = path.read_text().splitlines(keepends=True)
    clock = Clock(Lines(path, 4, before), time.monotonic())
    # Ten seconds passed after step 4, of which two were lost already.
    assert clock.lost == first | {"input": 2.0, "again": 8.0}
    assert clock.seconds == pytest.approx(30.0, abs=1.0)
    undisturbed = Clock(Lines(path, 9, before + after), time.monotonic())
    assert undisturbed.lost["again"] == 0.0


def test_waiting_and_losing_are_told_apart(tmp_path: Path):
    clock = Clock(Lines(tmp_path / "log.jsonl", 0), time.monotonic())

    def batches():
        for number in range(3):
            time.sleep(0.02)
            yield {"text": number}

    assert [batch["text"] for batch in clock.waiting(batches())] == [0, 1, 2]
    with clock.losing("save"):
        time.sleep(0.01)
    assert clock.lost["input"] >= 0.06
    assert 0.01 <= clock.lost["save"] < clock.lost["input"]
    assert clock.lost["compile"] == 0.0


def test_a_row_has_norms_speed_and_goodput(tmp_path: Path):
    model = tiny_model("parcel", (30, 64))
    began = time.monotonic()
    clock = Clock(Lines(tmp_path / "log.jsonl", 0), began - 10.0)
    clock.lost["compile"] = 4.0
    all_parts = ("vision/norm/scale", "connector/queries", "projector/bias", "text/embedding")
    speed = Speed(model, TRAIN, [SimpleNamespace(device_kind="TPU v4")] * 2, all_parts)
    told = StepMetrics(jnp.float32(1.25), {"text": jnp.float32(3.0), "vision": jnp.float32(4.0)})
    first = row_of(1, told, 1e-3, 30, clock, speed)
    assert "mfu" not in first
    assert note_of(first) == "loss 1.250"
    for _ in range(4):
        speed.add(28, 2)
    time.sleep(0.05)
    row = row_of(5, told, 1e-3, 28, clock, speed)
    longest = time.monotonic() - began
    assert row["gradient_norm"] == 5.0
    assert row["gradient_norms"] == {"text": 3.0, "vision": 4.0}
    # 4 of 10 s went into compiling; a busy machine adds to the 10.
    assert 0.599 <= row["goodput"] <= 1 - 4.0 / (10.0 + longest) + 0.001
    # Four updates of six examples, each with two images of 28 tokens and 16 of text.
    tokens = 4 * 6 * (2 * 28 + 16)
    assert tokens / longest <= row["tokens_per_second"] <= tokens / 0.05
    assert 0 < row["mfu"] < 1
    # Counted is what ran: 30 slots for 28 tokens, and nothing that the programs skip.
    prompt = Modality(name="", num_images=2, text_tokens=TRAIN.text_len)
    ran = 4 * update_flops(model, 30, prompt, TRAIN.batch_size, with_unread=False)
    per_token = ran / tokens / (1e12 * 2 * 275.0)  # Two chips of TPU v4.
    assert row["mfu"] / row["tokens_per_second"] == pytest.approx(per_token, rel=2e-3)
    assert note_of(row).endswith(" MFU")
    unknown = Speed(model, TRAIN, [SimpleNamespace(device_kind="cpu")], all_parts)
    unknown.since_last_call()
    time.sleep(0.001)
    assert set(unknown.since_last_call()) == {"tokens_per_second"}
