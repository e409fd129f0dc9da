"""What a reader lists: one would-be record each, with references to its pixels but no pixels."""

import dataclasses
import json

BOX_MARKER = "\ue000"
"""Stands in a prefix or suffix where the four location tokens of the next box belong."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edit:
    """What is changed in an image before it is stored.

    Attributes:
      quarter_turns: counter-clockwise.
      labels: x0, y0, x1, y1 of white rectangles, each with the black text in it [pixels].
      frame: x0, y0, x1, y1 of a red frame, one pixel wide once stored [fractions of the height].
    """

    quarter_turns: int = 0
    labels: tuple[tuple[float, float, float, float, str], ...] = ()
    frame: tuple[float, float, float, float] | None = None

    @classmethod
    def from_fields(cls, raw: dict) -> "Edit":
        """Returns the edit of fields read from JSON."""
        frame = raw["frame"]
        labels = tuple(tuple(label) for label in raw["labels"])
        return cls(**{**raw, "labels": labels, "frame": None if frame is None else tuple(frame)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Media:
    """Where the encoded bytes of one image or video lie.

    Attributes:
      path: the file, or the archive that holds it, relative to the data root [path].
      member: name inside the archive; "" for a plain file.
      store: the file of what was unpacked that really holds the bytes; "" for `path` itself.
      offset: first byte.
      size: length; -1 means to the end [bytes].
      crc32c: of what is a range of an object, or was unpacked, since a range of a bucket comes
        without one; -1 elsewhere.
      video: decoded into frames rather than as one image.
      start: where the part of the video that is meant begins, from its first frame [s].
      end: where that part ends; None for the video's end [s].
      edit: what is changed in its pixels; None for nothing.
    """

    path: str
    member: str = ""
    store: str = ""
    offset: int = 0
    size: int = -1
    crc32c: int = -1
    video: bool = False
    start: float = 0.0
    end: float | None = None
    edit: Edit | None = None

    @classmethod
    def from_fields(cls, raw: dict) -> "Media":
        """Returns the media of fields read from JSON."""
        edit = raw["edit"]
        return cls(**{**raw, "edit": None if edit is None else Edit.from_fields(edit)})

    @property
    def source(self) -> str:
        """The name a record gives it."""
        return f"{self.path}/{self.member}" if self.member else self.path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One would-be record.

    Attributes:
      id: of the record. Items made of the same pixels share what precedes "#".
      part: the dataset part it goes to.
      media: its images (one, or a pair) or its video.
      prefix: as in the record, with a `BOX_MARKER` per box.
      suffixes: as in the record, with a `BOX_MARKER` per box and a `MASK_MARKER` per mask.
      prefixes: as in the record; no boxes are in them.
      task: as in the record.
      lang: as in the record.
      boxes: x0, y0, x1, y1 of every `BOX_MARKER`, prefix first [pixels].
      masks: per `MASK_MARKER`, COCO run lengths, or {"size", "polygons"} [JSON].
      annotated_size: width and height the boxes refer to; None if not stated [pixels].
      answers: as in the record.
      meta: as in the record.
    """

    id: str
    part: str
    media: tuple[Media, ...]
    prefix: str
    suffixes: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...] = ()
    task: str
    lang: str = "en"
    boxes: tuple[tuple[float, ...], ...] = ()
    masks: tuple[str, ...] = ()
    annotated_size: tuple[int, int] | None = None
    answers: tuple[str, ...] = ()
    meta: dict[str, object] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the item as one line."""
        return json.dumps(vars(self), default=vars, ensure_ascii=False)  # `asdict` is slow.

    @classmethod
    def from_json(cls, line: str) -> "Item":
        """Returns the item of a line written by `to_json`."""
        raw = json.loads(line)
        raw["media"] = tuple(Media.from_fields(m) for m in raw["media"])
        for name in ("boxes", "prefixes"):
            raw[name] = tuple(tuple(one) for one in raw[name])
        size = raw["annotated_size"]
        raw["annotated_size"] = None if size is None else tuple(size)
        for name in ("suffixes", "masks", "answers"):
            raw[name] = tuple(raw[name])
        return cls(**raw)
