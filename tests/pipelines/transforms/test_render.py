"""Boxes, masks, and the record an item becomes."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.records.rle import decode_mask, encode_mask
from pipelines.records.schema import MASK_MARKER, BadInput
from pipelines.sources.reading.item import BOX_MARKER, Item, Media
from pipelines.transforms.decode import Pixels
from pipelines.transforms.locations import box_tokens, check_pixels
from pipelines.transforms.masks import normalize_mask, polygon_mask
from pipelines.transforms.render import render_record


@pytest.mark.parametrize(
    ("box", "tokens"),
    [
        ((0, 0, 40, 20), "<loc0000><loc0000><loc1023><loc1023>"),
        ((10, 5, 30, 10), "<loc0256><loc0256><loc0512><loc0767>"),
        ((-9, 5, 99, 10), "<loc0256><loc0000><loc0512><loc1023>"),
    ],
)
def test_box_is_ymin_xmin_ymax_xmax(box, tokens):
    assert box_tokens(box, kept=(0, 0, 40, 20), region=(0, 0, 40, 20)) == tokens


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (41, 0, 50, 9), (0, 0, 9), (0, 0, float("nan"), 9)])
def test_empty_or_malformed_box_is_refused(box):
    with pytest.raises(BadInput, match="box"):
        box_tokens(box, kept=(0, 0, 40, 20), region=(0, 0, 40, 20))


def test_boxes_and_masks_are_those_of_the_padded_square():
    # 40 x 20 in the middle of 40 x 40: rows 5 to 10 of the picture are rows 15 to 20 of the square.
    mask = np.zeros((20, 40), bool)
    mask[5:10, 10:30] = True
    item = Item(
        id="a", part="p", media=(Media(path="a.png"),), prefix="segment",
        suffixes=(BOX_MARKER + MASK_MARKER,), task="t", boxes=((10, 5, 30, 10),),
        masks=(encode_mask(mask),), meta={"box": [5 / 20, 10 / 40, 10 / 20, 30 / 40]},
    )  # fmt: skip
    pixels = Pixels(images=(b"x",), size=(40, 20), sha256="0", region=(0, -10, 40, 30))
    record = render_record(item, [pixels])
    assert record.suffixes == ("<loc0384><loc0256><loc0512><loc0767><mask>",)
    assert record.meta["box"] == [15 / 40, 10 / 40, 20 / 40, 30 / 40]
    padded = decode_mask(record.masks[0])
    assert padded.shape == (40, 40)
    np.testing.assert_array_equal(padded[10:30], mask)
    assert padded.sum() == mask.sum()
    # What lies above the picture would lie in the bars, where it is nothing.
    with pytest.raises(BadInput, match="is empty in 40x20"):
        render_record(dataclasses.replace(item, boxes=((10, -2, 30, -1),)), [pixels])


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.booleans())
def test_a_box_in_fractions_is_refused_and_not_drawn_in_the_corner(box, integers):
    numbers = [float(round(value)) for value in box] if integers else box
    with pytest.raises(BadInput, match="box must be in pixels"):
        check_pixels([numbers, numbers], (40, 20))
    check_pixels([[*numbers[:3], 2.0]], (40, 20))
    # One tiny box among others is an annotator's.
    check_pixels([numbers, [2.0, 2.0, 9.0, 9.0]], (40, 20))


# Thousandths of the sides, or numbers of a picture of another size.
@pytest.mark.parametrize("box", [(100, 200, 500, 900), (0, 0, 1000, 1000), (-400, 3, 100, 100)])
def test_a_box_that_ends_far_outside_is_refused_and_not_clipped(box):
    with pytest.raises(BadInput, match=r"pixels of the picture, got \[.*\] in 640x480$"):
        check_pixels([(1, 2, 9, 9), box], (640, 480))
    check_pixels([(-60, -40, 700, 520)], (640, 480))  # A little outside: it is clipped.


def test_rectangle_covers_its_pixels():
    mask = polygon_mask([[2, 3, 9, 3, 9, 8, 2, 8]], width=13, height=11)
    expected = np.zeros((11, 13), dtype=bool)
    expected[3:8, 2:9] = True
    np.testing.assert_array_equal(mask, expected)


def test_polygons_are_joined_and_clipped():
    mask = polygon_mask([[-5, -5, 4, -5, 4, 4, -5, 4], [3, 3, 6, 3, 6, 6, 3, 6]], width=7, height=5)
    assert mask[:4, :4].all()
    assert mask[3:5, 3:6].all()
    assert not mask[0, 4:].any()


def test_triangle_has_its_area():
    mask = polygon_mask([[10, 10, 90, 10, 10, 70]], width=100, height=80)
    assert mask.sum() == pytest.approx(80 * 60 / 2, rel=0.02)


def test_masks_come_in_one_form():
    mask = np.zeros((5, 7), dtype=bool)
    mask[1:3, 2:6] = True
    plain = json.dumps({"size": [5, 7], "counts": [11, 2, 3, 2, 3, 2, 3, 2, 7]})
    polygons = json.dumps({"size": [5, 7], "polygons": [[2, 1, 6, 1, 6, 3, 2, 3]]})
    for text in (plain, polygons, encode_mask(mask)):
        assert normalize_mask(text, width=7, height=5) == encode_mask(mask)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"size": [5, 6], "counts": [30]}', "mask is 6x5, image is 7x5"),
        ('{"size": [5, 7], "counts": [35]}', "mask is empty"),
        ('{"size": [5, 7], "counts": "~~"}', "malformed mask"),
        ('{"size": [5, 7]}', "malformed mask: 'counts' is missing"),
        ('{"size": [5, 7], "polygons": [[1, 2, 3]]}', "polygon of 3 numbers, an x without its y"),
        ('{"size": [5, 7], "polygons": {"size": 3}}', "malformed mask: polygons must be a list"),
        ("[]", "malformed mask"),
    ],
)
def test_bad_masks_are_refused(text, reason):
    with pytest.raises(BadInput, match=reason):
        normalize_mask(text, width=7, height=5)


PIXELS = Pixels(images=(b"jpeg",), size=(40, 20), sha256="ab")


def item(**fields) -> Item:
    base = {
        "id": "web/0/1#segment",
        "part": "segment",
        "media": (Media(path="web/0.tar", member="1.jpg"),),
        "prefix": "segment dog",
        "suffixes": (f"{BOX_MARKER}{MASK_MARKER} dog",),
        "task": "segment",
        "boxes": ((0.0, 0.0, 40.0, 20.0),),
        "masks": (encode_mask(np.ones((20, 40), dtype=bool)),),
    }
    return Item(**{**base, **fields})


def test_markers_are_filled_in():
    record = render_record(item(), [PIXELS])
    assert record.suffixes == ("<loc0000><loc0000><loc1023><loc1023><mask> dog",)
    assert decode_mask(record.masks[0]).all()
    assert (record.source, record.source_sha256) == ("web/0.tar/1.jpg", "ab")


def test_prefix_takes_the_first_box():
    fields = {
        "prefix": f"caption {BOX_MARKER}",
        "suffixes": (f"{BOX_MARKER} dog",),
        "boxes": ((0.0, 0.0, 20.0, 20.0), (20.0, 10.0, 40.0, 20.0)),
        "masks": (),
    }
    record = render_record(item(**fields), [PIXELS])
    assert record.prefix == "caption <loc0000><loc0000><loc1023><loc0512>"
    assert record.suffixes == ("<loc0512><loc0512><loc1023><loc1023> dog",)


def test_pair_names_both_sources():
    media = (Media(path="a.png"), Media(path="b.png"))
    other = Pixels(images=(b"png",), size=(9, 9), sha256="cd")
    record = render_record(
        item(media=media, suffixes=("True",), boxes=(), masks=()), [PIXELS, other]
    )
    assert record.images == (b"jpeg", b"png")
    assert record.meta["sources"] == [["a.png", "ab"], ["b.png", "cd"]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"annotated_size": (80, 20)}, r"annotated as \(80, 20\), image is \(40, 20\)"),
        ({"masks": ()}, "text has 1 <mask>, annotation 0 masks"),
        ({"boxes": ()}, "other than 0 box markers"),
        ({"suffixes": ("a <mask>",), "boxes": (), "masks": ()}, "text has 1 <mask>"),
    ],
)
def test_what_does_not_fit_is_refused(fields, reason):
    with pytest.raises(BadInput, match=reason):
        render_record(item(**fields), [PIXELS])


def test_item_comes_back_from_its_line():
    whole = item(annotated_size=(40, 20), answers=("ä",), meta={"k": [1]})
    assert Item.from_json(whole.to_json()) == whole
