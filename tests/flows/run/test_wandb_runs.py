"""Runs in W&B without a server, read back from the files that `wandb sync` sends."""

import dataclasses
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.run.tracked import STAGE, STUDY, completed

wandb: Any = pytest.importorskip("wandb", reason="no W&B: `make trackers` has it")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    wandb.teardown()
    yield tmp_path / "wandb"
    wandb.teardown()


def runs_in(folder: Path):
    from flows.run.wandb_runs import WandbRuns

    return WandbRuns(folder.parent / "tracked")


def test_a_stage_has_its_config_its_curves_and_its_page(folder: Path):
    assert runs_in(folder).write(STAGE) == STAGE.id
    (run,) = offline_runs(folder)
    assert (run["id"], run["name"], run["project"]) == (STAGE.id, "stage1 vanilla", "parcel")
    assert run["config"]["train.optimizer.peak_lr"] == 1e-3
    assert run["config"]["methods"] == ["vanilla", "parcel"]
    assert run["config"]["parcel"]["method"] == "vanilla"
    assert [(row["_step"], row["loss"]) for row in run["history"]] == [(1, 5.0), (2, 2.5), (5, 1.0)]
    assert [row["tokens_per_second"] for row in run["history"]] == [11.0, 22.0, 55.0]
    assert run["summary"]["steps"] == 5
    assert STAGE.page in run["notes"]
    assert run["exit_code"] == 0


def test_a_stage_that_was_cut_off_is_completed_and_one_that_was_not_is_left(folder: Path):
    # Cut off: a folder of it is there, without the note that it was written.
    runs_in(folder).write(dataclasses.replace(STAGE, curves=STAGE.curves[:2]))
    for note in (folder.parent / "tracked").rglob(STAGE.id):
        note.unlink()
    runs_in(folder).write(STAGE)
    (run,) = offline_runs(folder)
    assert [row["_step"] for row in run["history"]] == [1, 2, 5]
    before = [*folder.glob("offline-run-*")]
    runs_in(folder).write(dataclasses.replace(STAGE, curves=()))
    assert [*folder.glob("offline-run-*")] == before


def test_a_stage_is_written_anew_where_another_project_is_named(folder: Path, monkeypatch):
    runs_in(folder).write(STAGE)
    monkeypatch.setenv("WANDB_PROJECT", "other")
    runs_in(folder).write(STAGE)
    assert [run["project"] for run in offline_runs(folder)] == ["other"]


def test_a_study_is_one_run_that_a_later_one_completes(folder: Path):
    runs_in(folder).write(STUDY)
    runs_in(folder).write(completed(STUDY))
    (run,) = offline_runs(folder)
    assert run["summary"]["chartqa@448/parcel/64/mean"] == 51.25
    assert run["summary"]["chartqa@448/parcel/64/low"] == 40.5
    assert run["summary"]["msvd/parcel/64/mean"] == 30.0
    assert run["config"]["parcel"]["outcome"] == "complete"
    assert run["notes"].count("/three)") == 1
    (table,) = folder.glob("offline-run-*/files/media/table/results_*.table.json")
    assert json.loads(table.read_text()) == {
        "columns": ["benchmark", "score"],
        "data": [["chartqa@448", "51.25"], ["msvd, all", ""]],
    }


def offline_runs(folder: Path) -> list[dict[str, Any]]:
    """Returns what each file holds that `wandb sync` would send."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]

    runs = []
    for file in sorted(folder.glob("offline-run-*/run-*.wandb")):
        run: dict[str, Any] = {"config": {}, "history": [], "summary": {}}
        for data in log_records(file.read_bytes()):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run |= {
                    "id": record.run.run_id,
                    "name": record.run.display_name,
                    "project": record.run.project,
                    "notes": record.run.notes,
                }
                run["config"] |= _values(record.run.config.update)
            elif kind == "config":
                run["config"] |= _values(record.config.update)
            elif kind == "history":
                run["history"].append(_values(record.history.item))
            elif kind == "summary":
                run["summary"] |= _values(record.summary.update)
            elif kind == "exit":
                run["exit_code"] = record.exit.exit_code
        runs.append(run)
    return runs


def log_records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a W&B file.

    Source: LevelDB's log format, doc/log_format.md, with W&B's header of seven bytes before it:
    blocks of 32 KiB of parts (checksum, length, type), a record in one part or in several.
    """
    assert data[:4] == b":W&B"
    place, record = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:  # No room for a part's header.
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            yield record
            record = b""


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
