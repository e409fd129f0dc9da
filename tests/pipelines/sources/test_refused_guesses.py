"""Counts and names that do not decide are refused with the choices, and an odd row costs a row."""

import gzip
import io
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from pipelines.records.example import _Example
from pipelines.records.rle import encode_mask
from pipelines.records.tfrecord import write_shard
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.registry import source_spec
from pipelines.sources.web.examples import split_of
from pipelines.transforms.masks import normalize_mask
from tests.pipelines.sources.hub_layouts import put_parquet
from tests.pipelines.sources.writing import put_image, put_json, put_text

SHARED = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def example(**features: list[str] | bytes) -> bytes:
    """Returns a serialized Example of texts and bytes."""
    made = _Example()
    for name, values in features.items():
        listed = [values] if isinstance(values, bytes) else [v.encode() for v in values]
        made.features.feature[name].bytes_list.value.extend(listed)  # pyright: ignore
    return made.SerializeToString()


def put_records(path: Path, *records: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_shard(path, records)
    path.with_suffix(".idx").unlink()
    return path


def read(root: Path, source, split: str = "train", path: str = "", **more):
    spec = source_spec(source)
    corpus = Corpus(root, path or spec.folder, UnpackedMedia(io.BytesIO(), "u"), **more)
    found = list(spec.read_splits(corpus, split))
    return [i for i in found if isinstance(i, Item)], [i for i in found if not isinstance(i, Item)]


QUESTIONS = {"image": "image", "question": "q", "answer": "a"}


@SHARED
@given(num_questions=st.integers(0, 4), num_answers=st.integers(0, 4))
def test_only_numbers_that_say_what_belongs_together_are_pairs(
    tmp_path, num_questions, num_answers
):
    questions = [f"question {i}" for i in range(num_questions)]
    answers = [f"answer {i}" for i in range(num_answers)]
    record = example(image=b"picture", q=questions, a=answers)
    put_records(tmp_path / "tfrecord/x.tfrecord", record)
    more = {"features": QUESTIONS, "tasks": ["vqa"], "per_task": 9}
    items, rejects = read(tmp_path, "tfrecord", **more)
    pairs = {item.prefix.removeprefix("answer en "): item.suffixes for item in items}
    if num_questions == num_answers:
        assert pairs == {q: (a,) for q, a in zip(questions, answers, strict=True)}
    elif num_questions == 1 and num_answers:
        assert pairs == {questions[0]: tuple(answers)}
    else:
        assert not pairs
        (reject,) = rejects
        if num_questions and num_answers:
            assert f"q holds {num_questions} texts and a {num_answers};" in reject.reason


def test_the_answers_of_a_feature_are_not_those_of_questions_beside_it(tmp_path):
    pairs = json.dumps([{"question": "beside?", "answer": "its own"}])
    record = example(image=b"picture", q=["asked?"], a=["one", "two"], pairs=[pairs])
    put_records(tmp_path / "tfrecord/x.tfrecord", record)
    features = {**QUESTIONS, "qa": "pairs"}
    items, rejects = read(tmp_path, "tfrecord", features=features, tasks=["vqa"], per_task=9)
    assert not rejects
    assert {item.prefix: item.answers for item in items} == {
        "answer en asked?": ("one", "two"),
        "answer en beside?": ("its own",),
    }


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("a.tfrecord", "train"),
        ("a-Val2017.tfrecord", "val"),
        ("TEST.tfrecord-00000-of-00001", "test"),
        ("a_validation.1.tfrec", "validation"),
        ("a-train-train.tfrecord", "train"),
    ],
)
def test_the_split_is_a_word_of_the_name_whatever_its_capitals(name, split):
    assert split_of(Path(name)) == split


@pytest.mark.parametrize("name", ["train-val.tfrecord", "a.test.dev.tfrecord"])
def test_a_name_with_two_splits_is_refused(tmp_path, name):
    put_records(tmp_path / "tfrecord" / name, example(image=b"picture", caption=["A dog"]))
    with pytest.raises(ValueError, match=r"one split, got \w+ and \w+;"):
        read(tmp_path, "tfrecord", features={"image": "image", "caption": "caption"})


@pytest.mark.parametrize("field", ["lang", "id", "objects"])
def test_several_values_where_one_is_read_are_refused(tmp_path, field):
    record = example(image=b"picture", caption=["A dog"], more=["[]", "[]"])
    put_records(tmp_path / "tfrecord/x.tfrecord", record)
    features = {"image": "image", "caption": "caption", field: "more"}
    items, rejects = read(tmp_path, "tfrecord", features=features)
    assert not items
    assert [r.reason for r in rejects] == ["more holds 2 texts, one is read"]


def test_records_packed_with_zlib_are_read(tmp_path):
    records = [example(image=bytes([n]) * 5000, caption=[f"Number {n}"]) for n in range(40)]
    path = put_records(tmp_path / "tfrecord/x.tfrecord", *records)
    features = {"image": "image", "caption": "caption"}
    plain, _ = read(tmp_path, "tfrecord", features=features)
    packed = zlib.compress(path.read_bytes())
    path.write_bytes(packed)
    items, rejects = read(tmp_path, "tfrecord", features=features)
    assert [i.suffixes for i in items] == [i.suffixes for i in plain]
    assert [i.media[0].size for i in items] == [5000] * 40
    assert not rejects
    path.write_bytes(packed[: len(packed) // 2])
    items, rejects = read(tmp_path, "tfrecord", features=features)
    assert len(items) < 40
    assert [r.reason.partition(":")[0] for r in rejects] == ["damaged file"]


@pytest.mark.parametrize("first", [b"\x78\x9c", b"\x1f\x8b"])
def test_a_plain_file_whose_length_looks_packed_is_plain(tmp_path, first):
    size = int.from_bytes(first, "little")
    record = next(
        made
        for n in range(size - 60, size)
        if len(made := example(image=bytes([7]) * n, caption=["A dog"])) == size
    )
    path = put_records(tmp_path / "tfrecord/x.tfrecord", record)
    assert path.read_bytes()[:2] == first
    items, rejects = read(tmp_path, "tfrecord", features={"image": "image", "caption": "caption"})
    assert [i.suffixes for i in items] == [("A dog",)]
    assert not rejects


def coco(root: Path, *annotations: dict, images: int = 2) -> None:
    rows = [
        {"id": n, "file_name": f"{n}.jpg", "width": 20, "height": 10} for n in range(1, images + 1)
    ]
    put_json(
        root / "coco/annotations/instances_train2017.json",
        {"images": rows, "annotations": [*annotations], "categories": [{"id": 1, "name": "cat"}]},
    )


BOX = {"image_id": 1, "category_id": 1, "bbox": [4, 2, 8, 5], "iscrowd": 0}


@SHARED
@given(x=st.integers(0, 15), y=st.integers(0, 7), w=st.integers(1, 5), h=st.integers(1, 3))
def test_masks_in_every_form_of_coco_are_the_same(tmp_path, x, y, w, h):
    mask = np.zeros((10, 20), bool)
    mask[y : y + h, x : x + w] = True
    text = json.loads(encode_mask(mask))
    counts, value = [0], False
    for pixel in mask.T.reshape(-1).tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    polygon = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    shapes = polygon, text, {"size": [10, 20], "counts": counts}
    for shape in shapes:
        coco(tmp_path, {**BOX, "segmentation": shape})
        items, rejects = read(tmp_path, "coco_objects")
        assert not rejects
        (stored,) = (m for i in items if i.task == "segment" for m in i.masks)
        assert json.loads(normalize_mask(stored, width=20, height=10)) == text


@pytest.mark.parametrize("shape", [None, [], "absent"])
def test_an_object_without_a_mask_is_detected(tmp_path, shape):
    one = {**BOX} if shape == "absent" else {**BOX, "segmentation": shape}
    coco(tmp_path, one)
    items, rejects = read(tmp_path, "coco_objects")
    assert {i.task for i in items} == {"detect", "grounded_caption"}
    assert not rejects


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({**BOX, "bbox": None}, "bbox must be four numbers x, y, width, height, got None"),
        ({**BOX, "bbox": [1, 2, 3]}, "four numbers x, y, width, height, got [1, 2, 3]"),
        ({**BOX, "bbox": [1, 2, float("nan"), 3]}, "got [1, 2, nan, 3]"),
        ({**BOX, "bbox": {"x": 1}}, "got {'x': 1}"),
        ({**BOX, "category_id": 9}, "category_id 9 is not one of the file's categories"),
        ({"bbox": [1, 2, 3, 4]}, "annotation names no image (image_id)"),
        (None, "annotation names no image (image_id): None"),
        ({**BOX, "iscrowd": "0"}, "iscrowd must be 0 or 1, got '0'"),
    ],
)
def test_an_odd_annotation_costs_its_picture_and_no_run(tmp_path, odd, reason):
    coco(tmp_path, odd, {**BOX, "image_id": 2})
    items, rejects = read(tmp_path, "coco_objects")
    assert {i.media[0].path for i in items} == {"coco/train2017/2.jpg"}
    (reject,) = rejects
    assert reason in reject.reason


@pytest.mark.parametrize("field", ["images", "categories"])
def test_an_id_of_two_is_that_of_none(tmp_path, field):
    coco(tmp_path, BOX, {**BOX, "image_id": 2})
    file = tmp_path / "coco/annotations/instances_train2017.json"
    raw = json.loads(file.read_text())
    raw[field].append({**raw[field][0], "file_name": "9.jpg", "name": "other"})
    put_json(file, raw)
    items, rejects = read(tmp_path, "coco_objects")
    if field == "images":
        assert {i.media[0].path for i in items} == {"coco/train2017/2.jpg"}
        assert {"image id 1 is that of several images"} == {r.reason for r in rejects}
        assert len(rejects) == 2
    else:
        assert not items
        assert all("is not one of the file's categories" in r.reason for r in rejects)


def test_annotations_of_images_that_no_list_has_are_in_the_account(tmp_path):
    coco(tmp_path, BOX, {**BOX, "image_id": 77}, {**BOX, "image_id": 77}, {**BOX, "image_id": 9})
    spec = source_spec("coco_objects")
    corpus = Corpus(tmp_path, spec.folder, UnpackedMedia(io.BytesIO(), "u"))
    for _ in range(2):  # A part of a split is read twice.
        assert not [e for e in spec.read_splits(corpus, "train") if not isinstance(e, Item)]
        (omission,) = corpus.omissions()
        assert (omission.num, omission.example) == (3, "77")
        assert omission.reason == "annotations of images that no list has"


@pytest.mark.parametrize("key", ["categories", "annotations", "images"])
@pytest.mark.parametrize("value", [None, "text", {"1": {}}, "absent"])
def test_a_file_without_its_lists_is_named_with_the_list(tmp_path, key, value):
    coco(tmp_path, BOX)
    (path,) = (tmp_path / "coco").rglob("*.json")
    content = json.loads(path.read_text()) | {key: value}
    if value == "absent":
        del content[key]
    put_json(path, content)
    with pytest.raises(ValueError, match=rf"{path.name} must hold a list under '{key}'") as error:
        read(tmp_path, "coco_objects")
    assert "NoneType" not in str(error.value)


def test_odd_rows_of_textocr_and_visual_genome_cost_themselves(tmp_path):
    put_json(
        tmp_path / "textvqa/TextOCR_0.1_train.json",
        {
            "imgs": {"a": {"width": 9, "height": 9}, "b": {"width": 9, "height": 9}},
            "anns": {
                "1": {"image_id": "a", "bbox": [0, 0, 4, 4], "utf8_string": "Hello"},
                "2": {"image_id": "b", "bbox": "x", "utf8_string": "odd"},
                "3": {"bbox": [0, 0, 4, 4], "utf8_string": "loose"},
            },
        },
    )
    items, rejects = read(tmp_path, "textocr")
    assert [i.suffixes for i in items] == [("Hello",)]
    assert len(rejects) == 2
    put_json(
        tmp_path / "visual_genome/region_descriptions.json",
        [{"regions": []}, None, {"id": 2, "regions": []}],
    )
    rows = [{"id": n, "qas": [{"question": "What?", "answer": "A kite"}]} for n in (1, 2)]
    put_json(tmp_path / "visual_genome/question_answers.json", rows)
    items, rejects = read(tmp_path, "visual_genome", tasks=["vqa"])
    assert [i.answers for i in items] == [("A kite",)] * 2
    assert not rejects


def put_urls(path: Path, rows: list[tuple[str, str]]) -> None:
    """Writes captions and URLs as a table in the form of the path's extension."""
    fields = [{"caption": caption, "url": url} for caption, url in rows]
    lines = "".join(json.dumps(row) + "\n" for row in fields)
    if path.name.endswith(".cells.parquet"):  # A URL in the picture's cell, as `datasets` has it.
        cells = [{"bytes": None, "path": url} for _, url in rows]
        put_parquet(
            path, *({"caption": c, "image": i} for (c, _), i in zip(rows, cells, strict=True))
        )
    elif path.suffix == ".parquet":
        put_parquet(path, *fields)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix in (".jsonl", ".ndjson"):
        put_text(path, lines)
    else:
        put_text(path, "".join(f"{caption}\t{url}\n" for caption, url in rows))


NAMES = ["1.jpg", "2.jpg", "3.jpg"]


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "ndjson", "jsonl.gz", "parquet", "cells.parquet"])
@SHARED
@given(
    ends=st.lists(
        st.tuples(st.sampled_from(["a.org", "b.org/x"]), st.sampled_from(NAMES), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    second=st.integers(0, 8),
)
def test_a_file_is_of_one_url_at_most(tmp_path, kind, ends, second):
    for name in NAMES:
        put_image(tmp_path / "web/images" / name)
    urls = [f"https://{host}/{name}{'?size=9' * query}" for host, name, query in ends]
    rows = [(f"caption {n}", url) for n, url in enumerate(urls)]
    # Two tables in one folder share its pictures, so that their URLs clash as well.
    put_urls(tmp_path / f"web/a.{kind}", rows[:second] or [("alone", "https://c.org/0.jpg")])
    put_urls(tmp_path / f"web/b.{kind}", rows[second:] or [("alone", "https://c.org/0.jpg")])
    items, rejects = read(tmp_path, "web")
    of_name = {
        name: {u for (_, n, _), u in zip(ends, urls, strict=True) if n == name} for name in NAMES
    }
    taken = {item.suffixes[0]: item.media[0].path for item in items}
    for (caption, _), (_, name, _) in zip(rows, ends, strict=True):
        alone = len(of_name[name]) == 1
        assert taken.get(caption) == (f"web/images/{name}" if alone else None)
    clashes = [r.reason for r in rejects if "several URLs end in" in r.reason]
    assert len(clashes) == len(rows) - len(taken)
    assert all("one of them at most" in r for r in clashes)


def test_tables_with_folders_of_their_own_do_not_clash(tmp_path):
    for table in "ab":
        put_image(tmp_path / f"web/{table}/1.jpg")
        put_urls(tmp_path / f"web/{table}.tsv", [(f"of {table}", f"https://{table}.org/1.jpg")])
    items, rejects = read(tmp_path, "web")
    assert {i.suffixes[0]: i.media[0].path for i in items} == {
        "of a": "web/a/1.jpg",
        "of b": "web/b/1.jpg",
    }
    assert not rejects


def test_a_mark_before_a_url_hides_no_clash(tmp_path):
    put_image(tmp_path / "web/images/1.jpg")
    lines = "\ufeffhttps://a.org/1.jpg\tone\nhttps://b.org/1.jpg\ttwo\n"
    put_text(tmp_path / "web/x.tsv", lines)
    items, rejects = read(tmp_path, "web")
    assert not items
    assert ["several URLs end in" in reject.reason for reject in rejects] == [True, True]


def test_tables_that_are_not_read_claim_no_picture(tmp_path):
    put_image(tmp_path / "web/images/1.jpg")
    put_urls(tmp_path / "web/a.tsv", [("one", "https://a.org/1.jpg")])
    put_urls(tmp_path / "web/._a.tsv", [("of a Mac", "https://b.org/1.jpg")])
    doubled = pa.table([["x.jpg"], ["y.jpg"]], names=["image", "image"])
    parquet.write_table(doubled, tmp_path / "web/b.parquet")
    (tmp_path / "web/c.parquet").write_bytes(b"no table")
    items, rejects = read(tmp_path, "web")
    assert [item.suffixes for item in items] == [("one",)]
    reasons = {r.id: r.reason for r in rejects}
    assert reasons.keys() == {"web/b.parquet", "web/c.parquet"}
    assert re.match("several columns .*'image'", reasons["web/b.parquet"])
    assert reasons["web/c.parquet"].startswith("damaged parquet")


@pytest.mark.parametrize(
    ("line", "caption"),
    [
        ("a red barn\thttps://a.org/1.jpg", "a red barn"),
        ("https://a.org/1.jpg\ta red barn", "a red barn"),
        ("see https://b.org now\thttps://a.org/1.jpg", "see https://b.org now"),
        ("a red barn\timages/1.jpg", "a red barn"),
    ],
)
def test_either_column_may_be_the_url(tmp_path, line, caption):
    put_image(tmp_path / "web/images/1.jpg")
    put_text(tmp_path / "web/x.tsv", line + "\n")
    (item,), rejects = read(tmp_path, "web")
    assert (item.suffixes, item.media[0].path) == ((caption,), "web/images/1.jpg")
    assert not rejects
    put_text(tmp_path / "web/x.tsv", "https://a.org/1.jpg\thttps://a.org/2.jpg\n")
    items, rejects = read(tmp_path, "web")
    assert not items
    assert [r.reason.partition(";")[0] for r in rejects] == ["both columns are URLs"]


MINE = OwnSource(reader="csv", name="mine")


@pytest.mark.parametrize("length", [140_000, 17 << 20])
def test_a_long_cell_costs_its_row_at_most(tmp_path, length):
    rows = [f"{n}.png,q{n},a{n}\n" for n in range(6)]
    rows[2] = f"2.png,{'x' * length},a2\n"
    put_text(tmp_path / "mine/train.csv", "image,question,answers\n" + "".join(rows))
    items, rejects = read(tmp_path, MINE)
    taken = {item.answers[0] for item in items}
    if length > 1 << 20:
        assert taken == {"a0", "a1", "a3", "a4", "a5"}
        (long,) = rejects
        assert long.id == "mine/train/line-4"
        assert "16,777,216 characters" in long.reason
    else:
        assert len(taken) == 6
        assert not rejects


def test_an_open_quote_is_named_and_not_the_rest_of_the_table(tmp_path):
    put_text(
        tmp_path / "mine/train.csv",
        'image,question,answers\na.png,"two\nlines",1\nb.png,"open,2\nc.png,q,3\n',
    )
    (item,), rejects = read(tmp_path, MINE)
    assert item.answers == ("1",)
    (open_,) = rejects
    assert open_.id == "mine/train/line-4"
    assert re.search(r"quote .*line 4\b", open_.reason)


@pytest.mark.parametrize("length", [1, 17 << 20])
def test_a_quote_that_the_header_opens_is_named(tmp_path, length):
    rows = "a.png,q," + "1" * length
    put_text(tmp_path / "mine/train.csv", f'image,question,"answers\n{rows}\n')
    with pytest.raises(ValueError, match=r"train\.csv .* quote"):
        read(tmp_path, MINE)


@pytest.mark.parametrize("cell", ["['red', 'rot']", "[illegible]", '["red", "rot"', "{"])
def test_a_cell_that_is_a_list_or_a_text_says_how_to_write_either(tmp_path, cell):
    quoted = cell.replace('"', '""')
    put_text(
        tmp_path / "mine/train.csv",
        f'image,question,answers\na.png,q,"{quoted}"\nb.png,q,b\n',
    )
    (item,), (reject,) = read(tmp_path, MINE)
    assert item.answers == ("b",)
    assert reject.reason.startswith("answers begins as JSON does and is not JSON: ")
    # What the reason proposes is read as this very text.
    cure = reject.reason.rpartition("begins so as ")[2].replace('"', '""')
    put_text(tmp_path / "mine/train.csv", f'image,question,answers\na.png,q,"{cure}"\n')
    assert read(tmp_path, MINE)[0][0].answers == (cell,)


def test_two_columns_of_one_name_are_refused(tmp_path):
    put_text(tmp_path / "mine/train.csv", "image,answers,answers\na.png,1,2\n")
    with pytest.raises(ValueError, match=r"column .*'answers'"):
        read(tmp_path, MINE)


@pytest.mark.parametrize("odd", [b"\xff\xfe", b"caf\xe9", None])
def test_an_odd_cell_of_a_table_costs_its_row(tmp_path, odd):
    put_image(tmp_path / "web/1.jpg")
    texts = pa.array([b"A dog", odd, b"A cat"], pa.binary()).view(pa.string())
    table = pa.table({"caption": texts, "path": ["1.jpg"] * 3})
    parquet.write_table(table, tmp_path / "web/x.parquet")
    items, rejects = read(tmp_path, "web")
    assert [item.suffixes for item in items] == [("A dog",), ("A cat",)]
    assert [r.reason for r in rejects] == [
        "caption en is not UTF-8" if odd else "no caption or annotation"
    ]


def test_two_columns_of_one_name_in_a_table_are_refused(tmp_path):
    (tmp_path / "web").mkdir()
    table = pa.table([["A dog"], ["A cat"], ["1.jpg"]], names=["caption", "caption", "path"])
    parquet.write_table(table, tmp_path / "web/x.parquet")
    items, rejects = read(tmp_path, "web")
    assert not items
    (several,) = rejects
    assert re.match("several columns .*'caption'", several.reason)
