"""The benchmarks: prompts, splits, frames, metrics. One row each; everything else looks here.

Source: big_vision `configs/proj/paligemma/transfers/{chartqa,refcoco_seg,msvd_qa,nlvr2}.py`.
"""

import dataclasses

METRICS = (
    "exact_match",
    "vqa",
    "vqa_lower",
    "vqav2",
    "anls",
    "relaxed_accuracy",
    "tallyqa",
    "cider",
    "science_qa",
    "rsvqa",
    "nlvr",
    "pope",
    "miou",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How one benchmark is asked and scored.

    Attributes:
      name: also the name of its source.
      prompt: the prefix; "{text}" is the question, sentence or expression.
      text_len: prefix, separator and suffix together, and decoding's limit [tokens].
      antialias: whether images are filtered when made smaller.
      metric: one of `METRICS`.
      train_split: what a reported run trains on; "a+b" is both.
      eval_split: what it is scored on.
      num_frames: frames per video; 0 for images.
      frame_stride: distance of the frames at 25 frames a second [frames]; 26 is about 1 s.
    """

    name: str
    prompt: str
    text_len: int
    antialias: bool
    metric: str
    train_split: str
    eval_split: str
    num_frames: int = 0
    frame_stride: int = 0

    def __post_init__(self) -> None:
        if "{text}" not in self.prompt:
            raise ValueError(f"prompt must contain {{text}}, got {self.prompt!r}.")
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}.")

    def prefix(self, text: str) -> str:
        """Returns the prefix of one question."""
        return self.prompt.replace("{text}", text)


_ROWS = (
    Benchmark(
        name="chartqa",
        prompt="{text}",
        text_len=48,
        antialias=True,
        metric="relaxed_accuracy",
        train_split="train+val",
        eval_split="test",
    ),
    Benchmark(
        name="msvd_qa",
        prompt="answer en {text}",
        text_len=64,
        antialias=False,
        metric="exact_match",
        train_split="train+val",
        eval_split="test",
        num_frames=8,
        frame_stride=26,
    ),
    Benchmark(
        name="nlvr",
        prompt="answer en {text}",
        text_len=64,
        antialias=False,
        metric="exact_match",
        train_split="train+dev",
        eval_split="test",
    ),
    Benchmark(
        name="refcoco",
        prompt="{text}",
        text_len=48,
        antialias=False,
        metric="miou",
        train_split="train",
        eval_split="val",
    ),
)

BENCHMARKS: dict[str, Benchmark] = {row.name: row for row in _ROWS}


def get(name: str) -> Benchmark:
    """Returns a benchmark.

    Raises:
      ValueError: if there is none of that name, with the list of those there are.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"benchmark must be one of {', '.join(BENCHMARKS)}, got {name!r}.")
    return BENCHMARKS[name]
