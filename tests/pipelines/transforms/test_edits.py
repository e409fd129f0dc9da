"""Turns, labels and frames change the pixels they should and no others."""

import io

import numpy as np
import pytest
from PIL import Image

from pipelines.images.square import ImageSpec, prepare_image
from pipelines.prepare.run import PrepareConfig, prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.schema import BadInput
from pipelines.sources.reading.item import Edit
from pipelines.transforms.edits import edit_image, edit_original, edit_stored
from tests.pipelines.sources.caption_layouts import write_textvqa, write_widgetcap
from tests.pipelines.sources.document_layouts import write_ai2d
from tests.pipelines.sources.writing import put_image

RED = (255, 0, 0)


def grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (90, 90, 90))


def changed(image: Image.Image) -> set[tuple[int, int]]:
    """Returns the (x, y) that are not grey."""
    rows, columns = np.nonzero((np.asarray(image) != 90).any(-1))
    return {(int(x), int(y)) for x, y in zip(columns, rows, strict=True)}


def test_frame_is_one_pixel_of_red_at_its_corners():
    edit = Edit(frame=(0.5, 0.25, 1.0, 0.5))  # Of the height: the image is twice as wide.
    framed = edit_stored(grey(9, 9), edit, (60, 30))
    found = changed(framed)
    assert found == {(x, y) for x in range(2, 5) for y in range(2, 5) if x in (2, 4) or y in (2, 4)}
    assert {framed.getpixel(place) for place in found} == {RED}


def test_a_frame_lies_around_the_same_pixels_when_padded():
    # 60 x 30, padded to 60 x 60: x from 15 to 30 and y from 15 + 15 to 24 + 15 of 60.
    spec = ImageSpec(image_px=61, encoding="png", min_side=2, aspect="pad")
    encoded, size = edit_image(grey(60, 30), spec, Edit(frame=(0.5, 0.5, 1.0, 0.8)))
    pixels = np.asarray(Image.open(io.BytesIO(encoded)))
    rows, columns = np.nonzero((pixels == RED).all(-1))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (30, 39, 15, 30)
    assert size == (60, 30)


def test_sides_outside_are_not_drawn():
    found = changed(edit_stored(grey(9, 9), Edit(frame=(-0.5, 0.25, 0.5, 0.5)), (30, 30)))
    assert {x for x, _ in found} == set(range(5))
    assert (0, 3) not in found
    with pytest.raises(BadInput, match="shows nothing of the image"):
        edit_stored(grey(9, 9), Edit(frame=(1.5, 0, 2, 1)), (30, 30))
    with pytest.raises(BadInput, match="shows nothing of the image"):
        edit_stored(grey(9, 9), Edit(frame=(0.5, 0.5, 0.5, 0.7)), (30, 30))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_turns_are_counter_clockwise(turns):
    image = grey(30, 20)
    image.putpixel((0, 0), RED)
    turned = edit_original(image, Edit(quarter_turns=turns))
    expected = {1: (0, 29), 2: (29, 19), 3: (19, 0)}[turns]
    assert changed(turned) == {expected}
    assert turned.size == ((30, 20) if turns == 2 else (20, 30))


def test_label_covers_its_rectangle_and_nothing_else():
    image = edit_original(grey(60, 50), Edit(labels=((40, 30, 10, 5, "B"),)))
    found = changed(image)
    inside = {(x, y) for x in range(10, 41) for y in range(5, 31)}
    assert found <= inside
    assert len(inside - found) < 20  # Edges of the letter may have the very grey of the ground.
    assert {image.getpixel(place) for place in ((10, 5), (40, 30))} == {(255, 255, 255)}
    dark = {place for place in found if sum(image.getpixel(place)) < 200}
    columns = [x for x, _ in dark]
    assert len(dark) > 20
    assert abs((min(columns) + max(columns)) / 2 - 25) <= 1.5
    assert max(y for _, y in dark) - min(y for _, y in dark) > 15  # As large as fits.


def test_no_edit_gives_the_same_bytes():
    buffer = io.BytesIO()
    grey(30, 20).save(buffer, "PNG")
    spec = ImageSpec(image_px=14)
    assert prepare_image(buffer.getvalue(), spec) == edit_image(grey(30, 20), spec, Edit())


def prepared(tmp_path, source: str, split: str) -> Dataset:
    config = PrepareConfig(
        image_px=56, encoding="png", num_shards=1, num_workers=1, max_reject_rate=0.9
    )
    out = str(tmp_path / "out")
    prepare_dataset(config, source=source, split=split, data_root=str(tmp_path), out=out)
    return Dataset(out)


def pixels(record) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(record.images[0])))


def test_widgets_diagrams_and_turned_images_become_records(tmp_path):
    write_widgetcap(tmp_path)
    put_image(tmp_path / "rico/combined/7.jpg", 108, 192)
    (record,) = prepared(tmp_path, "widgetcap", "test").records()
    red = (pixels(record) == RED).all(-1)
    rows, columns = np.nonzero(red)
    # 288..576 of 1440 across, a quarter to a half down, on 55 steps.
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (11, 22, 13, 27)


def test_ai2d_records_have_their_labels(tmp_path):
    write_ai2d(tmp_path)
    put_image(tmp_path / "ai2d/images/1.png", 56, 56)
    labelled, plain = sorted(prepared(tmp_path, "ai2d", "test").records(), key=lambda r: r.id)
    assert (pixels(labelled)[5:16, 10:23] == 255).all(-1).any()
    assert not (pixels(plain) == 255).all(-1).any()


def test_textvqa_records_are_upright(tmp_path):
    write_textvqa(tmp_path)
    for name in ("a1", "b2"):
        image = Image.new("RGB", (56, 28), "navy")
        image.paste("white", (0, 0, 28, 28))
        image.save(tmp_path / f"textvqa/train_images/{name}.jpg", quality=95)
    upright, turned = sorted(prepared(tmp_path, "textvqa", "val").records(), key=lambda r: r.id)
    assert pixels(upright)[:, :20].mean() > 240
    assert pixels(turned)[:20].mean() > 240
