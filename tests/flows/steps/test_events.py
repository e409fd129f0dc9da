"""A training's log for TensorBoard: every number of every line, once."""

import json
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from flows.steps.events import EVENTS, EventFile
from model.files import METRICS, WATCH
from model.train.log import Lines
from pipelines.records.tfrecord import read_frames


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    (file,) = folder.iterdir()
    with file.open("rb") as opened:
        events = [Event.FromString(data) for _, data in read_frames(opened)]
    return {(v.tag, e.step): v.simple_value for e in events for v in e.summary.value}


def test_lines_are_followed_while_they_come(tmp_path: Path):
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    events = EventFile(logs, out)
    events.follow()  # Nothing is there yet.
    row = {"step": 2, "loss": 1.5, "budget": 64, "gradient_norms": {"text": 3.0}, "mfu": 0.5}
    (logs / METRICS).write_text(json.dumps(row) + "\n")
    events.follow()
    look = {"step": 4, "task": "caption", "budget": 16, "loss": 0.25, "examples": 8}
    probe = {"step": 4, "task": "probe", "budget": 16, "metric": "vqa", "score": 40.0, "num": 9}
    with (logs / METRICS).open("a") as file:
        file.write(json.dumps(row | {"step": 4, "loss": 1.25}) + "\n")
    (logs / WATCH).write_text(json.dumps(look) + "\n" + json.dumps(probe) + "\n")
    events.follow()
    events.close()
    assert scalars(out / EVENTS) == {
        ("loss", 2): 1.5,
        ("loss", 4): 1.25,
        ("loss_at_budget/64", 2): 1.5,
        ("loss_at_budget/64", 4): 1.25,
        ("gradient_norms/text", 2): 3.0,
        ("gradient_norms/text", 4): 3.0,
        ("mfu", 2): 0.5,
        ("mfu", 4): 0.5,
        ("watched_loss/caption_16", 4): 0.25,
        ("watched_score/probe_16", 4): 40.0,
    }


def test_a_log_that_begins_anew_is_told_once(tmp_path: Path):
    logs, out = tmp_path / "logs", tmp_path / "out"
    row = {"loss": 1.5, "budget": 64}
    lines = Lines(logs / METRICS, 0)
    events = EventFile(logs, out)
    for step in (1, 2, 3, 4):
        lines.add(row | {"step": step})
        events.follow()
    kept = "".join((logs / METRICS).read_text().splitlines(keepends=True)[:2])
    again = Lines(logs / METRICS, 2, kept)
    for step, loss in ((3, 1.5), (4, 1.5), (5, 0.12345678901234), (6, 1.5)):
        again.add(row | {"step": step, "loss": loss})
    with (logs / METRICS).open("a") as file:
        file.write('{"step": 7, "lo')
    events.follow()  # Longer than it was before, and cut elsewhere.
    with (logs / METRICS).open("a") as file:
        file.write('ss": 1.5, "budget": 64}\n')
    events.follow()
    events.close()
    found = scalars(out / EVENTS)
    assert [step for name, step in found if name == "loss"] == [1, 2, 3, 4, 5, 6, 7]
    assert found["loss", 5] == pytest.approx(0.12345678901234)


@pytest.mark.parametrize("text", ["", "10", "3:2", "0:4", "a:b"])
def test_steps_to_trace_are_two_numbers(text: str):
    from flows.config.compute import ComputeConfig

    with pytest.raises(ValueError, match=r"profile .*\"10:13\""):
        ComputeConfig(profile=text)
    assert ComputeConfig(profile="10:13").profiled == (10, 13)
    assert ComputeConfig().profiled == (0, 0)
