"""The configuration of one training stage."""

import dataclasses
import re
from typing import Literal, get_args

from infra.store.digest import NOT_IDENTITY, identity_where
from model.data.config import BatchConfig
from model.prompt.registry import prompt_template
from model.train.lora_config import LoraConfig
from pipelines.records.schema import SuffixSampling

Schedule = Literal["rsqrt", "cosine", "constant"]
SCHEDULES = get_args(Schedule)
SAMPLINGS = get_args(SuffixSampling)

FreezeVision = bool | Literal["all"]
LossWeights = Literal["examples", "tokens"]
"""Of the image's side: nothing keeps its weights, the vision tower (true), or "all"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramGroup:
    """Parameters that learn at another rate than the others, as programs are compiled from them.

    Attributes:
      params: regular expression that their whole paths match: "vision/.*", "text/embedding".
      lr: factor on the stage's learning rate, not on its weight decay (big_vision's rule); 0
        freezes these parameters: they have no gradient, no moments and no part in the clipped norm.
        Any other is an argument of the program.
    """

    params: str
    lr: float = 1.0

    def __post_init__(self) -> None:
        try:
            re.compile(self.params)
        except re.error as error:
            raise ValueError(
                f"groups.params must be a regular expression, got {self.params!r}: {error}."
            ) from None
        # Written with `not`, so that NaN is refused as well.
        if not self.lr >= 0:
            raise ValueError(
                f"groups.lr must be at least 0 (0 freezes the group), got {self.lr!r}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupConfig(ProgramGroup):
    """Parameters that learn at another rate than the others.

    Attributes:
      warmup: linear warm-up [fraction of total steps]; None takes the stage's.
      rsqrt_shift: steps that "rsqrt" counts as already done; None takes the stage's. 0 for
        parameters that are new in a stage that continues another one's schedule [steps].
    """

    warmup: float | None = None
    rsqrt_shift: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup is not None and not 0 <= self.warmup < 1:
            raise ValueError(
                f"groups.warmup must be a fraction of total steps in [0, 1), or none for the "
                f"stage's, got {self.warmup!r}."
            )
        if self.rsqrt_shift is not None and not self.rsqrt_shift >= 0:
            raise ValueError(
                f"groups.rsqrt_shift must be at least 0 [steps], or none for the stage's, got "
                f"{self.rsqrt_shift!r}."
            )


def check_microbatch(value: int | str | None) -> None:
    """Refuses what is no value of `microbatch`.

    Raises:
      ValueError: naming the values that are accepted.
    """
    if value not in (None, "auto") and not (isinstance(value, int) and value >= 1):
        raise ValueError(
            f"microbatch must be at least 1, or null for the whole batch, or auto for what fits, "
            f"got {value!r}."
        )


RECORDED = ("microbatch", "pack")
"""Fields that are no part of an identity, but decide the last bits: a stage's log and record have
the numbers that were used."""


def check_pack(value: int | str | None) -> None:
    """Refuses what is no value of `pack`.

    Raises:
      ValueError: naming the values that are accepted.
    """
    if value not in (None, "auto") and not (type(value) is int and value >= 1):
        raise ValueError(
            f"pack must be at least 1 [tokens per example], or null for texts with their padding, "
            f"or auto for what the data need, got {value!r}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """The part of a stage's configuration that its programs are compiled from.

    `TrainConfig.program` gives it. Stages with equal ones share programs.

    Attributes:
      batch_size: examples per update, over all devices.
      grad_clip: largest global norm of the gradient.
      b2: decay of Adam's second moment.
      label_smoothing: probability moved from the true token to all others.
      loss_weights: what weighs the same in the loss of a batch: examples, each the mean over its
        targets, as in big_vision; or target tokens, as in LLaVA, where long answers count more.
      dropout: rate of dropout in the decoder's two residual branches of each block, element by
        element, as in big_vision's Gemma; embeddings and the image tower have none [fraction].
      text_len: length of prefix, separator and suffix together; longer texts are cut [tokens].
      budgets: soft-token budgets that updates draw from, all equally likely; those that the
        connector does not serve are skipped. None takes every budget that it serves.
      freeze_vision: true: the vision tower keeps its weights; "all": connector and projector do,
        too, as where a recipe of big_vision's freezes `img/.*`.
      freeze_text: whether the decoder keeps its weights, so that connector and projector are
        trained, and the tower, unless `freeze_vision` keeps them. The paper trains the decoder.
      lora: low-rank adapters, trained in place of the decoder's weights and added to them in the
        stage's checkpoint; None has none. The paper trains the weights themselves.
      groups: parameters with their own rate or warm-up; the first group that matches counts.
      num_replicas: fewest copies of weights and moments, each split over its share of the devices;
        reduced to the greatest common divisor with the number of devices. There are more where rows
        of weights do not divide over so many devices (`sharding.mesh_for`). With more copies,
        fewer devices take part in gathering a weight, and each holds more.
      microbatch: most examples that a device computes at a time; of more, it computes equal parts
        one after the other and adds their losses and gradients, which takes less memory. None
        computes all at once; "auto" as many as fit the device by the formula of `memory`.
      exact_shards: number of virtual shards of a batch, a power of two: an update then has the same
        bytes on any number of devices that is one, up to this (see `train.exact`). Each device
        holds whole weights and moments. `microbatch` and `pack`, which are then of a shard, are
        part of the identity. None adds up in the order of the devices.
      pack: places for text that a device has for each example it computes at a time, on average;
        texts are packed into them without their padding. An update whose texts do not fit is
        computed with padding. None, and a number of `text_len` or more, packs nothing; "auto" takes
        as many as the first updates need, and none on a CPU, whose bytes are promised [tokens].
    """

    batch_size: int = 16
    grad_clip: float = 1.0
    b2: float = 0.999
    label_smoothing: float = 0.0
    loss_weights: LossWeights = "examples"
    dropout: float = 0.0
    text_len: int = 64
    budgets: tuple[int, ...] | None = None
    freeze_vision: FreezeVision = False
    freeze_text: bool = False
    lora: LoraConfig | None = None
    groups: tuple[ProgramGroup, ...] = ()
    exact_shards: int | None = None
    num_replicas: int = dataclasses.field(default=1, metadata=NOT_IDENTITY)
    microbatch: int | str | None = dataclasses.field(
        default=None, metadata=identity_where("exact_shards")
    )
    pack: int | str | None = dataclasses.field(
        default="auto", metadata=identity_where("exact_shards")
    )

    def __post_init__(self) -> None:
        # First counts, then rates, then lists; a message names the field as in the YAML.
        for name in ("batch_size", "text_len", "num_replicas"):
            self._require_stage_setting(name, getattr(self, name) >= 1, "at least 1")
        check_microbatch(self.microbatch)
        check_pack(self.pack)
        if self.exact_shards is not None:
            self._check_exact(self.exact_shards)
        self._require_stage_setting("grad_clip", self.grad_clip > 0, "positive")
        self._require_stage_setting("b2", 0 < self.b2 < 1, "in (0, 1)")
        self._require_stage_setting("label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)")
        self._require_stage_setting("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        if self.freeze_vision == "all" and self.freeze_text and self.lora is None:
            raise ValueError(
                "freeze_vision must be true or false where freeze_text is set, got 'all': nothing "
                "would be trained."
            )
        if self.budgets is not None:
            ok = bool(self.budgets) and all(b >= 1 for b in self.budgets)
            self._require_stage_setting(
                "budgets", ok, "a list of positive numbers, or none for the connector's"
            )

    @property
    def text_places(self) -> int:
        """Places for text of each example, on average, where texts are packed; else 0 [tokens]."""
        return self.pack if isinstance(self.pack, int) else 0

    def num_passes(self, rows: int) -> int:
        """Returns the number of equal parts in which a device computes its rows of a batch.

        Raises:
          ValueError: if `microbatch` is "auto", which `memory.with_microbatch` replaces.
        """
        if self.microbatch == "auto":
            raise ValueError("microbatch must be a number or none here, got 'auto'.")
        # 12 rows at most 5 at a time: 3 parts of 4.
        limit = self.microbatch if isinstance(self.microbatch, int) else rows
        return next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= limit)

    def rows_of_part(self, devices: int) -> int:
        """Returns how many rows of a batch a device computes before it adds gradients to others'.

        Args:
          devices: number of devices that share the batch.
        """
        return max(1, self.batch_size // (self.exact_shards or devices))

    def _check_exact(self, shards: int) -> None:
        """Refuses what no virtual shards can be made of."""
        sizes = [2**k for k in range(self.batch_size.bit_length()) if self.batch_size % 2**k == 0]
        accepted = f"one of {', '.join(map(str, sizes))} for batch_size={self.batch_size}, or null"
        self._require_stage_setting(
            "exact_shards", type(shards) is int and shards in sizes, accepted
        )
        if self.microbatch == "auto":
            raise ValueError(
                "microbatch must be a number or null with exact_shards, got 'auto': what fits "
                "differs between devices, and the bytes with it."
            )

    def _require_stage_setting(self, name: str, ok: bool, accepted: str) -> None:
        if not ok:
            raise ValueError(f"{name} must be {accepted}, got {getattr(self, name)!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(ProgramConfig):
    """One training stage: rates and shapes only. Data, model and seed are given separately.

    What it adds to `ProgramConfig` reaches a program as an argument, or not at all.

    Attributes:
      total_steps: number of updates; ignored if `epochs` is set.
      epochs: passes over all records; None uses `total_steps`.
      peak_lr: learning rate after warm-up.
      warmup: linear warm-up [fraction of total steps].
      schedule: after warm-up: "cosine" to zero, "rsqrt" as in pretraining, or "constant".
      rsqrt_timescale: steps after warm-up over which "rsqrt" falls to 1/√2 [steps].
      rsqrt_shift: steps that "rsqrt" counts as already done after warm-up, so that a stage can
        continue the schedule of the stage before it [steps].
      weight_decay: share of a weight that an update removes, times the schedule and not the
        learning rate (big_vision's rule).
      mixture: (part, weight) pairs; empty weights every part by its number of records.
      sampling: how one of several suffixes is drawn when a record is visited. "without_replacement"
        goes through them in a shuffled order, one per visit, and reshuffles after the last;
        "choice" and "uniform", the benchmarks' two words for the same, draw independently.
      max_frames: most images of one example; longer videos are thinned out.
      prompt: prompt template of its texts; None is the model's.
      save_steps: interval between resumable checkpoints [steps].
      log_steps: interval between progress reports [steps].
      sample_steps: interval between answers to a few held-out questions, for the training's page;
        they compile a program more, and need memory for a copy of the weights. 0 gives none
        [steps].
    """

    total_steps: int = 100
    epochs: float | None = None
    peak_lr: float = 1e-3
    warmup: float = 0.05
    schedule: Schedule = "cosine"
    rsqrt_timescale: float = 10_000.0
    rsqrt_shift: float = 0.0
    weight_decay: float = 0.0
    groups: tuple[GroupConfig, ...] = ()
    mixture: tuple[tuple[str, float], ...] = ()
    sampling: SuffixSampling = "without_replacement"
    max_frames: int = 16
    prompt: str | None = None
    save_steps: int = dataclasses.field(default=500, metadata=NOT_IDENTITY)
    log_steps: int = dataclasses.field(default=10, metadata=NOT_IDENTITY)
    sample_steps: int = dataclasses.field(default=0, metadata=NOT_IDENTITY)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("total_steps", "max_frames", "save_steps", "log_steps"):
            self._require_stage_setting(name, getattr(self, name) >= 1, "at least 1")
        self._require_stage_setting("sample_steps", self.sample_steps >= 0, "at least 0 (none)")
        self._require_stage_setting(
            "epochs", self.epochs is None or self.epochs > 0, "positive, or none"
        )
        self._require_stage_setting("peak_lr", self.peak_lr > 0, "positive")
        self._require_stage_setting(
            "warmup", 0 <= self.warmup < 1, "a fraction of total steps in [0, 1)"
        )
        self._require_stage_setting(
            "schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"
        )
        self._require_stage_setting("weight_decay", self.weight_decay >= 0, "at least 0")
        self._require_stage_setting("rsqrt_timescale", self.rsqrt_timescale > 0, "positive [steps]")
        self._require_stage_setting("rsqrt_shift", self.rsqrt_shift >= 0, "at least 0 [steps]")
        self._require_stage_setting(
            "sampling", self.sampling in SAMPLINGS, f"one of {', '.join(SAMPLINGS)}"
        )
        if self.prompt is not None:
            prompt_template(self.prompt)
        ok = all(weight > 0 for _, weight in self.mixture)
        self._require_stage_setting("mixture", ok, "(part, weight) pairs with positive weights")
        # Two weights for one part would leave open which of them counts.
        names = [name for name, _ in self.mixture]
        self._require_stage_setting(
            "mixture", len(set(names)) == len(names), "without repeated parts"
        )

    @property
    def batches(self) -> BatchConfig:
        """The part of this config that the loader reads."""
        names = (field.name for field in dataclasses.fields(BatchConfig))
        return BatchConfig(**{name: getattr(self, name) for name in names})

    @property
    def program(self) -> ProgramConfig:
        """The part of this config that programs are compiled from.

        Of a group's rate, only whether it is 0 (frozen) matters.
        """
        names = (field.name for field in dataclasses.fields(ProgramConfig))
        values = {name: getattr(self, name) for name in names}
        groups = tuple(ProgramGroup(params=g.params, lr=float(g.lr > 0)) for g in self.groups)
        return ProgramConfig(**{**values, "groups": groups})

    def batches_of(self, task: str, batch_size: int) -> BatchConfig:
        """Returns the loader's config for batches of a single task, with another batch size."""
        mixture = ((task, 1.0),)
        return dataclasses.replace(self.batches, mixture=mixture, batch_size=batch_size)

    def in_steps(self, num_records: int) -> "TrainConfig":
        """Returns the same config, with epochs converted to a number of updates."""
        if self.epochs is None:
            return self
        total = max(1, round(self.epochs * num_records / self.batch_size))
        return dataclasses.replace(self, total_steps=total, epochs=None)
