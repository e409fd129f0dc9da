"""Files and annotations made to break the pipeline cost a reject each, and nothing else."""

import dataclasses
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import time
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pipelines.images.square import decode_image
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.rle import decode_mask
from pipelines.records.schema import BadInput, Reject
from pipelines.sources.reading import item, media_reader
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Media
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.registry import source_spec
from pipelines.sources.web import images as web
from pipelines.transforms.masks import normalize_mask
from pipelines.video.probe import probe_video

CONFIG = PrepareConfig(image_px=16, num_shards=2, num_workers=1, max_reject_rate=1.0)


def run(root, out, source="web") -> tuple[Dataset, dict[str, str]]:
    prepare_dataset(CONFIG, source=source, split="train", data_root=str(root), out=str(out))
    dataset = Dataset(out)
    return dataset, {reject.id: reject.reason for reject in dataset.rejects()}


def lines(root, rows: list) -> None:
    (root / "web").mkdir(parents=True)
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    (root / "web/a.jsonl").write_text(text)


def test_hostile_lines_are_rejects(tmp_path, encoded):
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(encoded())
    lines(
        tmp_path / "root",
        [
            {"image": "ok.jpg", "text": "fine"},
            {"image": "../../secret.jpg", "text": "out of the root"},
            {"image": str(secret), "text": "absolute"},
            {"image": "ok\0.jpg", "text": "zero byte"},
            '{"image": "ok\\ud800.jpg", "text": "half a pair"}',
            '{"image": "ok.jpg", "text": "half a pair \\ud83d"}',
            '{"image": "ok.jpg", "text": "x", "width": Infinity, "height": 1, "objects": '
            '[{"label": "a", "box": [1, 1, 9, 9]}]}',
            "[" * 100_000,
            '{"image": "ok.jpg", "text": "' + "long " * (4 << 20) + '"}',
            {"image": "ok.jpg", "text": "last"},
        ],
    )
    (tmp_path / "root/web/ok.jpg").write_bytes(encoded())
    dataset, reasons = run(tmp_path / "root", tmp_path / "out")
    assert sorted(r.suffixes[0] for r in dataset.parts["caption"]) == ["fine", "last", "x"]
    told = {identity.split("#")[0][-1]: reason for identity, reason in reasons.items()}
    assert "leaves the data root" in told["1"]
    assert "leaves the data root" in told["2"]
    assert "not a name of a file" in told["3"]
    assert "not a name of a file" in told["4"]
    assert told["5"] == r'not Unicode in suffixes: ["half a pair \ud83d"]'
    assert "malformed annotation: a number is infinite" in told["6"]
    assert told["7"] == "nested too deeply"
    assert told["8"] == "line has more than 16777216 bytes"
    assert dataset.info.num_inputs == dataset.info.num_records + len(reasons)


@pytest.mark.parametrize("packed", [False, True])
def test_archives_cannot_lead_out_or_fill_the_memory(tmp_path, encoded, monkeypatch, packed):
    monkeypatch.setattr(web, "MAX_ENCODED", 100_000)
    monkeypatch.setattr(media_reader, "MAX_ENCODED", 100_000)
    (tmp_path / "root/web").mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(encoded())
    name = tmp_path / "root/web/0.tgz" if packed else tmp_path / "root/web/0.tar"

    def add(archive, path, data=b"", **fields):
        info = tarfile.TarInfo(path)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        archive.addfile(info, io.BytesIO(data))

    with tarfile.open(name, "w:gz" if packed else "w") as archive:
        add(archive, "a.jpg", encoded())
        add(archive, "a.txt", b"fine")
        add(archive, "b.jpg", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret.jpg"))
        add(archive, "b.txt", b"a link")
        add(archive, "c.jpg", bytes(200_000))
        add(archive, "c.txt", b"too large")
        add(archive, "../../d.jpg", encoded(seed=1))
        add(archive, "../../d.txt", b"named to lead out")
    dataset, reasons = run(tmp_path / "root", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"root", "secret.jpg", "out"}
    captions = {r.suffixes[0] for r in dataset.records()}
    assert captions == {"fine", "named to lead out"}  # A member's name is never a path.
    assert reasons["web/0/b"].startswith("b.jpg is a symbolic link to")
    assert "c.jpg has 200000 bytes" in reasons["web/0/c"]


def test_what_a_picture_says_of_itself_enters_no_record(tmp_path):
    (tmp_path / "root/web").mkdir(parents=True)
    exif, text = Image.Exif(), PngInfo()
    exif[0x010E] = "secret"  # ImageDescription.
    exif.get_ifd(0x8825)[0x001D] = "secret"  # GPSDateStamp.
    text.add_text("Author", "secret")
    named = [
        ("a.jpg", {"exif": exif, "comment": b"secret", "icc_profile": b"secret"}),
        ("b.png", {"exif": exif, "pnginfo": text}),
    ]
    for side in (16, 40):  # The size that records have, and another.
        for name, options in named:
            Image.new("RGB", (side, side), "red").save(
                tmp_path / f"root/web/{side}{name}", **options
            )
    files = [path for path in (tmp_path / "root/web").iterdir()]
    assert all(b"secret" in path.read_bytes() for path in files)
    rows = [{"image": path.name, "text": "fine"} for path in files]
    (tmp_path / "root/web/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset, reasons = run(tmp_path / "root", tmp_path / "out")
    assert reasons == {}
    records = [*dataset.records()]
    assert len(records) == len(files)
    assert not [record.id for record in records if "secret" in repr(record)]


def tar_of(images: list[bytes]) -> bytes:
    """Returns an archive of captioned images, without the padding behind its end."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, image in enumerate(images):
            for extension, data in (("jpg", image), ("txt", b"fine")):
                member = tarfile.TarInfo(f"{number}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        end = archive.offset
    return file.getvalue()[: end + 1024]


def flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[data.index(b"2.jpg")] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flipped, "bad checksum"),
        (lambda data: data[: data.index(b"2.jpg")], "empty header"),
        (lambda data: data.replace(b"2.jpg", bytes(5)), "bad checksum"),
        (lambda data: data[: (at := data.index(b"2.jpg"))] + bytes(512) + data[at:], "follows"),
        (lambda data: data + data, "follows its end"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_cannot_end_early_in_silence(tmp_path, encoded, damage, reason, packed):
    (tmp_path / "web").mkdir()
    data = damage(tar_of([encoded(seed=seed) for seed in range(4)]))
    name = "web/a.tgz" if packed else "web/a.tar"
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    found = list(source_spec("web").read(Corpus(tmp_path, "web", UnpackedMedia()), "train"))
    assert sum(isinstance(one, item.Item) for one in found) >= 2
    assert [one.reason for one in found if isinstance(one, Reject) and reason in one.reason]


@pytest.mark.slow
def test_a_full_disk_fails_in_one_line(tmp_path, encoded):
    lines(tmp_path / "root", [{"image": "ok.jpg", "text": str(i)} for i in range(3)])
    (tmp_path / "root/web/ok.jpg").write_bytes(encoded(200, 200))
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "from pipelines.prepare.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["web", "train", "--data-root", str(tmp_path / "root"), "--out", str(tmp_path / "out")]
    told = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True)
    assert told.returncode == 1
    assert re.fullmatch(
        r"error: FnApiRunner failed: .*File too large.*", told.stderr.splitlines()[-1]
    )


def png_of(width: int, height: int) -> bytes:
    """Returns a small file that declares a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + crc

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    pixels = zlib.compress(bytes(10_000_000))
    header = chunk(b"IHDR", size + bytes([8, 2, 0, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("width", "height"), [(30_000, 30_000), (2**31 - 1, 1), (9000, 9000)])
def test_decompression_bombs_are_refused_before_they_unfold(width, height):
    with pytest.raises(BadInput, match=r"too large|too small|decompression bomb"):
        decode_image(png_of(width, height), min_side=8, max_pixels=64_000_000)


def test_files_too_large_to_read_are_refused(tmp_path):
    path = tmp_path / "a.jpg"
    with path.open("wb") as file:
        file.truncate(media_reader.MAX_ENCODED + 1)  # Sparse: no bytes on the disk.
    with pytest.raises(BadInput, match="too large: 536870913 bytes"):
        MediaReader(tmp_path).read(Media(path="a.jpg"))


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ({"polygons": [[0, 0, 1e12, 0, 5, 5]]}, "far outside"),
        ({"polygons": [[0, 0, float("nan"), 0, 5, 5]]}, "far outside"),
        ({"polygons": [[0, 0, 9, 0, 5, 5]] * 20_000}, "20000 polygons"),
        ({"polygons": [[0, 0, 9, 9] * 50_000]}, "outline of"),
        ({"counts": "_" * 2_000_000}, "not of a run-length code"),
        ({"counts": "\u00ff1"}, "not of a run-length code"),
        ({"counts": [10**18, 5]}, "runs sum to"),
    ],
)
def test_absurd_masks_are_refused_at_once(mask, reason):
    started = time.monotonic()
    with pytest.raises(BadInput, match=reason):
        normalize_mask(json.dumps({"size": [10, 10], **mask}), width=10, height=10)
    assert time.monotonic() - started < 10


@given(text=st.text(max_size=30))
def test_any_run_text_is_a_mask_or_an_error(text):
    try:
        mask = decode_mask(json.dumps({"size": [3, 4], "counts": text}))
    except (ValueError, IndexError):
        return
    assert mask.shape == (3, 4)


def test_a_video_cannot_have_other_files_read(tmp_path, write_video):
    write_video(tmp_path / "a.mkv")
    path = tmp_path / "b.mp4"
    path.write_text("ffconcat version 1.0\nfile a.mkv\n")
    with pytest.raises(BadInput, match="unreadable video"):
        probe_video(str(path))
    assert probe_video(str(tmp_path / "a.mkv")).width == 64


@pytest.mark.slow
def test_fuzzed_videos_become_one_reject_each(tmp_path, write_video):
    whole = write_video(tmp_path / "whole.mp4").read_bytes()
    rng = np.random.default_rng(0)
    (tmp_path / "root/videos").mkdir(parents=True)
    for i in range(12):
        data = bytearray(whole)
        for position in rng.integers(0, len(data), 30):
            data[position] = rng.integers(256)
        (tmp_path / f"root/videos/{i:02d}.mp4").write_bytes(data[: rng.integers(100, len(data))])
    dataset, reasons = run(tmp_path / "root", tmp_path / "out", "videos")
    assert dataset.info.num_records + len(reasons) == dataset.info.num_inputs == 12


@pytest.mark.parametrize("limit", [None, 5])
def test_names_that_are_not_unicode_cost_their_rows_alone(tmp_path, encoded, limit):
    half = "\udcff"
    rows = [
        {"image": "0.jpg", "captions": {half: "x"}},
        {
            "image": "0.jpg",
            "objects": [{"label": half, "box": [1, 1, 9, 9], "mask": [[1, 1, 9, 1, 9, 9]]}],
        },
        {"image": "0.jpg", "caption": "good"},
    ]
    (tmp_path / "root/web").mkdir(parents=True)
    (tmp_path / "root/web/0.jpg").write_bytes(encoded())
    (tmp_path / "root/web/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with tarfile.open(tmp_path / "root/web/b.tar", "w", errors="surrogateescape") as archive:
        for name, data in ((f"{half}.jpg", encoded()), (f"{half}.txt", b"x")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    config = dataclasses.replace(CONFIG, limit=limit, tasks=("caption", "segment"))
    info = prepare_dataset(
        config,
        source="web",
        split="train",
        data_root=str(tmp_path / "root"),
        out=str(tmp_path / "out"),
    )
    assert (info.num_inputs, info.num_records) == (4, 1)
    reasons = {reject.id: reject.reason for reject in Dataset(tmp_path / "out").rejects()}
    assert reasons[r"web/b/\udcff#caption.en"].startswith(
        r'not Unicode in id, media: "web/b/\udcff'
    )
    assert reasons[r"web/a.jsonl/000000000#caption.\udcff"].startswith("not Unicode in id, ")
    assert reasons[r"web/a.jsonl/000000001#segment.\udcff"].startswith("not Unicode in id, ")
