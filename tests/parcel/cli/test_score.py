"""`parcel model score`: items, aggregate, parts; and what is wrong with a file."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from pipelines.records.rle import encode_mask

LINES = [
    {"id": "a", "prediction": "12", "answers": ["12.3"], "kind": "human"},
    {"id": 7, "prediction": "x", "answers": ["y"], "kind": "augmented", "unknown": None},
]


@pytest.fixture
def score(parcel):
    return functools.partial(parcel, "model", "score")


@pytest.fixture
def file(tmp_path: Path):
    def write(*lines: object) -> Path:
        path = tmp_path / "predictions.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n", "utf-8")
        return path

    return write


def test_items_aggregate_and_parts(score, file):
    done = score("relaxed_accuracy", file(*LINES))
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["a", "1"],
        ["7", "0"],
        ["relaxed_accuracy", "50.0000", "num", "2"],
        ["kind/augmented", "0.0000", "num", "1"],
        ["kind/human", "100.0000", "num", "1"],
    ]


def test_json_is_score_json_with_the_items(score, file):
    assert json.loads(score("relaxed_accuracy", file(*LINES), "--json").out) == {
        "metric": "relaxed_accuracy",
        "score": 50.0,
        "num": 2,
        "sum": 1.0,
        "parts": {
            "kind/augmented": {"score": 0.0, "num": 1, "sum": 0.0},
            "kind/human": {"score": 100.0, "num": 1, "sum": 1.0},
        },
        "items": [{"id": "a", "score": 1.0}, {"id": "7", "score": 0.0}],
    }


@pytest.mark.usefixtures("forget")
def test_a_metric_of_ones_own_is_named_by_its_file(score, file, tmp_path: Path, monkeypatch):
    text = "def near(prediction, fields):\n    return 1 / (1 + len(fields['unknown'] or 'abc'))\n"
    (tmp_path / "own_near.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = score("./own_near.py:near", file(LINES[1]))
    assert done.out.splitlines()[1].split() == ["own_near:near", "25.0000", "num", "1"]
    done = score("own_near.py:near", file(LINES[1], LINES[0]))
    assert done.code == 2
    where = f"{tmp_path}/own_near.py:2"
    assert re.search(rf"line 2: .*own_near:near .*{where} .*'a': KeyError: lac", done.err)
    assert "METRIC: own_near has no 'far'" in score("own_near.py:far", file(LINES[0])).err


def test_captions_are_scored_as_a_corpus(score, file):
    lines = [
        {"id": i, "prediction": p, "answers": [p], "lang": "en"}
        for i, p in enumerate(["a red dog runs", "two cats sleep here"])
    ]
    done = json.loads(score("cider", file(*lines), "--json").out)
    assert done["score"] == pytest.approx(1000)
    assert [item["score"] for item in done["items"]] == pytest.approx([10, 10])


def test_blank_lines_are_no_predictions(score, file):
    assert score("vqa", file({"id": 1, "prediction": "x", "answers": ["x"]}, "", " ")).code == 0


def test_a_byte_order_mark_is_no_part_of_the_first_line(score, file):
    path = file({"id": 1, "prediction": "x", "answers": ["x"]})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert score("vqa", path).code == 0


GOOD = {"id": "a", "prediction": "x", "answers": ["x"]}


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("{", "line 2: must be one JSON object, got '{'."),
        ([1], 'line 2: must be an object {"id": ...}, got [1].'),
        ({"prediction": "x"}, "line 2: id must be a text or a whole number, got nothing."),
        ({**GOOD, "id": True}, "line 2: id must be a text or a whole number, got True."),
        (GOOD, "line 2: id must be unique, got 'a' again, as on line 1; drop one of them."),
        (
            {"id": "b", "answers": ["x"]},
            'line 2: prediction must be a text, "" where there is none, got nothing.',
        ),
        (
            {"id": "b", "prediction": "x", "answers": "x"},
            "line 2: answers must be a list of at least one text, got 'x'.",
        ),
        (
            {"id": "b", "prediction": "x", "answers": []},
            "line 2: answers must be a list of at least one text, got [].",
        ),
        (
            {"id": "b", "prediction": "x", "answers": [1]},
            "line 2: answers must be a list of at least one text, got [1].",
        ),
        (
            {"id": "b", "prediction": "x", "answers": ["x", "y"]},
            "line 2: answers must hold one text, got 2: ['x', 'y'].",
        ),
    ],
)
def test_a_bad_line_is_told_by_number_field_and_value(score, file, bad, complaint: str):
    done = score("relaxed_accuracy", file(GOOD, bad))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("parcel: ")
    assert complaint in done.err
    assert done.err.count("\n") == 1


def test_wrong_requests(score, file, tmp_path: Path):
    path, empty = file(GOOD), tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for words, complaint in [
        (("bleu4", path), "METRIC must be one of exact_match, vqa, "),
        (("vqa", tmp_path / "no.jsonl"), "FILE must be a readable JSON-lines file"),
        (("vqa", tmp_path), "FILE must be a readable JSON-lines file"),
        (("vqa", empty), "must have at least one line, got none"),
        (("vqa", path, "--mask-codec", path), "--mask-codec must be left out for vqa"),
        (("miou", path), "--mask-codec must be given for miou"),
        (("miou", path, "--mask-codec", tmp_path), "--mask-codec must be a codec's .npz"),
    ]:
        done = score(*words)
        assert done.code == 2, words
        assert complaint in done.err
        assert done.err.count("\n") == 1


def test_text_that_is_not_utf8_is_told(score, tmp_path: Path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"id": "caf\xe9"}\n')
    done = score("vqa", path)
    assert (done.code, "it is not UTF-8" in done.err) == (2, True)


def test_masks_are_drawn_by_the_codec(score, file, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from model.masks import codec as mask_codec

    class Whole:
        def decode(self, _ids):
            return np.ones((64, 64), np.float32)

    monkeypatch.setattr(mask_codec.MaskCodec, "load", lambda _path: Whole())
    codec = tmp_path / "codec.npz"
    codec.touch()
    mask = json.loads(encode_mask(np.ones((8, 8), bool)))
    text = "<loc0000><loc0000><loc1023><loc1023>" + "<seg000>" * 16
    line = {"id": 1, "prediction": text, "masks": [mask]}
    done = json.loads(score("miou", file(line), "--mask-codec", codec, "--json").out)
    assert done["score"] == 100.0
    assert done["parts"]["box_accuracy@0.5"]["score"] == 100.0
    done = score("miou", file({**line, "masks": ["x"]}), "--mask-codec", codec)
    assert (done.code, "masks must be" in done.err) == (2, True)
    done = score("miou", file({**line, "box": [0, 1]}), "--mask-codec", codec)
    assert (done.code, "box must be [ymin, xmin, ymax, xmax]" in done.err) == (2, True)
