"""Items, which readers list: would-be records with references to their pixels, but no pixels."""

import dataclasses
import json
import re
from collections.abc import Callable, Container, Iterator

from pipelines.benchmarks.row import fill_prompt
from pipelines.records.licence import Licence
from pipelines.records.schema import BadInput, Reject

_TASK = re.compile(r"[A-Za-z0-9_-]{1,60}")

BOX_MARKER = "\ue000"
"""Placeholder in a prefix or suffix for the four location tokens of the next box."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edit:
    """Changes to an image before it is stored.

    Attributes:
      quarter_turns: number of counter-clockwise quarter turns.
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
    """A reference to the encoded bytes of one image or video.

    Attributes:
      path: the file, or the archive that holds it, relative to the data root [path].
      member: name inside the archive; "" for a plain file.
      store: file in the work folder that holds the unpacked bytes; "" if they are in `path`.
      offset: position of the first byte [bytes].
      size: length; -1 means to the end [bytes].
      crc32c: checksum of unpacked bytes or of a range of an object, since a bucket gives none for
        ranges; -1 for other bytes.
      video: whether it is a video, which is decoded into frames.
      start: start of the part of the video that is meant, from its first frame [s].
      end: end of that part; None for the video's end [s].
      edit: changes to its pixels; None for none.
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
        """The name in a record's `source`."""
        return f"{self.path}/{self.member}" if self.member else self.path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One would-be record.

    Attributes:
      id: id of the record. Items made of the same pixels share the part before "#".
      part: the dataset part that the record belongs to.
      media: its images (one, or a pair) or its video; none where it is text alone.
      prefix: the record's prefix, with a `BOX_MARKER` per box.
      suffixes: the record's suffixes, with a `BOX_MARKER` per box and a `MASK_MARKER` per mask.
      prefixes: the record's prefixes; they contain no boxes.
      turns: the record's further turns; likewise.
      task: the record's task.
      lang: the record's language.
      boxes: x0, y0, x1, y1 of every `BOX_MARKER`, prefix first [pixels].
      masks: per `MASK_MARKER`, COCO run lengths, or {"size", "polygons"} [JSON].
      annotated_size: width and height the boxes refer to; None if not stated [pixels].
      answers: the record's answers.
      meta: the record's meta.
      licence: the record's licence, as far as the row states one.
      fields: field of the benchmark's prompt -> its text, for another prompt; empty where there is
        none. It is not written with the item.
      text_file: the file of its row, if it is text alone; else "" [path].

    Raises:
      BadInput: if a text is none, naming the field and the value, or it has neither media nor a
        file of text.
    """

    id: str
    part: str
    media: tuple[Media, ...]
    prefix: str
    suffixes: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    task: str
    lang: str = "en"
    boxes: tuple[tuple[float, ...], ...] = ()
    masks: tuple[str, ...] = ()
    annotated_size: tuple[int, int] | None = None
    answers: tuple[str, ...] = ()
    meta: dict[str, object] = dataclasses.field(default_factory=dict)
    licence: Licence = Licence()
    fields: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)
    text_file: str = ""

    def __post_init__(self) -> None:
        if not self.media and not self.text_file:
            raise BadInput("media must hold a picture or a video, got none")
        # Every record's texts come through here, whatever its reader: what is no text is a reject.
        for name in ("id", "part", "prefix", "task", "lang"):
            _check_text(name, getattr(self, name))
        for name in ("suffixes", "answers", "masks"):
            for text in getattr(self, name):
                _check_text(name, text)
        for name in ("prefixes", "turns"):
            for texts in getattr(self, name):
                for text in texts:
                    _check_text(name, text)

    @property
    def source(self) -> str:
        """The name in a record's `source`."""
        return self.media[0].source if self.media else self.text_file

    def to_json(self) -> str:
        """Returns the item as one line."""
        values = {name: value for name, value in vars(self).items() if name != "fields"}
        return json.dumps(values, default=vars, ensure_ascii=False)  # `asdict` is slow.

    @classmethod
    def from_json(cls, line: str) -> "Item":
        """Returns the item of a line written by `to_json`."""
        raw = json.loads(line)
        # JSON has lists where the classes have tuples: items are compared, and media are keys of
        # dicts.
        raw["media"] = tuple(Media.from_fields(m) for m in raw["media"])
        for name in ("boxes", "prefixes", "turns"):
            raw[name] = tuple(tuple(texts) for texts in raw[name])
        size = raw["annotated_size"]
        raw["annotated_size"] = None if size is None else tuple(size)
        for name in ("suffixes", "masks", "answers"):
            raw[name] = tuple(raw[name])
        raw["licence"] = Licence(**raw["licence"])
        return cls(**raw)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadInput(f"{name} must be a text, got {value!r}"[:120])


Listing = Iterator[Item | Reject]
"""What a reader yields: items, and rejects in place of malformed rows."""


def with_prompt(entry: Item | Reject, prompt: str) -> Item | Reject:
    """Returns an item with another prompt, where a prompt's fields make its prefix."""
    if isinstance(entry, Reject) or not entry.fields:
        return entry
    return dataclasses.replace(entry, prefix=fill_prompt(prompt, **entry.fields))


def with_licence(entry: Item | Reject, licence: Licence) -> Item | Reject:
    """Returns an item with a licence, as far as it states none itself; a reject as it is."""
    if isinstance(entry, Reject) or not licence.is_stated:
        return entry
    return dataclasses.replace(entry, licence=entry.licence.completed(licence))


def id_of_place(place: int, stated: Callable[[], Container[str]]) -> str:
    """Returns the id of a row that states none: its number, in a form that no row states."""
    key = str(place)
    while key in stated():
        key = f"line-{key}"
    return key


def checked_task(task: str) -> str:
    """Returns the name of a task, which becomes part of file names.

    Raises:
      BadInput: if it does not suit that.
    """
    if not _TASK.fullmatch(task):
        raise BadInput(f"task must be letters, digits, - and _, got {task!r}"[:120])
    return task
