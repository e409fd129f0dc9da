"""`parcel data`: what is there, what is missing or refused, exit codes."""

import json
import re
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from infra.errors import ConfigError
from parcel.cli.main import app
from pipelines.records import example
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.schema import Record, Reject
from pipelines.records.tfrecord import write_shard
from tests.pipelines.conftest import write_video
from tests.pipelines.prepare.planted import FAULTS, plant
from tests.pipelines.sources.document_layouts import write_docvqa
from tests.pipelines.sources.question_layouts import write_aokvqa
from tests.pipelines.sources.writing import put_image, put_text

__all__ = ["write_video"]


@pytest.fixture
def check() -> Callable[..., tuple[int, str]]:
    def run(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["data", "check", *map(str, words)])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout

    return run


def test_table_lists_rows_missing_files_and_a_summary(check, tmp_path):
    write_docvqa(tmp_path)
    write_aokvqa(tmp_path)
    code, told = check("--benchmarks", tmp_path)
    assert code == 0
    lines = told.splitlines()
    docvqa = next(line for line in lines if line.startswith("DocVQA (val)"))
    assert " ".join(docvqa.split()) == (
        "DocVQA (val) docvqa val 1 of 1 1 (differs), 1 malformed 5,349 0 of 1"
    )
    assert re.search(r"missing gqa/testdev_balanced_questions\.json .*cs\.stanford\.edu", told)
    assert re.match(r"3 of 51 .* 0 ", lines[-1])
    assert len(set(lines)) == len(lines)


def test_a_data_root_with_the_files_of_no_benchmark_is_no_success(check, tmp_path):
    code, told = check("--benchmarks", tmp_path)
    assert re.match(r"0 of 51 .* 0 ", told.splitlines()[-1])
    assert code == 1


def test_without_a_folder_it_says_what_is_needed(check):
    code, told = check("--benchmarks")
    assert code == 0
    assert re.search(r"refcoco/refcoco\+/refs\(unc\)\.p .*github\.com/lichengunc/refer\b", told)
    assert "missing" not in told


def test_json_has_an_object_per_row(check, tmp_path):
    write_docvqa(tmp_path)
    code, told = check("--benchmarks", tmp_path, "--json")
    (row,) = [row for row in json.loads(told) if row["title"] == "DocVQA (val)"]
    assert code == 0
    assert (row["found"], row["num"], row["as_published"]) == (True, 1, False)


def test_damaged_file_fails(check, tmp_path):
    put_text(tmp_path / "docvqa/val_v1.0.json", "[]")
    code, told = check("--benchmarks", tmp_path)
    assert code == 1
    assert "unreadable docvqa val: " in told
    assert re.search(r"val_v1\.0\.json .*'data'", told)


def test_a_corpus_is_checked_before_it_is_prepared(check, tmp_path):
    write_docvqa(tmp_path)
    code, told = check(tmp_path, "--source", "docvqa", "--split", "val")
    assert code == 1
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[0] == "docvqa/val: 2 inputs = 0 records + 2 rejects"
    assert lines[2].startswith("rejected: 1 x decode: ")
    assert re.match(r"docvqa/val/pybv_81\.png#49153: .*: docvqa/documents/pybv_81\.png", lines[3])
    assert re.search(r"fail: 2 of 2 .*100\.0%.* max_reject_rate .*5\.0%", lines[-1])
    put_image(tmp_path / "docvqa/val/documents/pybv_81.png")
    words = ("--source", "docvqa", "--split", "val", "--prepare", "max_reject_rate=0.5")
    code, told = check(tmp_path, *words)
    assert code == 0
    opened, modes, sizes, last = told.splitlines()[-4:]
    assert (opened, modes) == ("opened: 1 of 1 pictures", "modes: RGB 1")
    assert sizes.startswith("sizes: 40, 40, 40 wide, 30, 30, 30 high")
    assert last.startswith("ready")
    code, told = check(tmp_path, *words, "--json")
    found = json.loads(told)
    assert (code, found["failure"], found["pictures"]["modes"]) == (0, "", {"RGB": 1})
    assert found["parts"] == {
        "docvqa": {
            "records": 1,
            "images": {"1": 1},
            "windows": {"1": 1},
            "suffixes": 2,
            "langs": {"en": 1},
        }
    }
    assert [kind["num"] for kind in found["rejects"]] == [1]


def test_a_dataset_is_counted_by_part_language_and_reason(check, tmp_path):
    same = {"images": (b"x",), "prefix": "p", "task": "t", "source": "x", "source_sha256": "0"}
    records = [
        Record(id=str(i), suffixes=("a",) * (1 + i), lang="en" if i else "de", **same)
        for i in range(3)
    ]
    clip = {**same, "images": (b"x",) * 8, "num_windows": 4}
    clips = [Record(id="c", suffixes=("a",), **clip)]
    count = write_shard(tmp_path / "t.tfrecord", map(example.encode_example, records))
    part = PartInfo(shards=("t.tfrecord",), num_records=(count,))
    write_shard(tmp_path / "v.tfrecord", map(example.encode_example, clips))
    video = PartInfo(shards=("v.tfrecord",), num_records=(1,))
    reasons = ["too small: 1x20, min_side=8", "too small: 7x7, min_side=8", "label must be 'a'"]
    rows = [
        {"id": f"r{i}", "stage": "decode", "reason": reason, "source": "y"}
        for i, reason in enumerate(reasons)
    ]
    (tmp_path / "rejects.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    info = DatasetInfo(
        name="a/b", parts={"t": part, "v": video}, num_inputs=7, num_rejected=3, image_px=64
    )
    info.write(tmp_path)
    code, told = check(tmp_path, "--no-tf-data")  # Its pictures are none.
    assert code == 0
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines == [
        "a/b: 7 inputs = 4 records + 3 rejects",
        "part records images suffixes languages",
        "t 3 1 6 en 2, de 1",
        "v 1 2 in 4 windows 1 en",
        "licences: none stated 4",
        "rejected: 2 x decode: too small: …, min_side=…",
        "r0: too small: 1x20, min_side=8 (y)",
        "r1: too small: 7x7, min_side=8 (y)",
        "rejected: 1 x decode: label must be …",
        "r2: label must be 'a' (y)",
    ]


def test_a_corpus_names_what_is_not_read(check, tmp_path):
    put_text(tmp_path / "web/a.tsv", "a caption\ta.png\n")
    put_image(tmp_path / "web/a.png")
    for name in ("b.zip", "empty.jsonl"):
        put_text(tmp_path / "web" / name, "")
    code, told = check(tmp_path, "--source", "web")
    assert code == 0
    assert told.splitlines()[4:8] == [
        "not read: 1 x empty file",
        "  web/empty.jsonl",
        "not read: 1 x no kind of file that web reads",
        "  web/b.zip",
    ]
    code, told = check(tmp_path, "--source", "web", "--json")
    found = json.loads(told)["omissions"]
    assert [group["sources"] for group in found] == [["web/empty.jsonl"], ["web/b.zip"]]


def test_licences_of_a_corpus_and_what_would_be_dropped(check, tmp_path):
    row = {"image": "a.png", "answers": "x", "question": "?"}
    rows = [{**row, "id": n, "licence": licence} for n, licence in enumerate(["MIT", "MIT", ""])]
    put_image(tmp_path / "jsonl/a.png")
    put_text(tmp_path / "jsonl/train.jsonl", "\n".join(map(json.dumps, rows)))
    _, told = check(tmp_path, "--source", "jsonl")
    assert "licences: MIT 2, none stated 1" in told.splitlines()
    _, told = check(tmp_path, "--source", "jsonl", "--licence", "CC0-1.0", "--allow", "MIT")
    assert "licences: MIT 2" in told.splitlines()
    assert "rejected: 1 x licence: licence: CC0-1.0" in told.splitlines()
    assert "licences.allow drops 1 of 3 inputs" in told.splitlines()
    put_text(
        tmp_path / "jsonl/fetched.json", json.dumps({"a.zip": {"licence": {"licence": "ISC"}}})
    )
    assert "licences: MIT 2, ISC 1" in check(tmp_path, "--source", "jsonl")[1].splitlines()
    with pytest.raises(ConfigError, match=r"licences\.allow .*'mit'.*'MIT'"):
        check(tmp_path, "--source", "jsonl", "--allow", "mit", "--allow", "CC0-1.0")


def test_wrong_requests_are_refused(check, tmp_path):
    with pytest.raises(ConfigError, match="data check needs"):
        check()
    with pytest.raises(ConfigError, match=r"dataset .*got .*no dataset"):
        check(tmp_path)
    with pytest.raises(ConfigError, match=r"source .*ai2d, .*'docvqb'"):
        check(tmp_path, "--source", "docvqb")
    with pytest.raises(ConfigError, match=r"docvqa .*data_root and path"):
        check(tmp_path, "--source", "docvqa")
    with pytest.raises(ConfigError, match=r"data_root .*nowhere"):
        check("--benchmarks", tmp_path / "nowhere")
    setting = ("--source", "docvqa", "--prepare")
    with pytest.raises(ConfigError, match=r"max_reject_rte \(max_reject_rate\?\); accepted: imag"):
        check(tmp_path, *setting, "max_reject_rte=1")
    with pytest.raises(ConfigError, match=r"--prepare .*max_reject_rate .*\[0, 1\].* 7"):
        check(tmp_path, *setting, "prepare.max_reject_rate=7")
    with pytest.raises(ConfigError, match=r"--prepare .*'all'"):
        check(tmp_path, *setting, "all")


@pytest.mark.slow
def test_exit_codes_and_the_planted_faults_by_the_real_command(parcel, tmp_path, write_video):
    clip = write_video(tmp_path / "whole.mp4", num_frames=25)
    plant(tmp_path / "bad", clip, FAULTS)
    plant(tmp_path / "good", clip, ["cmyk", "alpha"])
    done = parcel("data", "check", str(tmp_path / "bad"), "--source", "web", "--all")
    assert done.code == 1
    for fault, (_, stage, reason) in FAULTS.items():
        rejects = [line for line in done.out.splitlines() if reason[:24] in line]
        assert not stage or rejects, fault
    assert "captoin (caption?)" in done.out
    assert "imge (image?)" in done.out
    for fact in ("web/stray.zip", "1 with alpha, 1 in CMYK", "same id: web/twice/a#caption.en"):
        assert fact in done.out
    assert parcel("data", "check", str(tmp_path / "good"), "--source", "web").code == 0
    assert parcel("data", "check", str(tmp_path / "none"), "--source", "web").code == 2


def test_rejects_are_shown_by_reason(parcel, tmp_path):
    reasons = ["too small: 1x2, min_side=8"] * 4 + ["truncated: 3 of 4 bytes"]
    rejects = [
        Reject(id=f"r{n}", stage="decode", reason=reason, source=f"web/{n}.jpg")
        for n, reason in enumerate(reasons)
    ]
    (tmp_path / "rejects.jsonl").write_text("".join(f"{r.to_json()}\n" for r in rejects))
    done = parcel("data", "rejects", str(tmp_path))
    assert done.out.splitlines() == [
        "rejected: 4 x decode: too small: …, min_side=…",
        *(f"  r{n}: too small: 1x2, min_side=8 (web/{n}.jpg)" for n in range(3)),
        "  and 1 more",
        "rejected: 1 x decode: truncated: … of … bytes",
        "  r4: truncated: 3 of 4 bytes (web/4.jpg)",
    ]
    few = parcel("data", "rejects", str(tmp_path / "rejects.jsonl"), "--reason", "SMALL", "--json")
    (kind,) = json.loads(few.out)
    assert (kind["num"], [e["id"] for e in kind["examples"]]) == (4, ["r0", "r1", "r2"])
    assert "and " not in parcel("data", "rejects", str(tmp_path), "--limit", "4").out
    none = parcel("data", "rejects", str(tmp_path), "--reason", "hue")
    assert (none.code, none.out) == (0, "no rejects with 'hue' in the reason\n")
    lost = parcel("data", "rejects", str(tmp_path / "x"), "--store", str(tmp_path / "store"))
    assert lost.code == 2
    (tmp_path / "empty").mkdir()
    assert parcel("data", "rejects", str(tmp_path / "empty")).code == 2


def test_export_writes_what_it_says(tmp_path):
    record = Record(
        id="a",
        images=(b"\xff\xd8",),
        prefix="caption en",
        suffixes=("b",),
        task="caption",
        source="a.jpg",
        source_sha256="00",
    )
    folder = tmp_path / "prepared"
    folder.mkdir()
    write_shard(folder / "caption.tfrecord", [example.encode_example(record)])
    part = PartInfo(shards=("caption.tfrecord",), num_records=(1,))
    DatasetInfo(name="d", parts={"caption": part}, num_inputs=1, num_rejected=0, image_px=28).write(
        folder
    )
    words = ["data", "export", str(folder), "--out", str(tmp_path / "out"), "--format"]
    done = CliRunner().invoke(app, [*words, "webdataset"])
    assert (done.exit_code, done.stdout) == (0, "caption: 1 records\n")
    assert (tmp_path / "out/caption-00000-of-00001.tar").is_file()
    again = CliRunner().invoke(app, [*words, "webdataset"])
    assert isinstance(again.exception, ConfigError)
