"""Every file is where, and says what, its published form does; masks are what was drawn."""

import hashlib
import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from pipelines.records.rle import decode_mask
from pipelines.synthetic.captions import LANGUAGES
from pipelines.synthetic.config import rng_for
from pipelines.synthetic.drawing import COLORS
from pipelines.synthetic.scenes import make_scene


def read_web(root):
    pairs = {}
    for path in sorted((root / "web").glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                assert (member.mtime, member.uid, member.uname) == (0, 0, "")
                key, _, extension = member.name.partition(".")
                assert key.startswith(path.stem)
                file = tar.extractfile(member)
                assert file is not None
                pairs.setdefault(key, {})[extension] = file.read()
    return pairs


def iou(one, other):
    return np.logical_and(one, other).sum() / np.logical_or(one, other).sum()


def assert_painted(image, mask, color, *, tolerance):
    """The masked pixels have the colour, the ones around them do not."""
    distance = np.abs(image.astype(int) - COLORS[color]).max(axis=-1)
    assert iou(distance <= tolerance, mask) >= 0.8


def rasterize(polygon, height, width):
    """Returns the pixels whose centre is inside: an odd number of edges lies to their right."""
    inside = np.zeros((height, width), dtype=bool)
    y, x = np.mgrid[:height, :width] + 0.5
    vertices = np.reshape(polygon, (-1, 2))
    for (x0, y0), (x1, y1) in zip(vertices, np.roll(vertices, -1, axis=0), strict=True):
        if y0 != y1:
            crosses = (y0 <= y) != (y1 <= y)
            inside ^= crosses & (x < x0 + (x1 - x0) * (y - y0) / (y1 - y0))
    return inside


def drawn_mask(config, row, annotation):
    rng = rng_for(config.seed, "scene", row["id"] - 1)
    scene = make_scene(rng, height=row["height"], width=row["width"])
    spot = [int(v) for v in annotation["bbox"][:2]]
    return next(scene.mask(item) for item in scene.items if item.box[:2] == spot)


def test_web_tars_hold_triples_with_honest_metadata(corpus, small):
    pairs = read_web(corpus)
    assert len(pairs) == small.num_web + 1
    assert [path.name for path in sorted((corpus / "web").iterdir())] == [
        "00000.tar",
        "00001.tar",
        "00002.tar",
    ]
    broken = 0
    for key, pair in pairs.items():
        assert list(pair) == ["jpg", "json", "txt"]
        row = json.loads(pair["json"])
        assert row["key"] == key
        assert pair["txt"].decode() == row["caption"] == row["captions"]["en"]
        assert 2 <= len(row["captions"]) <= 3
        assert set(row["captions"]) <= set(LANGUAGES)
        image = Image.open(io.BytesIO(pair["jpg"]))
        assert image.size == (row["width"], row["height"])
        if hashlib.sha256(pair["jpg"]).hexdigest() == row["sha256"]:
            image.load()
        else:
            broken += 1
            with pytest.raises(OSError, match="truncated"):
                image.load()
    assert broken == 1


def test_web_masks_are_the_drawn_pixels_and_boxes_hold_them(corpus):
    checked = 0
    for pair in list(read_web(corpus).values())[:-1]:
        row = json.loads(pair["json"])
        image = np.asarray(Image.open(io.BytesIO(pair["jpg"])))
        for item in row.get("objects", []):
            mask = decode_mask(json.dumps(item["mask"]))
            assert mask.shape == image.shape[:2]
            rows, columns = np.nonzero(mask)
            tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(np.subtract(tight, item["box"])).max() <= 1
            assert_painted(image, mask, item["label"].split()[0], tolerance=60)
            checked += 1
    assert checked >= 10


def test_web_words_are_inside_their_boxes_in_raster_order(corpus):
    checked = 0
    for pair in list(read_web(corpus).values())[:-1]:
        row = json.loads(pair["json"])
        lines = row.get("ocr", [])
        ink = np.asarray(Image.open(io.BytesIO(pair["jpg"])).convert("L")) < 110
        for line in lines:
            x0, y0, x1, y1 = line["box"]
            assert ink[y0:y1, x0:x1].mean() > 0.1
            ink[y0:y1, x0:x1] = False
            checked += 1
        if lines:
            assert ink.sum() == 0
            assert [line["box"][1] for line in lines] == sorted(line["box"][1] for line in lines)
            answers = {qa["question"]: qa["answer"] for qa in row["qa"]}
            assert answers["what is written on the page?"].split() == [x["text"] for x in lines]
    assert checked >= 4


def test_chart_rows_and_pictures_agree_but_for_the_lost_one(corpus, small):
    root = corpus / "chartqa" / "ChartQA Dataset"
    pictures, lost, sizes = [], [], set()
    for split in ("train", "val", "test"):
        assert {path.name for path in (root / split).iterdir()} == {
            "png",
            f"{split}_human.json",
            f"{split}_augmented.json",
        }
        names = {path.name for path in (root / split / "png").iterdir()}
        sizes |= {Image.open(root / split / "png" / name).size for name in names}
        pictures += names
        asked = set()
        for kind in ("human", "augmented"):
            for row in json.loads((root / split / f"{split}_{kind}.json").read_text()):
                assert list(row) == ["imgname", "query", "label"]
                asked.add(row["imgname"])
                lost += [split] if row["imgname"] not in names else []
        assert names <= asked
    assert len(pictures) == len(set(pictures)) == small.num_charts
    assert lost == ["train"]
    assert len(sizes) > 2


def test_refs_point_at_annotations_whose_masks_are_the_drawn_pixels(corpus, small):
    root = corpus / "refcoco"
    raw = (root / "refcoco" / "refs(unc).p").read_bytes()
    assert raw[:2] == b"\x80\x02"
    refs = pickle.loads(raw)
    instances = json.loads((root / "refcoco" / "instances.json").read_text())
    images = {row["id"]: row for row in instances["images"]}
    annotations = {row["id"]: row for row in instances["annotations"]}
    assert len(images) == small.num_scenes == len(list((root / "images").iterdir()))
    assert {ref["split"] for ref in refs} == {"train", "val", "testA", "testB"}
    kinds = set()
    for ref in refs:
        annotation, row = annotations[ref["ann_id"]], images[ref["image_id"]]
        assert ref["category_id"] == annotation["category_id"]
        assert ref["sent_ids"] == [sentence["sent_id"] for sentence in ref["sentences"]]
        assert ref["file_name"].startswith(row["file_name"].removesuffix(".jpg"))
        image = np.asarray(Image.open(root / "images" / row["file_name"]))
        segmentation = annotation["segmentation"]
        kinds.add(type(segmentation))
        if isinstance(segmentation, dict):
            mask = decode_mask(json.dumps(segmentation))
        else:
            mask = rasterize(segmentation[0], row["height"], row["width"])
            x, y, w, h = (round(v) for v in annotation["bbox"])
            assert mask[y : y + h, x : x + w].sum() == mask.sum()
        color = ref["sentences"][0]["tokens"][0]
        assert_painted(image, mask, color, tolerance=60)
        assert iou(mask, drawn_mask(small, row, annotation)) >= 0.95
        assert abs(mask.sum() - annotation["area"]) <= 0.05 * annotation["area"]
    assert kinds == {dict, list}
    sent_ids = [i for ref in refs for i in ref["sent_ids"]]
    assert sent_ids == list(range(len(sent_ids)))


def test_video_rows_map_to_clips_but_for_the_empty_one(corpus, small):
    root = corpus / "msvd_qa"
    lines = (root / "youtube_mapping.txt").read_text().splitlines()
    names = {int(line.split(" vid")[1]): line.split(" vid")[0] for line in lines}
    assert sorted(names) == list(range(1, small.num_videos + 2))
    files = {path.stem: path.stat().st_size for path in (root / "YouTubeClips").glob("*.mp4")}
    assert set(files) == set(names.values())
    assert [size for size in files.values() if size == 0] == [0]
    seen, ids = [], []
    for split in ("train", "val", "test"):
        rows = json.loads((root / f"{split}_qa.json").read_text())
        assert all(list(row) == ["id", "video_id", "question", "answer"] for row in rows)
        ids += [row["id"] for row in rows]
        videos = {row["video_id"] for row in rows}
        assert (split == "train") == any(files[names[video]] == 0 for video in videos)
        seen += videos
    assert ids == list(range(len(ids)))
    assert sorted(seen) == sorted(names)
