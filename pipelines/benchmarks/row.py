"""The classes that describe one benchmark."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from pipelines.records.schema import SuffixSampling

Suite = Literal["main", "appendix", "other"]
"""Average of the paper that a row belongs to: its 27 main rows, its appendix, or neither."""

_FIELD = re.compile(r"\{(\w+)\}")
_FIELDS = {"text", "choices", "context", "lang"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Hyperparameters of fine-tuning a checkpoint at one resolution.

    Gradients are clipped at 1, Adam's b2 is 0.999, and the schedule is a cosine after 5 % warm-up.

    Attributes:
      batch_size: examples per update.
      lr_pg1: peak learning rate for PaliGemma.
      lr_pg2: peak learning rate for PaliGemma 2 3B, found at 224 px and also used at 448 px; the
        lowest of several that its table has as the best.
      decay: whether weights decay, by a tenth of `lr_pg1`.
      epochs: passes over the training split.
      label_smoothing: probability taken from the true token.
      dropout: dropout rate of the language model's residuals.
      freeze_vision: "all" where big_vision freezes `img/.*`: the tower with its head, which is our
        projector. The connector stands between them, and the paper gives it the projector's
        schedule; so it is frozen as well.
    """

    batch_size: int = 256
    lr_pg1: float
    lr_pg2: float
    decay: bool = False
    epochs: float
    label_smoothing: float = 0.0
    dropout: float = 0.0
    freeze_vision: Literal[False, "all"] = False

    @property
    def weight_decay(self) -> float:
        """The part of a decaying weight that an update removes, in big_vision's convention."""
        return self.lr_pg1 / 10 if self.decay else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One row of the paper's tables: a split that is scored.

    Attributes:
      titles: its titles in the tables, the one at 224 px first; at 448 px some differ.
      split: split of the benchmark's reader.
      suite: the average that it belongs to.
      size: published number of examples in all its splits (of images if captions are scored);
        None if unknown.
      resolutions: image sides at which the paper's score file has it; empty if it has none
        [pixels].
      averaged: further splits; the row's score is the mean over them and `split`.
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
    """Prompt, splits, training recipes and metric of one benchmark.

    Attributes:
      name: name of the benchmark and of its source.
      config: file big_vision `configs/proj/paligemma/transfers/{config}.py`, the source of its
        settings.
      prompt: the prefix; {text} is the question, sentence or expression.
      text_len: limit on prefix, separator and suffix together, and on decoding [tokens].
      antialias: whether images are filtered when made smaller: "always", "train" only, "never".
      metric: name of a metric of `model.eval.metrics`, for answers of a fine-tuned checkpoint.
      zero_shot_metric: the one for zero-shot answers; "" is the same.
      beams: hypotheses of beam search; 1 is greedy.
      sampling: method by which training draws one of several targets.
      lower: whether targets are lower-cased.
      tune_split: training split for selecting models; "" if there is no separate one.
      final_split: training split for the final score on a test split, for example "train+val"; ""
        for a zero-shot benchmark.
      eval_split: split on which it is scored, unless a split of `rows` is given.
      rows: its rows in the paper's tables.
      num_train: examples of `final_split`, as published; 0 for a zero-shot benchmark.
      recipes: side of the images [pixels] -> recipe of its fine-tuning.
      parent: for a zero-shot benchmark, the benchmark whose fine-tuned checkpoint is scored; "" if
        it is scored with a pretraining's only.
      num_frames: frames per video; 0 for images.
      frame_stride: distance between frames, counted at 25 frames a second; 26 is about 1 s
        [frames].
      eval_window: start of the frames of evaluation: the video's start, or centred in it.
    """

    name: str
    config: str
    prompt: str
    text_len: int
    antialias: Literal["always", "train", "never"] = "never"
    metric: str
    zero_shot_metric: str = ""
    beams: int = 1
    sampling: SuffixSampling = "without_replacement"
    lower: bool = False
    tune_split: str = ""
    final_split: str = ""
    eval_split: str
    rows: tuple[ResultRow, ...]
    num_train: int = 0
    recipes: Mapping[int, FinetuneRecipe] = dataclasses.field(default_factory=dict)
    parent: str = ""
    num_frames: int = 0
    frame_stride: int = 0
    eval_window: Literal["first", "centre"] = "first"

    def __post_init__(self) -> None:
        # A field that no reader fills would be an error at the first question.
        if unknown := prompt_fields(self.prompt) - _FIELDS:
            raise ValueError(
                f"prompt may hold {', '.join(f'{{{f}}}' for f in sorted(_FIELDS))}, "
                f"got {{{min(unknown)}}} in {self.prompt!r}."
            )
        # Either it is trained, or it is scored with a checkpoint that its parent trained; with
        # neither, with that of a pretraining stage.
        if self.parent and self.final_split:
            raise ValueError(
                f"{self.name} must have a final_split or, if it is zero-shot, a parent; got "
                f"final_split={self.final_split!r}, parent={self.parent!r}."
            )

    @property
    def train_split(self) -> str:
        """The split that a run trains on: `tune_split` if `final_split` overlaps `eval_split`."""
        # VQAv2 trains on "train+val" for its final score and is scored on "val[-10240:]": both have
        # val, so a run trains on `tune_split`, "train+val[:-10240]".
        held_out = _split_names(self.eval_split) & _split_names(self.final_split)
        return self.tune_split if held_out else self.final_split

    def prefix(self, text: str = "", **fields: str) -> str:
        """Returns the prefix of one question; braces in `text` are not taken for fields."""
        return fill_prompt(self.prompt, text=text, **fields)

    def target(self, text: str) -> str:
        """Returns a training target, lower-cased if `lower` is set."""
        return text.lower() if self.lower else text


def fill_prompt(prompt: str, **fields: str) -> str:
    """Returns a prompt with its {fields} filled in; braces in their values are not fields."""
    return _FIELD.sub(lambda field: fields[field[1]], prompt)


def prompt_fields(prompt: str) -> set[str]:
    """Returns the names of the {fields} in a prompt."""
    return set(_FIELD.findall(prompt))


def _split_names(split: str) -> set[str]:
    """Returns the names of the splits in "a+b[:5%]", without bounds."""
    return {part.partition("[")[0] for part in split.split("+")} - {""}


def zero_shot(parent: Benchmark, **changes: object) -> Benchmark:
    """Returns a benchmark on which checkpoints of `parent` are scored, with the parent's prompt."""
    untrained = {"tune_split": "", "final_split": "", "num_train": 0, "recipes": {}}
    return dataclasses.replace(parent, parent=parent.name, **{**untrained, **changes})  # type: ignore[arg-type]
