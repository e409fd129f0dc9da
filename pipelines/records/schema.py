"""The format of a record: the contract between pipelines, which write, and loaders, which read."""

import dataclasses
import json
from typing import Literal

from pipelines.records.licence import Licence

SuffixSampling = Literal["without_replacement", "choice", "uniform"]
"""Method by which training draws one of a record's suffixes: each once before any is repeated, or
independently."""

MASK_MARKER = "<mask>"
"""Placeholder in a suffix for the 16 `<segNNN>` tokens of one mask.

Records keep full-resolution masks, so a dataset does not depend on a mask codec. The loader of
`model` turns each mask into tokens with the study's codec, as big_vision does
(`pp/proj/paligemma/segmentation.py`).
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One example.

    Attributes:
      id: stable id, unique within the dataset and never derived from position or time.
      images: encoded images (JPEG or PNG) of equal size: one, an image pair, or video frames,
        window after window; none where the record is text alone, which only training reads.
      num_windows: windows of a video, all with the same number of frames. Training uses any of
        them, evaluation the first.
      prefix: the text the model reads; no separator, no special tokens.
      suffixes: texts the model may write; training draws one of them.
      prefixes: for each suffix, its possible prefixes, of which training draws one: the
        expressions of an object, or the choices in different orders. Empty if it is `prefix`.
      turns: further turns of a conversation, after the first suffix: what is read, and what is
        written. A record with them has one prefix and one suffix.
      task: "caption", "ocr", ... or the benchmark's name.
      lang: BCP-47 language of the suffixes.
      source: the file the pixels come from, or the text alone, relative to the corpus root [path].
      source_sha256: digest of that file's bytes, or of the text alone [hex].
      answers: accepted answers, for metrics; empty if the task has none.
      masks: one COCO run-length mask per `MASK_MARKER` of the suffixes, in order [RLE JSON].
      frame_requested: requested time of each video frame [s].
      frame_decoded: time of the frame that was actually decoded, per video frame [s].
      meta: further values that a metric needs (question type, ...) [JSON-able].
      licence: terms under which it may be used.
    """

    id: str
    images: tuple[bytes, ...]
    num_windows: int = 1
    prefix: str
    suffixes: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    task: str
    lang: str = "en"
    source: str
    source_sha256: str
    answers: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    frame_requested: tuple[float, ...] = ()
    frame_decoded: tuple[float, ...] = ()
    meta: dict[str, object] = dataclasses.field(default_factory=dict)
    licence: Licence = Licence()

    def __post_init__(self) -> None:
        for name in ("id", "task", "source", "source_sha256"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty in record {self.id!r}.")
        if not self.images and (self.masks or self.frame_requested):
            raise ValueError(f"images is empty in record {self.id!r}, which has masks or frames.")
        # Windows have equal numbers of frames: 6 images in 2 windows are a b c | d e f.
        if self.num_windows < 1 or len(self.images) % self.num_windows:
            raise ValueError(
                f"num_windows must be a positive number that divides the {len(self.images)} images "
                f"of record {self.id!r}, got {self.num_windows}."
            )
        # Both times of a frame are stored: the one that was asked for, and that of the frame shown
        # then.
        if len(self.frame_requested) != len(self.frame_decoded):
            raise ValueError(
                f"frame_requested has {len(self.frame_requested)} times and frame_decoded "
                f"{len(self.frame_decoded)} in record {self.id!r}; they go in pairs."
            )
        if self.prefixes and not (len(self.prefixes) == len(self.suffixes) and all(self.prefixes)):
            raise ValueError(
                f"prefixes must hold at least one for each of {len(self.suffixes)} suffixes of "
                f"record {self.id!r}, got {self.prefixes!r:.100}."
            )
        if self.turns and (self.prefixes or len(self.suffixes) != 1):
            raise ValueError(
                f"turns must come with one prefix and one suffix in record {self.id!r}, got "
                f"{len(self.suffixes)} suffixes."
            )
        if self.meta:  # Most are empty, and `json.dumps` takes half of this method's time.
            json.dumps(self.meta)

    def window(self, number: int = 0) -> tuple[bytes, ...]:
        """Returns the images of one window; a record without a video has one window."""
        # Of 6 images in 2 windows, window 1 is images 3 to 5.
        size = len(self.images) // self.num_windows
        return self.images[number * size : (number + 1) * size]

    def prefixes_of(self, number: int) -> tuple[str, ...]:
        """Returns the prefixes that may be read before one of the suffixes."""
        return self.prefixes[number] if self.prefixes else (self.prefix,)


class BadInput(ValueError):
    """An input that cannot become a record; the message is the reject's reason."""


def is_of_machine(error: BaseException) -> bool:
    """Whether an error in reading an open file is the machine's, and says nothing of the file.

    Such errors have a number (a full disk, too many open files); those of damaged gzip and bzip2
    data are `OSError` too, without a number.
    """
    return isinstance(error, OSError) and error.errno is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reject:
    """One input that did not become a record.

    Attributes:
      id: the id its record would have had.
      stage: the step that refused it, for example "decode".
      reason: reason for the rejection, in one line.
      source: the file, relative to the corpus root [path].
      source_sha256: digest of that file's bytes; "" if there is none [hex].
    """

    id: str
    stage: str
    reason: str
    source: str
    source_sha256: str = ""

    def to_json(self) -> str:
        """Returns the reject as one line."""
        return json.dumps(vars(self), sort_keys=True, ensure_ascii=False)


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Omission:
    """What looks like data in a source's folder, and is neither a record nor a reject.

    Attributes:
      source: the file, relative to the corpus root [path].
      reason: what of it was not read, in one line.
      num: number of files, archive members or records that this is about.
      example: one of them, where `source` holds several; else "".
    """

    source: str
    reason: str
    num: int = 1
    example: str = ""

    def to_json(self) -> str:
        """Returns the omission as one line."""
        return json.dumps(vars(self), sort_keys=True, ensure_ascii=False)
