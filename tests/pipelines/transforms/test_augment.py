"""Augmentation: off by default, the same every time, and boxes and masks stay on their objects."""

import collections
import dataclasses
import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flows.graph.datasets import datasets_of
from flows.study.load import load
from pipelines.images.square import ImageSpec, decode_opaque, prepare_image
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.boxes import OBJECT, pixel_box
from pipelines.records.dataset import Dataset
from pipelines.records.rle import decode_mask
from pipelines.transforms.augment import METHODS, Augmentation, DrawnAugmentation, augment_image

STRONG = {"augment_resize": 1.0, "augment_jpeg": 0.5, "augment_crop": 0.2}
CONFIG = PrepareConfig(image_px=64, encoding="png", num_shards=2, num_workers=1, seed=3, **STRONG)
NOTHING = DrawnAugmentation(method=None, quality=None, cut=(0, 0), begin=(0, 0))


def test_it_is_off_unless_asked_for():
    assert PrepareConfig().augmentation().draw(0, "x") is None
    assert Augmentation(jpeg=0.1).draw(0, "x") is not None


def test_a_picture_is_changed_the_same_way_every_time_and_others_otherwise():
    strong = Augmentation(resize=1, jpeg=1, crop=0.1)
    assert strong.draw(1, "a") == strong.draw(1, "a")
    assert len({strong.draw(seed, key) for seed in (1, 2) for key in "abc"}) == 6


def test_shares_are_what_they_say_and_everything_is_drawn():
    drawn = [Augmentation(resize=0.5, jpeg=0.25, crop=0.1).draw(0, str(i)) for i in range(2000)]
    methods = collections.Counter(change.method for change in drawn)
    assert methods.pop(None) == pytest.approx(1000, abs=80)
    assert set(methods) == set(METHODS)
    qualities = {change.quality for change in drawn} - {None}
    assert qualities == set(range(75, 96))
    assert sum(change.quality is not None for change in drawn) == pytest.approx(500, abs=70)
    cuts = np.array([change.cut for change in drawn])
    assert cuts.max() <= 0.1
    np.testing.assert_allclose(cuts.mean(0), 0.05, atol=0.003)


@given(
    width=st.integers(8, 3000),
    height=st.integers(8, 3000),
    cut=st.tuples(*[st.floats(0, 0.25)] * 2),
    begin=st.tuples(*[st.floats(0, 1)] * 2),
)
def test_crops_lie_inside_and_keep_enough(width, height, cut, begin):
    change = dataclasses.replace(NOTHING, cut=cut, begin=begin)
    x0, y0, x1, y1 = change.crop_of((width, height)) or (0, 0, width, height)
    assert 0 <= x0 < x1 <= width
    assert 0 <= y0 < y1 <= height
    assert x1 - x0 >= 0.75 * width - 1
    assert y1 - y0 >= 0.75 * height - 1


def test_no_change_is_the_plain_picture(encoded):
    data, spec = encoded(50, 40), ImageSpec(image_px=16)
    plain, _ = prepare_image(data, spec)
    assert augment_image(decode_opaque(data, spec)[0], spec, NOTHING) == (plain, None)


@pytest.mark.parametrize("method", METHODS)
def test_methods_differ_but_show_the_same(encoded, method):
    spec = ImageSpec(image_px=24, encoding="png")
    smooth = Image.fromarray(np.linspace(0, 255, 60 * 80).reshape(60, 80).astype(np.uint8))
    images = []
    for one in (method, "bilinear"):
        change = dataclasses.replace(NOTHING, method=one)
        made, _ = augment_image(smooth.convert("RGB"), spec, change)
        images.append(np.asarray(Image.open(io.BytesIO(made))).astype(int))
    assert np.abs(images[0] - images[1]).max() < 12
    noise, _ = decode_opaque(encoded(80, 60), spec)
    noisy = [
        augment_image(noise, spec, dataclasses.replace(NOTHING, method=one))[0]
        for one in (method, "bilinear")
    ]
    assert (noisy[0] == noisy[1]) == (method == "bilinear")


@pytest.mark.parametrize(("field", "value"), [("crop", 0.3), ("jpeg", 1.5), ("resize", -0.1)])
def test_wrong_strengths_name_the_field(field, value):
    with pytest.raises(ValueError, match=rf"augment_{field} must be in \[0, .*{value}"):
        dataclasses.replace(CONFIG, **{f"augment_{field}": value})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """20 pictures of one red rectangle; in the last it is at the very edge."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "web").mkdir()
    rng = np.random.default_rng(0)
    with tarfile.open(root / "web/0.tar", "w") as archive:
        for i in range(20):
            x, y = (int(v) for v in rng.integers(30, 120, 2)) if i < 19 else (0, 0)
            w, h = (70, 50) if i < 19 else (2, 2)
            pixels = np.full((200, 240, 3), 255, dtype=np.uint8)
            pixels[y : y + h, x : x + w] = (255, 0, 0)
            polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
            thing = {
                "label": "box",
                "box": [x, y, x + w, y + h],
                "mask": {"size": [200, 240], "polygons": [polygon]},
            }
            metadata = {"width": 240, "height": 200, "objects": [thing]}
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            for extension, data in (
                ("png", buffer.getvalue()),
                ("txt", b"x"),
                ("json", json.dumps(metadata).encode()),
            ):
                info = tarfile.TarInfo(f"{i:03d}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return root


def run(corpus: Path, out: Path, config: PrepareConfig = CONFIG) -> Dataset:
    prepare_dataset(config, source="web", split="train", data_root=str(corpus), out=str(out))
    return Dataset(out)


def red(image: bytes) -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(image))).astype(int)
    return (pixels[..., 0] > 150) & (pixels[..., 1] < 128)


@pytest.mark.parametrize("aspect", ["squash", "pad"])
def test_boxes_and_masks_follow_the_crop(corpus, tmp_path, aspect):
    dataset = run(corpus, tmp_path / "out", dataclasses.replace(CONFIG, aspect=aspect))
    assert dataset.info.num_rejected == 0  # What a crop would cut off keeps its whole picture.
    cropped = 0
    for record in dataset.parts["segment"]:
        if "/019#" in record.id:
            continue
        seen = np.argwhere(red(record.images[0]))
        (y0, x0), (y1, x1) = seen.min(0), seen.max(0) + 1
        (found,) = OBJECT.finditer(record.suffixes[0])
        assert np.abs(np.subtract(pixel_box(found[1], (64, 64)), (x0, y0, x1, y1))).max() <= 1.01
        mask = decode_mask(record.masks[0])
        cropped += mask.shape != (200, 240)
        assert aspect == "squash" or mask.shape[0] == mask.shape[1]
        inside = Image.fromarray(mask.astype(np.uint8) * 255).resize((64, 64))
        assert ((np.asarray(inside) > 127) != red(record.images[0])).mean() < 0.01
    assert cropped == 19


def test_records_of_a_picture_share_its_pixels(corpus, tmp_path):
    dataset = run(corpus, tmp_path / "out")
    images = collections.defaultdict(set)
    for record in dataset.records():
        images[record.id.partition("#")[0]].add(hashlib.sha256(record.images[0]).hexdigest())
    sizes = {name[-3:]: len(found) for name, found in images.items()}
    assert sizes.pop("019") <= 2  # The whole one, too, where the crop lost the object.
    assert set(sizes.values()) == {1}


@pytest.mark.slow
def test_bytes_depend_on_the_seed_and_not_on_the_workers(corpus, tmp_path):
    def digests(name: str, **fields) -> dict[str, bytes]:
        run(corpus, tmp_path / name, dataclasses.replace(CONFIG, **fields))
        return {p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir())}

    assert digests("a") == digests("b", num_workers=2)
    assert digests("c", seed=4) != digests("d")


def test_a_study_augments_its_mixture_and_never_what_it_evaluates_on():
    study = load(overrides=["prepare.augment_crop=0.1", "prepare.augment_jpeg=0.5"])
    strengths = {
        name: spec.prepare.augment_crop for name, spec in datasets_of(study.views[0]).items()
    }
    assert {name for name, strength in strengths.items() if strength} == {"mixture/web"}
