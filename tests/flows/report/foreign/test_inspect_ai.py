"""Logs of inspect_ai: both of its forms, scores, clusters, and what is refused."""

import zipfile
from pathlib import Path

import pytest

from flows.report.foreign import inspect_ai, inspect_archive
from flows.report.foreign.item_log import ItemLogError
from flows.report.foreign.logs_report import read_logs, report_logs
from tests.flows.report.foreign.inspect_logs import inspect_log, write_archive, write_json

SCORES = [[1.0], [0.0], [0.5], [1.0], [0.0]]


@pytest.mark.parametrize("form", ["json", "zstandard", "deflate"])
def test_every_form_has_the_same_items(tmp_path: Path, form: str):
    log = inspect_log("org/a", SCORES, per_picture=2)
    if form == "json":
        write_json(tmp_path / "a.json", log)
        (tmp_path / "other.json").write_text('{"version": 2}')
    else:
        method = 93 if form == "zstandard" else zipfile.ZIP_DEFLATED
        write_archive(tmp_path / "a.eval", log, method=method)
    (read,) = read_logs([tmp_path])
    assert (read.model, read.task, read.metric, read.split) == ("org/a", "charts", "match", "test")
    assert [item.score for item in read.items] == [1.0, 0.0, 0.5, 1.0, 0.0]
    assert [item.id for item in read.items] == ["1", "2", "3", "4", "5"]
    # A picture's attachment is named by a digest of its content.
    assert [int(item.source, 16) for item in read.items] == [0, 0, 1, 1, 2]
    third = read.items[2]
    assert (third.prompt, third.target, third.answer) == ("How many? 2", "4", "0.5")


def test_an_item_of_several_epochs_has_their_mean(tmp_path: Path):
    write_json(tmp_path / "a.json", inspect_log("a", [[1.0, 0.0], [1.0, 1.0]]))
    (log,) = read_logs([tmp_path])
    assert [item.score for item in log.items] == [0.5, 1.0]


def test_a_score_of_several_values_is_read_by_name(tmp_path: Path):
    log = inspect_log("a", SCORES)
    for number, sample in enumerate(log["samples"]):
        sample["scores"] = {"both": {"value": {"fast": number, "right": number % 2 == 0}}}
    mean = {"accuracy": {"name": "accuracy", "value": 0.6}}
    log["results"]["scores"] = [
        {"name": name, "scorer": "both", "metrics": mean} for name in ("fast", "right")
    ]
    write_json(tmp_path / "a.json", log)
    (read,) = read_logs([tmp_path])
    assert read.metric == "right"
    assert [item.score for item in read.items] == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_attached_text_is_the_prompt(tmp_path: Path):
    log = inspect_log("a", SCORES)
    for sample in log["samples"]:
        sample["attachments"]["ab12"] = "A long question"
        sample["messages"][0]["content"][0]["text"] = "attachment://ab12"
    write_json(tmp_path / "a.json", log)
    (read,) = read_logs([tmp_path])
    assert {item.prompt for item in read.items} == {"A long question"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"scorer": "choice"}, r"b\.json: metric must be 'match' as in .*a\.json, got 'choice'"),
        ({"prompt": "Count."}, r"prompt of item 1 must be 'How many\? 0' as in .*'Count\. 0'"),
        ({"target": ["4", "four"]}, r"target of item 1 must be '4' as in .*, got '4\\nfour'"),
        ({"split": "val"}, r"split must be 'test' as in .*, got 'val'"),
        ({"scores": SCORES[1:]}, r"questions must be those of .*, got 4 and 5"),
        ({"per_picture": 5}, r"source of item 2 must be '0*1' as in"),
    ],
)
def test_another_question_is_refused_with_what_differs(tmp_path: Path, other: dict, message: str):
    write_json(tmp_path / "a.json", inspect_log("a", SCORES))
    write_json(tmp_path / "b.json", inspect_log("b", **{"scores": SCORES, **other}))
    with pytest.raises(ItemLogError, match=message):
        report_logs(read_logs([tmp_path]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "error"}, r"status must be 'success', got 'error'; leave it out, or run"),
        ({"invalidated": True}, r"got an invalidated log"),
        ({"samples": []}, r"has no sample"),
        ({"samples": [3]}, r"samples\[0\] must be an object, got 3"),
        ({"results": None}, r"results must be an object, got None"),
        ({"eval": {"model": 3, "task": "t"}}, r"eval\.model must be a text, got 3"),
    ],
)
def test_a_log_that_lacks_something_is_named(tmp_path: Path, change: dict, message: str):
    write_json(tmp_path / "a.json", inspect_log("a", SCORES) | change)
    with pytest.raises(ItemLogError, match=r"a\.json: .*" + message):
        read_logs([tmp_path])


def test_a_mean_over_other_scores_is_refused(tmp_path: Path):
    write_json(tmp_path / "a.json", inspect_log("a", SCORES, mean=0.7))
    with pytest.raises(ItemLogError, match=r"whose mean is the task's own, got match\."):
        read_logs([tmp_path])
    log = inspect_log("a", [[1.0, 0.0], [1.0, 1.0]])
    del log["samples"][1]
    write_json(tmp_path / "a.json", log)
    with pytest.raises(ItemLogError, match="must have the same epochs, each once"):
        read_logs([tmp_path])


def test_a_damaged_archive_is_named(tmp_path: Path):
    path = write_archive(tmp_path / "a.eval", inspect_log("a", SCORES))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ItemLogError, match=r"a\.eval: is no archive, or damaged"):
        read_logs([tmp_path])
    start = whole.index(b"samples/3") + 40
    path.write_bytes(whole[:start] + b"\xff" * 8 + whole[start + 8 :])
    with pytest.raises(ItemLogError, match=r"a\.eval: samples/3_epoch_1\.json: is damaged"):
        read_logs([tmp_path])
    write_archive(path, inspect_log("a", SCORES), method=98)
    with pytest.raises(ItemLogError, match=r"got method 98; convert it: `inspect log convert"):
        read_logs([tmp_path])


def test_a_text_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_archive(tmp_path / "a.eval", inspect_log("a", SCORES))
    write_json(tmp_path / "b.json", inspect_log("b", SCORES))
    for module in (inspect_ai, inspect_archive):
        monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(ItemLogError, match=r"a\.eval: header\.json: must be at most 100 bytes"):
        inspect_ai.read_log(tmp_path / "a.eval")
    with pytest.raises(ItemLogError, match=r"b\.json: must be at most 100 bytes, .*--to eval"):
        inspect_ai.read_log(tmp_path / "b.json")
