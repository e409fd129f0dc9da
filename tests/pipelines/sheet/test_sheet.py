"""The contact sheet: the right pixels carry boxes and masks, and nothing is left out."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows.lookup.data_files import show_records
from infra.errors import ConfigError
from pipelines.records import example
from pipelines.records.boxes import BOX_COLORS
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.rle import encode_mask
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard
from pipelines.sheet.cards import make_sheet
from pipelines.sheet.html import to_html
from pipelines.sheet.png import to_png

GREY = (100, 100, 100)
BOX = "<loc0256><loc0512><loc0767><loc1023>"  # Rows 56 to 168, columns 112 to 224.


def picture(color=GREY) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), color).save(buffer, "PNG")
    return buffer.getvalue()


def record(identity: str, **fields) -> Record:
    given = {"images": (picture(),), "prefix": "caption en", "suffixes": ("a <b> & c",),
             "task": "t", "source": "x.jpg", "source_sha256": "00", **fields}  # fmt: skip
    return Record(id=identity, **given)


@pytest.fixture
def dataset(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    mask = np.zeros((128, 32), dtype=bool)
    mask[64:, :] = True  # The lower half, of a picture four times as high as wide.
    parts = {
        "clip": [
            record("clip", images=(picture(), picture()), frame_requested=(0.0, 1.04),
                   frame_decoded=(0.0, 1.0)),
        ],
        "detect": [record(f"box{i}", prefix="detect a", suffixes=(f"{BOX} a",)) for i in range(5)],
        "mask": [
            record("mask", prefix=f"segment {BOX} in", suffixes=(f"{BOX}<mask> a",),
                   masks=(encode_mask(mask),), answers=("yes", "no")),
        ],
        "pair": [record("pair", images=(picture(), picture()), lang="de", suffixes=("",))],
        "text": [record("text", images=())],
    }  # fmt: skip
    infos = {}
    for name, records in parts.items():
        count = write_shard(folder / f"{name}.tfrecord", map(example.encode_example, records))
        infos[name] = PartInfo(shards=(f"{name}.tfrecord",), num_records=(count,))
    rejects = [
        {"id": f"r{i}", "stage": "decode", "reason": "<torn>", "source": "y.jpg"} for i in range(3)
    ]
    (folder / "rejects.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rejects))
    DatasetInfo(name="a/b", parts=infos, num_inputs=12, num_rejected=3, image_px=64).write(folder)
    return folder


def sheet(folder: Path, *, limit=24, part=None, rejects=20):
    return make_sheet(folder, limit=limit, part=part, rejects=rejects)


def test_boxes_lie_where_the_tokens_say(dataset):
    pixels = np.asarray(sheet(dataset, part="detect").cards[0].pictures[0])
    changed = np.argwhere((pixels == BOX_COLORS[0]).all(-1))
    assert changed.min(0).tolist() == [56, 112]
    assert changed.max(0).tolist() == [166, 223]
    assert (pixels[100, 150] == GREY).all()


def test_masks_cover_their_part_of_the_squashed_picture(dataset):
    pixels = np.asarray(sheet(dataset, part="mask").cards[0].pictures[0])
    veiled = (pixels != GREY).any(-1)
    assert veiled[115:, :].all()
    assert not veiled[:50, :].any()
    # The mask and its box are the suffix's: number 2, after the prefix's box.
    assert np.abs(pixels[200, 20] - np.mean([GREY, BOX_COLORS[1]], axis=0)).max() < 2


def test_texts_name_the_boxes_by_number(dataset):
    (card,) = sheet(dataset, part="mask").cards
    assert card.lines == (
        ("prefix", "segment [1] in"),
        ("suffix", "[2 mask] a"),
        ("answers", "yes, no"),
    )


def test_frames_have_their_times(dataset):
    (card,) = sheet(dataset, part="clip").cards
    assert card.captions == ("0.00 → 0.00 s", "1.04 → 1.00 s")


def test_every_part_has_its_share_and_small_ones_leave_room(dataset):
    shown = [card.part for card in sheet(dataset, limit=6).cards]
    assert len(shown) <= 6
    assert set(shown) == {"clip", "detect", "mask", "pair", "text"}
    assert [c.id for c in sheet(dataset, limit=2, part="detect").cards] == ["box0", "box2"]


def test_html_shows_everything_and_escapes_it(dataset):
    page = to_html(sheet(dataset, rejects=2))
    assert page.count("<img ") == 1 + 1 + 5 + 1 + 2
    assert "a &lt;b&gt; &amp; c" in page
    assert "<td>&lt;torn&gt;</td>" in page
    assert "12 inputs = 9 records + 3 rejects" in page
    assert "Rejects: 2 of 3" in page
    assert "<b>" not in page


def test_png_is_as_wide_as_it_is_and_grows_with_the_cards(dataset):
    few, more = (to_png(sheet(dataset, limit=limit)) for limit in (1, 24))
    assert few.width == more.width
    assert more.height > few.height + 200


@pytest.mark.parametrize(
    ("name", "out", "part", "told"),
    [
        ("data", "a.gif", None, r"--out must end in \.html or \.png, got .*a\.gif"),
        ("data", "no/a.png", None, "--out must be a file to write"),
        ("data", "a.png", "ocr", "--part must be one of clip, detect, mask, pair, text, got 'ocr'"),
        (".", "a.png", None, r"dataset must be a prepared one, .* no dataset\.json there"),
    ],
)
def test_wrong_requests_name_what_is_accepted(dataset, name, out, part, told):
    folder = dataset.parent
    with pytest.raises(ConfigError, match=told):
        show_records(
            str(folder / name),
            folder / out,
            store=str(folder / "no"),
            limit=3,
            part=part,
            rejects=3,
        )


@pytest.mark.slow
def test_command_writes_and_complains_in_one_line(dataset):
    out = dataset.parent / "sheet.png"
    command = [sys.executable, "-c", "from parcel.cli.main import main; main()", "data", "show"]

    def call(*words):
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)

    done = call(str(dataset), "--out", str(out))
    assert (done.returncode, done.stdout) == (0, f"{out}: 9 records, 3 rejects\n")
    assert Image.open(out).format == "PNG"
    for store in (dataset.parent, dataset / "none"):  # Of these two only the first exists.
        done = call(str(dataset / "no"), "--out", str(out), "--store", str(store))
        assert done.returncode == 2
        assert done.stderr.startswith("parcel: dataset must be")
        assert done.stderr.count("\n") == 1
