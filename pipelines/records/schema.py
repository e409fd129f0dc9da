"""What one record is: the contract between the pipelines that write and the loaders that read."""

import dataclasses
import json
from typing import Literal

SuffixSampling = Literal["without_replacement", "choice", "uniform"]
"""How training draws one of a record's suffixes: each once before any again; or independently."""

MASK_MARKER = "<mask>"
"""Stands in a suffix where the 16 `<segNNN>` tokens of one mask belong.

Records keep full-resolution masks; the loader of `model` turns each into tokens with the study's
mask codec, as big_vision does (`pp/proj/paligemma/segmentation.py`), so a dataset does not depend
on a codec.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One example.

    Attributes:
      id: stable and unique within its dataset; never derived from position or time.
      images: encoded images (JPEG or PNG) of equal size: one, an image pair, or video frames,
        window after window.
      num_windows: windows of a video, as many frames each. Training looks at any, evaluation at the
        first one.
      prefix: the text the model reads; no separator, no special tokens.
      suffixes: texts the model may write; training draws one of them.
      prefixes: per suffix, what may be read before it, of which training draws one: the
        expressions of an object, the choices in another order. Empty where it is `prefix`.
      task: "caption", "ocr", ... or the benchmark's name.
      lang: BCP-47 language of the suffixes.
      source: the file the pixels come from, relative to the corpus root [path].
      source_sha256: digest of that file's bytes [hex].
      answers: accepted answers, for metrics; empty where the task has none.
      masks: one COCO run-length mask per `MASK_MARKER` of the suffixes, in order [RLE JSON].
      frame_requested: time asked for, per video frame [s].
      frame_decoded: time of the frame that was decoded, per video frame [s].
      meta: whatever a metric needs besides (question type, ...) [JSON-able].
    """

    id: str
    images: tuple[bytes, ...]
    num_windows: int = 1
    prefix: str
    suffixes: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...] = ()
    task: str
    lang: str = "en"
    source: str
    source_sha256: str
    answers: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    frame_requested: tuple[float, ...] = ()
    frame_decoded: tuple[float, ...] = ()
    meta: dict[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "task", "source", "source_sha256"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty in record {self.id!r}.")
        if not self.images:
            raise ValueError(f"images is empty in record {self.id!r}; a record has at least one.")
        if self.num_windows < 1 or len(self.images) % self.num_windows:
            raise ValueError(
                f"num_windows must be a positive number that divides the {len(self.images)} images "
                f"of record {self.id!r}, got {self.num_windows}."
            )
        if len(self.frame_requested) != len(self.frame_decoded):
            raise ValueError(
                f"frame_requested has {len(self.frame_requested)} times and frame_decoded "
                f"{len(self.frame_decoded)} in record {self.id!r}; they go in pairs."
            )
        if self.prefixes and not (len(self.prefixes) == len(self.suffixes) and all(self.prefixes)):
            raise ValueError(
                f"prefixes must name some for each of {len(self.suffixes)} suffixes of record "
                f"{self.id!r}, got {self.prefixes!r:.100}."
            )
        if self.meta:  # That of few tasks; `json.dumps` is half of the time of this.
            json.dumps(self.meta)

    def window(self, number: int = 0) -> tuple[bytes, ...]:
        """Returns the images of one window; of pictures there is only one."""
        size = len(self.images) // self.num_windows
        return self.images[number * size : (number + 1) * size]

    def prefixes_of(self, number: int) -> tuple[str, ...]:
        """Returns the prefixes that may be read before one of the suffixes."""
        return self.prefixes[number] if self.prefixes else (self.prefix,)


class BadInput(ValueError):
    """An input that cannot become a record; the message is the reason it is rejected for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reject:
    """One input that did not become a record.

    Attributes:
      id: the id its record would have had.
      stage: the step that refused it, such as "decode".
      reason: why, in one line.
      source: the file, relative to the corpus root [path].
      source_sha256: digest of that file's bytes; "" where there is none [hex].
    """

    id: str
    stage: str
    reason: str
    source: str
    source_sha256: str = ""

    def to_json(self) -> str:
        """Returns the reject as one line."""
        return json.dumps(vars(self), sort_keys=True, ensure_ascii=False)
