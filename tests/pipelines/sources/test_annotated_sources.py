"""Public annotations as web images have them: COCO's objects, TextOCR's words, Visual Genome."""

from pathlib import Path

import pytest

from pipelines.records.schema import MASK_MARKER
from pipelines.sources.reading.item import BOX_MARKER
from tests.pipelines.sources.writing import put_json


def write_coco_objects(root: Path) -> None:
    def thing(number: int, category: int, x: int, **more) -> dict:
        outline = [[x, 2, x + 8, 2, x + 8, 9, x, 9]]
        return {
            "id": number,
            "image_id": 9,
            "category_id": category,
            "bbox": [x, 2, 8, 7],
            "segmentation": outline,
            "iscrowd": 0,
            **more,
        }

    images = [
        {"id": 9, "file_name": "000000000009.jpg", "width": 40, "height": 30},
        {"id": 10, "file_name": "000000000010.jpg", "width": 40, "height": 30},
        {"id": 11, "width": 40},
    ]
    raw = {
        "images": images,
        "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
        "annotations": [thing(1, 3, 20), thing(2, 1, 4), thing(3, 1, 0, iscrowd=1)],
    }
    put_json(root / "coco/annotations/instances_train2017.json", raw)


def write_textocr(root: Path) -> None:
    def word(image: str, text: str, x: int) -> dict:
        return {"image_id": image, "bbox": [x, 5, 9, 6], "utf8_string": text}

    words = [word("a1", "world", 14), word("a1", "Hello", 1), word("a1", ".", 25)]
    words.append(word("b2", ".", 1))
    images = {
        n: {"id": n, "width": 40, "height": 30, "set": "train", "file_name": f"train/{n}.jpg"}
        for n in ("a1", "b2")
    }
    raw = {"imgs": images, "anns": {f"x{i}": w for i, w in enumerate(words)}}
    put_json(root / "textvqa/TextOCR_0.1_train.json", raw)


def write_visual_genome(root: Path) -> None:
    region = {"x": 3, "y": 4, "width": 10, "height": 6, "phrase": "a red kite"}
    rows = [{"id": 1, "qas": [{"question": "What flies?", "answer": "A kite."}]}]
    rows += [{"id": 2, "qas": []}, {"id": 3}]
    put_json(root / "visual_genome/question_answers.json", rows)
    told = [{"id": 1, "regions": [region]}, {"id": 2, "regions": []}]
    put_json(root / "visual_genome/region_descriptions.json", told)
    (root / "visual_genome/VG_100K").mkdir()
    (root / "visual_genome/VG_100K/1.jpg").touch()


def test_coco_objects_are_detected_segmented_and_named(tmp_path, read_source):
    write_coco_objects(tmp_path)
    items, rejects = read_source("coco_objects", "train", tmp_path, per_task=9)
    told = {i.id.partition("#")[2]: (i.prefix, i.suffixes[0]) for i in items}
    assert told == {
        "detect": ("detect cat ; dog", f"{BOX_MARKER} cat ; {BOX_MARKER} dog"),
        "segment.cat": ("segment cat", f"{BOX_MARKER}{MASK_MARKER} cat"),
        "segment.dog": ("segment dog", f"{BOX_MARKER}{MASK_MARKER} dog"),
        "grounded_caption.0": (f"caption {BOX_MARKER}", "cat"),
        "grounded_caption.1": (f"caption {BOX_MARKER}", "dog"),
    }
    assert items[0].annotated_size == (40, 30)
    assert {i.media[0].path for i in items} == {"coco/train2017/000000000009.jpg"}
    assert [r.reason.partition(" among")[0] for r in rejects] == [
        "malformed row: 'height' is missing"
    ]


def test_textocr_reads_legible_words_in_order(tmp_path, read_source):
    write_textocr(tmp_path)
    ((item,), rejects) = read_source("textocr", "train", tmp_path)
    assert (item.prefix, item.suffixes) == ("ocr", ("Hello world",))
    assert item.media[0].path == "textvqa/train_images/a1.jpg"
    assert not rejects


def test_visual_genome_asks_both_ways_and_describes_regions(tmp_path, read_source):
    write_visual_genome(tmp_path)
    items, rejects = read_source("visual_genome", "train", tmp_path)
    assert {i.task: (i.prefix, i.suffixes[0]) for i in items} == {
        "grounded_caption": (f"caption {BOX_MARKER}", "a red kite"),
        "vqa": ("answer en What flies?", "A kite."),
        "question": ("question en A kite.", "What flies?"),
    }
    assert items[0].boxes == ((3, 4, 13, 10),)
    assert {i.media[0].path for i in items} == {"visual_genome/VG_100K/1.jpg"}
    assert [r.reason.partition(" among")[0] for r in rejects] == ["malformed row: 'qas' is missing"]


@pytest.mark.parametrize("name", ["coco_objects", "textocr", "visual_genome"])
def test_missing_file_is_named_with_its_publisher(tmp_path, read_source, name):
    for folder in ("coco", "textvqa", "visual_genome"):
        (tmp_path / folder).mkdir()
    with pytest.raises(FileNotFoundError, match=r"\.json is missing.*publish it at"):
        read_source(name, "train", tmp_path)
