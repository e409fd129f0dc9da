"""What the registry says of one benchmark."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from pipelines.records.schema import SuffixSampling

Suite = Literal["main", "appendix", "other"]
"""Of the paper: its 27 rows, those of its appendix, or scored by neither average."""

_FIELD = re.compile(r"\{(\w+)\}")
_FIELDS = {"text", "choices", "context", "lang"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a checkpoint is fine-tuned, at one resolution.

    Gradients are clipped at 1, Adam's b2 is 0.999, the schedule a cosine after 5 % warm-up.

    Attributes:
      batch_size: examples per update.
      lr_pg1: peak learning rate of PaliGemma.
      lr_pg2: that of PaliGemma 2 3B, found at 224 px and used at 448 px as well.
      decay: whether weights decay, by a tenth of PaliGemma's rate.
      epochs: passes over the training split.
      label_smoothing: probability taken from the true token.
      dropout: of the language model's residuals.
      freeze_vision: whether the image tower stays as it is.
    """

    batch_size: int = 256
    lr_pg1: float
    lr_pg2: float
    decay: bool = False
    epochs: float
    label_smoothing: float = 0.0
    dropout: float = 0.0
    freeze_vision: bool = False

    @property
    def weight_decay(self) -> float:
        """What is taken off a decaying weight per update, in big_vision's terms."""
        return self.lr_pg1 / 10 if self.decay else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the paper's tables: a split that is scored.

    Attributes:
      titles: its names there, at 224 px first; at 448 px some differ.
      split: of the benchmark's reader.
      suite: which average it belongs to.
      size: examples its authors published in all its splits (images where captions are scored);
        None if unknown.
      resolutions: sides at which the paper's score file has it; none where it has not [pixels].
      averaged: further splits whose mean score, with this one's, is the row's score.
    """

    titles: tuple[str, ...]
    split: str
    suite: Suite = "appendix"
    size: int | None = None
    resolutions: tuple[int, ...] = (224, 448)
    averaged: tuple[str, ...] = ()

    @property
    def splits(self) -> str:
        """All its splits, as "a+b"."""
        return "+".join((self.split, *self.averaged))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How one benchmark is asked, trained and scored.

    Attributes:
      name: also the name of its source.
      config: big_vision's `configs/proj/paligemma/transfers/{config}.py`, where its facts are from.
      prompt: the prefix; {text} is the question, sentence or expression.
      text_len: prefix, separator and suffix together, and decoding's limit [tokens].
      antialias: whether images are filtered when made smaller: "always", "train" only, "never".
      metric: of `model.eval.metrics`; a study asks there whether it exists.
      beams: hypotheses of beam search; 1 is greedy.
      sampling: how training draws one of several targets.
      lower: whether targets are lower-cased.
      tune_split: what models are selected by training on; "" where none is told apart.
      final_split: what is trained on for a test split's score; "a+b" is both. "" for a zero-shot
        benchmark.
      eval_split: what it is scored on, unless one of `rows` is meant.
      rows: its rows in tables.
      num_train: examples of `final_split`, as published; 0 for a zero-shot benchmark.
      recipes: side of the images -> how it is fine-tuned [pixels].
      parent: whose fine-tuned checkpoint is scored, for a zero-shot benchmark.
      num_frames: frames per video; 0 for images.
      frame_stride: distance of the frames at 25 frames a second; 26 is about 1 s [frames].
      eval_window: where the frames of evaluation begin: with the video's, or in its middle.
    """

    name: str
    config: str
    prompt: str
    text_len: int
    antialias: Literal["always", "train", "never"] = "never"
    metric: str
    beams: int = 1
    sampling: SuffixSampling = "without_replacement"
    lower: bool = False
    tune_split: str = ""
    final_split: str = ""
    eval_split: str
    rows: tuple[Row, ...]
    num_train: int = 0
    recipes: Mapping[int, Recipe] = dataclasses.field(default_factory=dict)
    parent: str = ""
    num_frames: int = 0
    frame_stride: int = 0
    eval_window: Literal["first", "centre"] = "first"

    def __post_init__(self) -> None:
        if unknown := fields_of(self.prompt) - _FIELDS:
            raise ValueError(
                f"prompt may hold {', '.join(f'{{{f}}}' for f in sorted(_FIELDS))}, "
                f"got {{{min(unknown)}}} in {self.prompt!r}."
            )
        if bool(self.parent) == bool(self.final_split):
            raise ValueError(
                f"{self.name} must have a final_split or, if it is zero-shot, a parent; got "
                f"final_split={self.final_split!r}, parent={self.parent!r}."
            )

    @property
    def train_split(self) -> str:
        """What a run trains on: never what it is scored on, so for some the tuning split."""
        held_out = _names(self.eval_split) & _names(self.final_split)
        return self.tune_split if held_out else self.final_split

    def prefix(self, text: str = "", **fields: str) -> str:
        """Returns the prefix of one question; what is in `text` is never taken for a field."""
        return fill(self.prompt, text=text, **fields)

    def target(self, text: str) -> str:
        """Returns a training target, lower-cased where this benchmark's are."""
        return text.lower() if self.lower else text


def fill(prompt: str, **fields: str) -> str:
    """Returns a prompt with its {fields} filled in; what they hold is never taken for one."""
    return _FIELD.sub(lambda found: fields[found[1]], prompt)


def fields_of(prompt: str) -> set[str]:
    """Returns the names of the {fields} in a prompt."""
    return set(_FIELD.findall(prompt))


def _names(split: str) -> set[str]:
    """Returns the splits of "a+b[:5%]"."""
    return {one.partition("[")[0] for one in split.split("+")} - {""}


def by_name(*benchmarks: Benchmark) -> dict[str, Benchmark]:
    """Returns the benchmarks of a family by name."""
    return {benchmark.name: benchmark for benchmark in benchmarks}


def zero_shot(parent: Benchmark, **changes: object) -> Benchmark:
    """Returns a benchmark that the checkpoints of `parent` are scored on, asked as it is."""
    none = {"tune_split": "", "final_split": "", "num_train": 0, "recipes": {}}
    return dataclasses.replace(parent, parent=parent.name, **{**none, **changes})  # type: ignore[arg-type]
