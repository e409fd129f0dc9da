"""Corpora with planted faults: what a check of them must name, and what preparing must refuse."""

import io
import json
import tarfile
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from PIL import Image

from pipelines.records.schema import Reject


def picture(seed: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """Returns an encoded picture of noise, 40 x 30 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    image, buffer = Image.fromarray(pixels).convert(mode), io.BytesIO()
    if mode == "RGBA":
        image.putalpha(100)
    image.save(buffer, kind)
    return buffer.getvalue()


class Planted:
    """A `web` folder to which faults are added; rows are written by `finish`.

    Args:
      root: the data root.
      clip: a whole clip, of which a fault takes a part.
    """

    def __init__(self, root: Path, clip: Path) -> None:
        self.folder, self._clip = root / "web", clip
        self.folder.mkdir(parents=True)
        self._rows: list[dict] = []
        for number in range(5):
            self.row(f"good{number}.jpg", picture(number), text="fine")

    def row(self, name: str, data: bytes | None, **fields: object) -> None:
        """Adds a row, with its file unless that is None."""
        if data is not None:
            (self.folder / name).write_bytes(data)
        key = "video" if name.endswith(".mp4") else "image"
        self._rows.append({key: name, **fields})

    def wrong_columns(self) -> None:
        self._rows.append({"imge": "good0.jpg", "captoin": "two names are wrong"})

    def missing_picture(self) -> None:
        self.row("gone.jpg", None, text="nowhere")

    def truncated_jpeg(self) -> None:
        self.row("short.jpg", picture(10)[:-50], text="cut")

    def cmyk(self) -> None:
        self.row("print.jpg", picture(11, mode="CMYK"), text="for a press")

    def alpha(self) -> None:
        self.row("clear.png", picture(12, "PNG", "RGBA"), text="see through")

    def duplicate_id(self) -> None:
        with tarfile.open(self.folder / "twice.tar", "w") as archive:
            for number, name in enumerate(("a.jpg", "a.txt", "b.jpg", "b.txt", "a.jpg", "a.txt")):
                data = picture(20 + number) if name.endswith("jpg") else f"text {number}".encode()
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

    def null_caption(self) -> None:
        self.row("null.jpg", picture(13), text=None)

    def nan_caption(self) -> None:
        self.row("nan.jpg", picture(14), text=float("nan"))

    def stray_archive(self) -> None:
        (self.folder / "stray.zip").write_bytes(b"PK")

    def empty_picture(self) -> None:
        self.row("empty.jpg", b"", text="nothing in it")

    def truncated_clip(self) -> None:
        data = self._clip.read_bytes()
        self.row("cut.mp4", data[: len(data) // 2], text="half a clip")

    def text_as_picture(self) -> None:
        self.row("words.jpg", b"this is no picture", text="a text file")

    def finish(self) -> None:
        """Writes the list of rows."""
        lines = (json.dumps(row) + "\n" for row in self._rows)
        (self.folder / "list.jsonl").write_text("".join(lines))


FAULTS: dict[str, tuple[Callable[[Planted], None], str, str]] = {
    "wrong columns": (
        Planted.wrong_columns,
        "read",
        "no image among the fields imge (image?), captoin (caption?)",
    ),
    "missing picture": (
        Planted.missing_picture,
        "decode",
        "No such file or directory: web/gone.jpg",
    ),
    "truncated jpeg": (Planted.truncated_jpeg, "decode", "undecodable: image file is truncated"),
    "cmyk": (Planted.cmyk, "", ""),
    "alpha": (Planted.alpha, "", ""),
    "duplicate id": (Planted.duplicate_id, "read", "duplicate id"),
    "null caption": (Planted.null_caption, "read", "no caption or annotation"),
    "nan caption": (Planted.nan_caption, "read", "no caption or annotation"),
    "stray archive": (Planted.stray_archive, "", ""),
    "empty picture": (Planted.empty_picture, "decode", "empty file"),
    "truncated clip": (Planted.truncated_clip, "decode", "unreadable video"),
    "text as picture": (Planted.text_as_picture, "decode", "undecodable: not one of JPEG, PNG"),
}
"""Fault -> how it is planted, and the stage and the beginning of the reason of its one reject; ""
where it costs none."""


def plant(root: Path, clip: Path, faults: Collection[str]) -> None:
    """Writes the folder `web` below `root` with some faults."""
    planted = Planted(root, clip)
    for fault in faults:
        FAULTS[fault][0](planted)
    planted.finish()


def expected_rejects(faults: Collection[str]) -> list[tuple[str, str]]:
    """Returns the stage and the beginning of the reason of each reject, sorted."""
    planted = (FAULTS[fault] for fault in faults)
    return sorted((stage, reason) for _, stage, reason in planted if stage)


def begins_as(rejects: Collection[Reject], expected: list[tuple[str, str]]) -> bool:
    """Returns whether rejects are those expected, by stage and beginning of the reason."""
    listed = sorted((reject.stage, reject.reason) for reject in rejects)
    return len(listed) == len(expected) and all(
        stage == wanted and reason.startswith(beginning)
        for (stage, reason), (wanted, beginning) in zip(listed, expected, strict=True)
    )
