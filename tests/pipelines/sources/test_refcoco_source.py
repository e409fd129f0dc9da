"""RefCOCO's published layout, and pickles that must not run."""

import json
import os
import pickle

import pytest

from pipelines.sources.reading.item import Item

REF = {
    "ref_id": 5,
    "ann_id": 7,
    "category_id": 1,
    "image_id": 9,
    "file_name": "COCO_train2014_000000000009_7.jpg",
    "split": "val",
    "sent_ids": [0, 1],
    "sentences": [
        {"sent_id": 0, "sent": "left dog", "raw": "Left dog", "tokens": ["left", "dog"]},
        {"sent_id": 1, "sent": "the small one", "raw": "", "tokens": []},
    ],
}
INSTANCES = {
    "images": [
        {"id": 9, "file_name": "COCO_train2014_000000000009.jpg", "width": 31, "height": 23}
    ],
    "annotations": [
        {"id": 7, "image_id": 9, "bbox": [2, 3, 10, 5], "segmentation": [[2, 3, 12, 3, 12, 8]]}
    ],
}


@pytest.fixture
def write(tmp_path):
    folder = tmp_path / "refcoco/refcoco"
    folder.mkdir(parents=True)
    (folder / "instances.json").write_text(json.dumps(INSTANCES))

    def write(refs) -> None:
        (folder / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))

    return write


def test_each_sentence_is_a_record(tmp_path, write, read_source):
    write([REF, {**REF, "split": "train"}])
    items, rejects = read_source("refcoco", "val", tmp_path)
    assert not rejects
    assert [(item.id, item.prefix) for item in items] == [
        ("refcoco/val/COCO_train2014_000000000009#5-0", "left dog"),
        ("refcoco/val/COCO_train2014_000000000009#5-1", "the small one"),
    ]
    assert items[0].suffixes == ("\ue000<mask>",)
    assert items[0].boxes == ((2, 3, 12, 8),)
    assert json.loads(items[0].masks[0]) == {"size": [23, 31], "polygons": [[2, 3, 12, 3, 12, 8]]}
    assert items[0].media[0].source == "refcoco/images/COCO_train2014_000000000009.jpg"


def test_images_are_found_in_sub_folders(tmp_path, write, read_source):
    write([REF])
    (tmp_path / "refcoco/images/train2014").mkdir(parents=True)
    (tmp_path / "refcoco/images/train2014/COCO_train2014_000000000009.jpg").touch()
    items, _ = read_source("refcoco", "val", tmp_path)
    assert items[0].media[0].source.startswith("refcoco/images/train2014/")


def test_pickle_that_names_a_function_is_refused(tmp_path, write, read_source):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    write([Evil()])
    with pytest.raises(ValueError, match=r"refs\(unc\)\.p is not a pickle of plain data.*mkdir"):
        read_source("refcoco", "val", tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", [b"", b"hello", b"\x80\x02", b"(lp0\n"])
def test_broken_pickle_is_named(tmp_path, write, read_source, data):
    (tmp_path / "refcoco/refcoco/refs(unc).p").write_bytes(data)
    with pytest.raises(ValueError, match=r"refs\(unc\)\.p"):
        read_source("refcoco", "val", tmp_path)


@pytest.mark.parametrize(("data", "text"), [(b"caf\xc3\xa9", "café"), (b"caf\xe9", "café")])
def test_python2_texts_are_read(tmp_path, write, read_source, data, text):
    write([REF])
    path = tmp_path / "refcoco/refcoco/refs(unc).p"
    unicode = b"X\x08\x00\x00\x00left dog"
    assert unicode in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(unicode, b"U" + bytes([len(data)]) + data))
    items, _ = read_source("refcoco", "val", tmp_path)
    assert items[0].prefix == text


def test_unknown_annotation_is_a_reject(tmp_path, write, read_source):
    unnamed = {key: value for key, value in REF.items() if key != "ref_id"}
    write([{**REF, "ann_id": 8}, {"split": "val"}, REF, unnamed])
    items, rejects = read_source("refcoco", "val", tmp_path)
    assert len(items) == 2
    assert [(r.id, r.reason.partition(" among")[0]) for r in rejects] == [
        ("refcoco/val/0", "malformed ref: 8 is missing"),
        ("refcoco/val/1", "malformed ref: 'image_id' is missing"),
        ("refcoco/val/3", "malformed ref: 'ref_id' is missing"),
    ]


def test_training_has_a_record_per_image_with_the_expressions_of_all_sets(
    tmp_path, write, read_source
):
    train = {**REF, "split": "train"}
    other = {**train, "ref_id": 6, "ann_id": 8, "sentences": [{"sent_id": 2, "sent": "cat"}]}
    write([train, {**other, "ref_id": 7, "sentences": []}, {**other, "image_id": 11}])
    box = {"id": 8, "image_id": 9, "bbox": [20, 1, 4, 2], "segmentation": [[20, 1, 24, 1, 24, 3]]}
    annotations = [*INSTANCES["annotations"], box]
    folder = tmp_path / "refcoco/refcoco+"
    folder.mkdir()
    for path in (folder, tmp_path / "refcoco/refcoco"):
        (path / "instances.json").write_text(json.dumps({**INSTANCES, "annotations": annotations}))
    same = {**train, "ref_id": 3, "sentences": [{"sent_id": 3, "sent": "dog on grass"}]}
    (folder / "refs(unc).p").write_bytes(pickle.dumps([other, same], protocol=2))
    (item,), rejects = read_source("refcoco", "train", tmp_path)
    assert [r.reason for r in rejects] == ["malformed ref: 11 is missing"]
    assert item.prefixes == (("left dog", "the small one", "dog on grass"), ("cat",))
    assert item.suffixes == ("\ue000<mask>",) * 2
    assert item.boxes == ((2, 3, 12, 8), (20, 1, 24, 3))
    assert [json.loads(m)["polygons"][0][0] for m in item.masks] == [2, 20]
    assert item.prefix == "left dog"
    assert Item.from_json(item.to_json()) == item


def test_missing_refs_are_named(tmp_path, write, read_source):
    with pytest.raises(FileNotFoundError, match=r"refs\(unc\)\.p is missing"):
        read_source("refcoco", "val", tmp_path)


def test_training_never_sees_an_image_that_any_set_evaluates(tmp_path, write, read_source):
    train = {**REF, "split": "train"}
    write([train, {**train, "ref_id": 6, "image_id": 10, "ann_id": 8}])
    root = tmp_path / "refcoco"
    second = {**INSTANCES["images"][0], "id": 10, "file_name": "COCO_train2014_000000000010.jpg"}
    instances = {
        "images": [*INSTANCES["images"], second],
        "annotations": [
            *INSTANCES["annotations"],
            {**INSTANCES["annotations"][0], "id": 8, "image_id": 10},
        ],
    }
    for folder in ("refcoco", "refcocog"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "instances.json").write_text(json.dumps(instances))
    refs = [{**train, "ref_id": 9}, {**REF, "ref_id": 8, "image_id": 10, "ann_id": 8}]
    (root / "refcocog/refs(umd).p").write_bytes(pickle.dumps(refs, protocol=2))
    unused = [{**train, "ref_id": 77, "image_id": 10, "ann_id": 8}]
    (root / "refcocog/refs(google).p").write_bytes(pickle.dumps(unused, protocol=2))
    items, rejects = read_source("refcoco", "train", tmp_path)
    assert not rejects
    assert [i.id for i in items] == ["refcoco/train/COCO_train2014_000000000009"]
    items, _ = read_source("refcoco", "refcocog_val", tmp_path)
    assert {i.id.partition("/")[0] for i in items} == {"refcocog"}
    assert len(items) == 2
    assert read_source("refcoco", "val", tmp_path)[0] == items
    with pytest.raises(FileNotFoundError, match=r"refcoco\+/refs\(unc\)\.p is missing"):
        read_source("refcoco", "refcocoplus_testA", tmp_path)
