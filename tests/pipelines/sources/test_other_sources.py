"""NLVR, NLVR2, one's own lines, and folders of raw files."""

import json
import re

import pytest


def test_nlvr_permutations_make_three_pairs(tmp_path, read_source):
    folder = tmp_path / "nlvr/nlvr/dev"
    folder.mkdir(parents=True)
    row = {"sentence": "A box.", "label": "true", "identifier": "66-2", "directory": "5"}
    (folder / "dev.json").write_text(json.dumps(row) + "\n\n{}\n")
    items, rejects = read_source("nlvr", "dev", tmp_path)
    assert [item.id for item in items] == [f"nlvr/dev/66-2-{p}" for p in ("01", "23", "45")]
    assert [m.path for m in items[1].media] == [
        f"nlvr/nlvr/dev/images/5/dev-66-2-{i}.png" for i in (2, 3)
    ]
    assert (items[0].prefix, items[0].suffixes) == ("answer en A box.", ("True",))
    assert [reject.id for reject in rejects] == ["nlvr/dev/row-1"]


def test_nlvr2_names_its_pair(tmp_path, read_source):
    (tmp_path / "nlvr2/data").mkdir(parents=True)
    row = {"sentence": "Two dogs.", "label": "False", "identifier": "dev-850-0-1"}
    (tmp_path / "nlvr2/data/dev.json").write_text(json.dumps(row))
    items, _ = read_source("nlvr", "dev", tmp_path, path="nlvr2")
    assert [m.path for m in items[0].media] == [
        f"nlvr2/images/dev/dev-850-0-img{k}.png" for k in (0, 1)
    ]
    assert items[0].suffixes == ("False",)


def test_nlvr_missing_file_is_named(tmp_path, read_source):
    (tmp_path / "nlvr").mkdir()
    with pytest.raises(FileNotFoundError, match=r"dev\.json is missing"):
        read_source("nlvr", "dev", tmp_path)


@pytest.mark.parametrize("name", ["images", "videos"])
def test_every_file_but_texts_is_an_input(tmp_path, read_source, name):
    (tmp_path / name / "sub").mkdir(parents=True)
    for file in ("a.mp4", "sub/b", "c.srt", "d.json"):
        (tmp_path / name / file).touch()
    items, _ = read_source(name, "train", tmp_path)
    assert [(item.id, item.media[0].video) for item in items] == [
        (f"{name}/a.mp4", name == "videos"),
        (f"{name}/sub/b", name == "videos"),
    ]


def test_missing_folder_is_named(tmp_path, read_source):
    with pytest.raises(FileNotFoundError, match="videos is not a folder"):
        read_source("videos", "train", tmp_path)


def test_ones_own_lines_are_taken_as_they_are(tmp_path, read_source):
    rows = [
        {"image": "a/1.png", "prefix": "detect cat", "suffix": "<loc0001> cat", "id": "x"},
        {"image": ["l.png", "r.png"], "prefix": "?", "suffix": ["yes", "true"], "task": "pairs"},
        {
            "video": "c.mp4",
            "prefix": "caption de",
            "suffix": "Hund",
            "lang": "de",
            "answers": ["H"],
            "meta": {"kind": 3},
        },
    ]
    bad = [
        {"prefix": "p", "suffix": "s"},
        {"image": "a", "prefix": "p", "suffix": "s", "label": 1},
        {"image": "a", "prefix": "p", "suffix": []},
        {"image": "../../a", "prefix": "p", "suffix": "s"},
        {"image": ["a", "b", "c"], "prefix": "p", "suffix": "s"},
        {"image": "a", "prefix": "p", "suffix": "s", "task": "../x"},
        3,
    ]
    (tmp_path / "jsonl").mkdir()
    lines = "\n".join(map(json.dumps, [*rows, *bad])) + "\nno json\n"
    (tmp_path / "jsonl/val.jsonl").write_text(lines)
    items, rejects = read_source("jsonl", "val", tmp_path)
    assert [(i.id, i.part, i.suffixes, i.answers) for i in items] == [
        ("jsonl/val/a/1.png#x", "jsonl", ("<loc0001> cat",), ("<loc0001> cat",)),
        ("jsonl/val/l.png#1", "pairs", ("yes", "true"), ("yes", "true")),
        ("jsonl/val/c.mp4#2", "jsonl", ("Hund",), ("H",)),
    ]
    assert [m.path for m in items[1].media] == ["jsonl/l.png", "jsonl/r.png"]
    assert (items[2].media[0].video, items[2].lang, items[2].meta) == (True, "de", {"kind": 3})
    assert len(rejects) == len(bad) + 1
    assert re.match("no such key: label; .*image, video, question", rejects[1].reason)
    with pytest.raises(FileNotFoundError, match=r"train\.jsonl is missing"):
        read_source("jsonl", "train", tmp_path)
