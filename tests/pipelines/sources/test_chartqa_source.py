"""ChartQA's published layout."""

import json

import pytest


def write(root, split, kind, rows):
    folder = root / "chartqa/ChartQA Dataset" / split
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}_{kind}.json").write_text(json.dumps(rows))


ROW = {"imgname": "12.png", "query": "How {many}?", "label": "0.72"}


def test_question_is_asked_bare(tmp_path, read_source):
    write(tmp_path, "val", "human", [ROW])
    write(tmp_path, "val", "augmented", [ROW, {**ROW, "label": 5}])
    items, rejects = read_source("chartqa", "val", tmp_path)
    assert not rejects
    assert [item.id for item in items] == [
        "chartqa/val/12.png#human-0",
        "chartqa/val/12.png#augmented-0",
        "chartqa/val/12.png#augmented-1",
    ]
    assert (items[0].prefix, items[0].suffixes, items[2].answers) == (
        "How {many}?",
        ("0.72",),
        ("5",),
    )
    assert items[0].media[0].source == "chartqa/ChartQA Dataset/val/png/12.png"
    assert [item.meta["kind"] for item in items] == ["human", "augmented", "augmented"]


def test_splits_join(tmp_path, read_source):
    write(tmp_path, "train", "human", [ROW])
    write(tmp_path, "val", "human", [ROW])
    items, _ = read_source("chartqa", "train+val", tmp_path)
    assert [item.id.split("/")[1] for item in items] == ["train", "val"]


def test_malformed_and_hostile_rows_are_rejects(tmp_path, read_source):
    hostile = {**ROW, "imgname": "../" * 9 + "etc/passwd"}
    write(tmp_path, "val", "human", [{"imgname": "1.png"}, hostile, ROW, 7])
    items, rejects = read_source("chartqa", "val", tmp_path)
    assert len(items) == 1
    assert [reject.id for reject in rejects] == [f"chartqa/val/human/row-{i}" for i in (0, 1, 3)]
    assert "leaves the data root" in rejects[1].reason


def test_missing_file_is_named(tmp_path, read_source):
    write(tmp_path, "val", "human", [ROW])
    with pytest.raises(FileNotFoundError, match=r"test_human\.json is missing"):
        read_source("chartqa", "test", tmp_path)
    with pytest.raises(ValueError, match=r"one of train, val, test, .* got 'dev'"):
        read_source("chartqa", "dev", tmp_path)
    write(tmp_path, "val", "human", {"a": 1})
    with pytest.raises(ValueError, match=r"val_human\.json must hold a list"):
        read_source("chartqa", "val", tmp_path)
