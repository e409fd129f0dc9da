"""The config of a whole study: data, model, stages, transfers, methods × budgets × seeds."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field, model_validator

from flows.config.backbone import AS_STUDY, BackboneConfig
from flows.config.benchmark import (
    EvalRow,
    TransferConfig,
    benchmark_of,
    check_splits,
    check_transfer,
    recipe_of,
    rows_of,
    trained_on,
    training_of,
)
from flows.config.compute import ComputeConfig
from flows.config.disk_use import KeepConfig
from flows.config.held_out import check_held_out, check_screened, check_watched
from flows.config.image_size import check_image_px
from flows.config.normalise import normalise, parse
from flows.config.references import corpus_reference, offered_connectors
from flows.config.source import SourceConfig
from flows.config.stage import RESERVED, StageConfig
from flows.config.stage2 import ResolutionConfig, Stage2Config, scale_budget
from flows.config.user_step import UserStep, load_user_step
from flows.config.variant import Variant
from flows.config.watched import WatchedConfig
from flows.report.cell_text import drawn_budgets_text
from flows.steps.kinds.tokenizer import TokenizerConfig
from model.config import ModelConfig
from model.connector.budgets import supported_budgets
from model.connector.config import ConnectorConfig
from model.connector.registry import KINDS
from model.connector.routing import halves
from model.masks.config import MaskCodecConfig
from model.train.config import TrainConfig
from pipelines.hygiene.screen import HygieneConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.codes import EXTRA_TOKENS
from pipelines.sources.registry import SOURCES
from pipelines.synthetic.config import CorpusConfig

Method = str
"""Name of a compared method: a connector of the registry, a user's connector class as
"module:Class", or one of the study's variants."""
REFERENCE: Method = "vanilla"
"""The method whose score counts as 100 % retention; its only budget is all tokens."""


BackboneName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+_-]*$", max_length=60)]

VariantName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]


def offer_connectors(schema: dict[str, Any]) -> None:
    """Adds the connectors that have a name to the JSON schema of a method, for forms to offer."""
    schema["enum"] = offered_connectors()


_Resolution = TypeVar("_Resolution", Stage2Config, ResolutionConfig)

SEED_RANGE = (10_000, 100_000)
"""Range that transfer seeds are drawn from. Source: PARCEL, app. Implementation Details."""

MAX_PRETRAIN_SEEDS = 20
"""Most pretraining seeds of a study; each has its own part of the range of transfer seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Methods × benchmarks × seeds × budgets, from raw data to the results table.

    Attributes:
      name: the study's name, in lower-case letters, digits and dashes.
      seed: master seed, from which the seeds of all stages and transfers are derived.
      methods: connectors to compare: names of the registry; your own classes as "file.py:Class",
        "module:Class" or entry points of `parcel.connectors`; or names of `variants`.
      budgets: soft tokens per frame at evaluation; a method is evaluated at those it serves, and
        vanilla at all tokens only.
      train_budgets: method -> the budgets that its intermediary stage and its transfers draw from,
        each equally often in expectation; a method that is not named draws uniformly from all that
        it serves, as in the paper.
      variants: methods trained in another way, by the names under which they are compared.
      num_seeds: transfer seeds of each pretraining seed, shared by all methods; raising it keeps
        the earlier seeds.
      num_pretrain_seeds: how often Stage 1 and the intermediaries are trained; the paper: once.
      data_root: folder with the raw corpora; None renders the synthetic corpus.
      corpus: the synthetic corpus; unused where `data_root` is given.
      sources: corpora of the Stage-1 mixture.
      licences: {allow: [CC-BY-4.0, …]} drops the records of other licences, and those that state
        none, from all that checkpoints learn from; evaluation splits stay whole. None allows all.
      prepare: how raw data become records.
      hygiene: screening of the mixture for duplicates and for pictures of the benchmarks' splits;
        None skips it.
      tokenizer: the tokenizer that all methods share.
      mask_codec: the mask codec that all methods share; None where no data have masks.
      model: the model that all methods share, but for their connectors.
      backbones: name -> a tower and a decoder to compare the methods on, with what else differs;
        a list of names VISION+TEXT is the short form. Each is a study of its own in one table, and
        retention is against vanilla of the same backbone. Without any, the study has `model`.
      connector_files: method -> file of its connector, for your own classes; filled in
        automatically, so that other processes on the machine find them.
      connectors: method or variant -> settings of its connector; `kind` is filled in. A variant
        that is not named has those of its `of`, another method those of `model.connector`.
      start: checkpoint that the first stage starts from: a folder of ours, an `.npz` of big_vision,
        or safetensors of Hugging Face; None starts from random parameters. With it,
        `tokenizer.path` must be the checkpoint's tokenizer. Without `stage1` it may be one
        checkpoint per method, {parcel: …, mqt: …}, each with the method's connector or none.
      stage1: vanilla pretraining; None leaves it out and begins with `start`.
      intermediary: pretraining of each method, from Stage 1; None leaves it out.
      stage2: pretraining of each method at a higher resolution, and transfers there; None leaves
        both out.
      stages: further pretraining stages, each after another one; transfers and Stage 2 begin from
        the last stage of their method.
      watch: measurements on held-out data while stages train; None makes none.
      softcaps_in_transfers: whether transfers keep the model's soft-caps; the paper's do not,
        big_vision's recipe does.
      transfers: benchmark -> how it is fine-tuned on and evaluated; whatever is left out comes from
        the registry's recipe.
      steps: steps of your own: "file.py:Class", "module:Class", or {step: …, settings: {…}}.
      eval_batch_size: examples decoded together.
      compute: where steps run and with which resources.
      keep: which of the study's files `parcel gc` keeps.
      paper: whether the study is meant to be the paper's. What it does otherwise, and what is ours
        where the paper says nothing, is then counted at each run, and listed by `--explain`.
      statements: the keys that the file, the command or the form states, with their values; filled
        in automatically, so that a value of the user's can be told from a default or a recipe.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)] = "study"
    seed: Annotated[int, Field(ge=0)] = 0
    methods: Annotated[
        tuple[Method, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True})
    ] = ("vanilla", "m3", "mqt", "parcel")
    budgets: Annotated[
        tuple[Annotated[int, Field(ge=1, le=1024)], ...],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    ] = (16, 64, 256)
    train_budgets: dict[Method, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    variants: dict[VariantName, Variant] = dataclasses.field(default_factory=dict)
    num_seeds: Annotated[int, Field(ge=1, le=100)] = 3
    num_pretrain_seeds: Annotated[int, Field(ge=1, le=MAX_PRETRAIN_SEEDS)] = 1
    data_root: str | None = None
    corpus: CorpusConfig = CorpusConfig()
    sources: tuple[SourceConfig, ...] = (SourceConfig(reader="web"),)
    licences: LicencesConfig | None = None
    prepare: PrepareConfig = PrepareConfig()
    hygiene: HygieneConfig | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    mask_codec: MaskCodecConfig | None = MaskCodecConfig()
    model: ModelConfig = ModelConfig()
    backbones: dict[BackboneName, BackboneConfig] = dataclasses.field(default_factory=dict)
    connector_files: dict[Method, str] = dataclasses.field(default_factory=dict)
    connectors: dict[Method, ConnectorConfig] = dataclasses.field(default_factory=dict)
    start: str | dict[Method, str] | None = None
    stage1: TrainConfig | None = TrainConfig()
    intermediary: TrainConfig | None = TrainConfig()
    stage2: Stage2Config | None = None
    stages: tuple[StageConfig, ...] = ()
    watch: WatchedConfig | None = None
    softcaps_in_transfers: bool = False
    transfers: dict[str, TransferConfig] = dataclasses.field(default_factory=dict)
    steps: tuple[UserStep, ...] = ()
    eval_batch_size: Annotated[int, Field(ge=1)] = 32
    compute: ComputeConfig = ComputeConfig()
    keep: KeepConfig = KeepConfig()
    paper: bool = False
    statements: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        # The record of a run, and what is sent to another process, has them from when it was read.
        statements = values.get("statements") or dict(values)
        return {**normalise(parse(values)), "statements": statements}

    def __post_init__(self) -> None:
        for field in ("methods", "budgets"):
            values = getattr(self, field)
            if len(set(values)) != len(values):
                raise ValueError(f"{field} must not repeat a value, got {list(values)}.")
        # Names first: all checks below look readers, splits and benchmarks up by them.
        for i, source in enumerate(self.sources):
            reader = corpus_reference(f"sources.{i}.reader", source.reader)
            if source.reader not in SOURCES and not source.path:
                raise ValueError(
                    f"sources.{i}.path must be given, the folder below data_root that "
                    f"{source.reader} reads."
                )
            check_splits(f"sources.{i}.split", reader, source.split)
        for name, transfer in self.transfers.items():
            check_transfer(name, transfer)
        for i, step in enumerate(self.steps):
            load_user_step(f"steps.{i}", step)
        if self.backbones:
            # Each backbone is checked as a whole; the study by itself need not be one.
            _ = self.pairs
            return
        check_held_out(self.sources, self.transfers)
        check_screened(self.hygiene, self.sources, self.transfers)
        if self.watch is not None:
            self._check_watch(self.watch)
        check_image_px(self.model.vision.image_px, self.prepare, self.sources, self.transfers)
        # A tokenizer of the user's own is opened later; one trained here has a known size.
        vocabulary = self.tokenizer.vocab_size + len(EXTRA_TOKENS)
        if self.tokenizer.path is None and self.model.text.vocab_size != vocabulary:
            raise ValueError(
                f"model.text.vocab_size must be tokenizer.vocab_size + {len(EXTRA_TOKENS)} = "
                f"{vocabulary}, got {self.model.text.vocab_size}."
            )
        if not self.model.template.reads_question:
            raise ValueError(
                f"model.prompt must be a template with questions, got {self.model.prompt}, which "
                f"is for a stage's train.prompt."
            )
        # Budgets of queries are even, and those of pooled grids, all tokens among them, may be odd.
        full = self.model.vision.num_patches
        squares = {side * side for side in halves(self.model.vision.grid)}
        if wrong := [b for b in self.budgets if b not in squares and (b > full or b % 2)]:
            raise ValueError(
                f"budgets: no method serves {wrong}. Accepted: even ones from 2 to {full}."
            )
        self._check_variants()
        for method in self.methods:
            self._check_budgets(method)
        self._check_all_budgets_served()
        for method, budgets in self.train_budgets.items():
            self._check_train_budgets(f"train_budgets.{method}", method, budgets)
        for name, variant in self.variants.items():
            if variant.train_budgets is not None:
                field = f"variants.{name}.train_budgets"
                self._check_train_budgets(field, name, variant.train_budgets)
        self._check_stages()
        self._check_processes()

    def _check_processes(self) -> None:
        # Each training with the part of `compute` that says how many processes share its batches.
        tunings = {f"transfers.{name}.train": train for name, train in self.fine_tunings.items()}
        trainings: dict[str, tuple[str, TrainConfig | None]] = {
            "stage1": ("stage", self.stage1),
            "intermediary": ("cell", self.intermediary),
            "stage2.train": ("cell", self.stage2 and self.stage2.train),
            **{f"stages.{i}.train": ("cell", stage.train) for i, stage in enumerate(self.stages)},
            **{name: ("transfer", train) for name, train in tunings.items()},
        }
        compute = self.compute
        for name, (what, train) in trainings.items():
            processes: int = getattr(compute, f"{what}_processes")
            if train is None or processes == 1:
                continue
            field = f"processes_per_{'stage' if what == 'stage' else 'cell'}"
            known = getattr(compute, field) is not None
            number = f"{processes}" if known else f"{processes}, the hosts of {compute.topology}"
            if train.batch_size % processes:
                raise ValueError(
                    f"compute.{field} must divide {name}.batch_size={train.batch_size}, got "
                    f"{number}."
                )
            # The probe runs inside a stage, in the same processes, with a batch of its own.
            probe = self.watch and self.watch.probe
            if probe and name not in tunings and probe.benchmark in self.fine_tunings:
                recipe = self.fine_tunings[probe.benchmark]
                size = probe.batch_size or recipe.batch_size
                if size % processes:
                    raise ValueError(
                        f"compute.{field} must divide the batch of watch.probe, {size}, got "
                        f"{number}; set watch.probe.batch_size."
                    )

    def _check_stages(self) -> None:
        if self.stage1 is None and self.start is None:
            raise ValueError(
                "stage1 or start must be given: training needs one of them to begin with."
            )
        # One start per method leaves nothing for a shared Stage 1 to begin with.
        if isinstance(self.start, dict):
            if self.stage1 is not None:
                raise ValueError(
                    f"start must be one checkpoint where stage1 is given, got one for each of "
                    f"{', '.join(self.start)}; leave out stage1 (null), or start from a vanilla "
                    f"checkpoint."
                )
            # Variants start from the checkpoint of the connector that they are variants of.
            needed = dict.fromkeys(map(self.connector_of, self.methods))
            if missing := [method for method in needed if method not in self.start]:
                raise ValueError(
                    f"start must have a checkpoint for every method, got none for "
                    f"{', '.join(missing)}."
                )
        if self.zero_shot and self.num_seeds > 1:
            raise ValueError(
                f"num_seeds must be 1 where transfers.{self.zero_shot[0]} is zero_shot, got "
                f"{self.num_seeds}: such scores differ by pretraining alone (num_pretrain_seeds). "
                f"Benchmarks to fine-tune on with several seeds are a study of their own, which "
                f"reuses the stages."
            )
        self._check_zero_shot_stages()
        _ = self._stage_places
        is_trained = self.stage1 is not None or self.intermediary is not None or self.stages
        if not is_trained and self.num_pretrain_seeds > 1:
            raise ValueError(
                f"num_pretrain_seeds must be 1 without stage1 and intermediary, got "
                f"{self.num_pretrain_seeds}: all of them would begin with the same parameters."
            )
        # Building the other views checks each as a whole: budgets, transfers, sizes.
        _ = self.resolutions

    def _check_zero_shot_stages(self) -> None:
        # A start has its own connector, or none: only vanilla is what it says it is.
        stages = [stage for stage in self.stages if stage.resolution is None]
        if not self.zero_shot or self.stage1 or self.intermediary or self.at:
            return
        trained = {m for stage in stages for m in stage.methods or self.methods}
        for method in self.methods:
            if method not in trained and self.connector_of(method) != REFERENCE:
                raise ValueError(
                    f"transfers.{self.zero_shot[0]}.zero_shot must come with a stage that trains "
                    f"{method}, got none: only {REFERENCE} can be scored as it starts."
                )

    @functools.cached_property
    def _stage_places(self) -> dict[str, tuple[int, tuple[Method, ...]]]:
        """Stage -> its resolution [pixels], and the methods that there are at that resolution.

        Raises:
          ValueError: if a stage continues from none before it, or does not fit that one.
        """
        # A stage continues from one that stands before it, so no two can wait for each other.
        own = {"start": self.start, "stage1": self.stage1, "intermediary": self.intermediary}
        px = self.model.vision.image_px
        if self.stage2 is not None and self.stage2.image_px <= px:
            raise ValueError(
                f"stage2.image_px must be above model.vision.image_px={px}, got "
                f"{self.stage2.image_px}."
            )
        places = {name: (px, self.methods) for name, value in own.items() if value}
        if self.stage2 is not None:
            places["stage2"] = self.stage2.image_px, self.methods
        # One of the study's own has the resolution and the methods of the stage that it continues
        # from, unless it states others.
        for i, stage in enumerate(self.stages):
            if stage.name in (*RESERVED, *places):
                raise ValueError(
                    f"stages.{i}.name must be a name of its own, got {stage.name!r}; other steps "
                    f"are called {', '.join(dict.fromkeys((*RESERVED, *places)))}."
                )
            if stage.after not in places:
                raise ValueError(
                    f"stages.{i}.after must be a stage that the study has before it, "
                    f"{', '.join(places)}, got {stage.after!r}."
                )
            px, methods = places[stage.after]
            if unknown := [m for m in stage.methods or () if m not in methods]:
                raise ValueError(
                    f"stages.{i}.methods must be methods of the study at {px} px, "
                    f"{', '.join(methods)}, got {unknown[0]!r}."
                )
            if stage.resolution is not None:
                below, taken = px, sorted({other for other, _ in places.values()})
                px, methods = stage.resolution.image_px, stage.methods or methods
                # Steps are named by their resolution, so no two may have the same.
                if px <= below or px in taken:
                    raise ValueError(
                        f"stages.{i}.resolution.image_px must be above that of {stage.after}, and "
                        f"none that the study has, {', '.join(map(str, taken))}, got {px}."
                    )
            places[stage.name] = px, methods
        return places

    @property
    def backbone(self) -> str:
        """Name of the backbone, where the study has several; "" elsewhere."""
        return ""

    @property
    def is_higher(self) -> bool:
        """Whether this is the view of a study at a higher resolution than its own."""
        return False

    @property
    def on(self) -> str:
        """Suffix that the names of steps and rows have of the backbone: "" or "@siglip2+gemma3"."""
        return f"@{self.backbone}" if self.backbone else ""

    @property
    def at(self) -> str:
        """Suffix of the names of steps and rows; "" at the only backbone's own resolution."""
        return self.on

    def role_of(self, name: str) -> str:
        """Returns the name that a dataset has in a study of this backbone alone.

        Steps know what they read by it, so that both studies have the same steps.
        """
        return name.replace(self.on, "", 1) if self.on else name

    @property
    def prefix(self) -> str:
        """Beginning of the config keys of what a resolution has of its own, such as transfers."""
        return ""

    @property
    def backbone_keys(self) -> Mapping[str, str]:
        """Setting -> its config key, of what a backbone states in the place of the study."""
        return {}

    @functools.cached_property
    def pairs(self) -> "tuple[StudyConfig, ...]":
        """A study for each backbone, as it would be alone; without `backbones`, the study itself.

        Raises:
          ValueError: if a backbone makes no study, or two are the same.
        """
        pairs: dict[str, StudyView] = {}
        for name, backbone in self.backbones.items():
            try:
                pairs[name] = _pair_of(self, name, backbone)
            except ValueError as error:
                raise ValueError(f"backbones.{name}: {error}") from None
        for (first, pair), (second, other) in itertools.combinations(pairs.items(), 2):
            names = {"name_on": "", "keys_on": {}}
            if _values_of(pair) | names == _values_of(other) | names:
                raise ValueError(
                    f"backbones must differ, got {first} and {second}, which are the same; leave "
                    f"one out, or state what differs."
                )
        return (*pairs.values(),) or (self,)

    @property
    def views(self) -> "tuple[StudyConfig, ...]":
        """The study at every resolution of every backbone."""
        return tuple(view for pair in self.pairs for view in pair.resolutions)

    @functools.cached_property
    def resolutions(self) -> "tuple[StudyConfig, ...]":
        """One backbone at its own resolution, then at those of Stage 2 and of the own stages."""
        higher = [("stage2", "stage2", self.stage2)]
        higher += [
            (f"stages.{i}.resolution", stage.name, stage.resolution)
            for i, stage in enumerate(self.stages)
        ]
        views: list[StudyConfig] = [self]
        for key, name, resolution in higher:
            if resolution is not None:
                _, methods = self._stage_places[name]
                try:
                    views.append(_view_at(self, key, resolution, methods))
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
        return tuple(views)

    def _check_watch(self, watch: WatchedConfig) -> None:
        for i, source in enumerate(watch.sources):
            reader = corpus_reference(f"watch.sources.{i}.reader", source.reader)
            check_splits(f"watch.sources.{i}.split", reader, source.split)
        check_watched(self.sources, watch.sources)
        if watch.probe and watch.probe.benchmark not in self.fine_tunings and not self.is_higher:
            raise ValueError(
                f"watch.probe.benchmark must be a transfer of the study, "
                f"{', '.join(self.fine_tunings) or 'of which there is none'}, got "
                f"{watch.probe.benchmark!r}."
            )

    def _check_budgets(self, method: Method) -> None:
        if self.budgets_of(method):
            return
        if method == REFERENCE:
            raise ValueError(
                f"budgets must hold {self._budgets_text(method)}, all tokens, where {REFERENCE} is "
                f"compared, got {list(self.budgets)}."
            )
        raise ValueError(
            f"budgets: {method} serves none of {list(self.budgets)}; it serves "
            f"{self._budgets_text(method)}. Add one of these, or leave the method out."
        )

    def _check_all_budgets_served(self) -> None:
        # Views have the study's budgets, fitted to other patches. A study of vanilla alone, say by
        # `methods=[vanilla]`, has those of its base; a line says what stays empty.
        served = {method: supported_budgets(self.model_of(method)) for method in self.methods}
        is_elastic = any(len(budgets) > 1 for budgets in served.values())
        if isinstance(self, StudyView) or not is_elastic or not (empty := self._unserved_budgets()):
            return
        texts = (f"{method} {self._budgets_text(method)}" for method in self.methods)
        raise ValueError(
            f"budgets: no method of the study serves {empty}; they serve {'; '.join(texts)}. Leave "
            f"them out, or add a method that does."
        )

    def _check_variants(self) -> None:
        # A name means one thing: a connector, or a variant of one.
        for name, variant in self.variants.items():
            if name in KINDS:
                raise ValueError(
                    f"variants.{name} must have a name that is no connector's, got {name!r}; "
                    f"choose another."
                )
            if name in self.train_budgets:
                raise ValueError(
                    f"train_budgets must hold methods that are no variants, got {name!r}; state "
                    f"its budgets as variants.{name}.train_budgets."
                )
            if variant.of in self.variants:
                raise ValueError(f"variants.{name}.of must be a connector, got {variant.of!r}.")

    def _check_train_budgets(self, field: str, method: Method, budgets: tuple[int, ...]) -> None:
        served_budgets = supported_budgets(self.model_of(method))
        if (
            not budgets
            or len(set(budgets)) != len(budgets)
            or not set(budgets) <= set(served_budgets)
        ):
            raise ValueError(
                f"{field} must be distinct budgets that {method} serves, "
                f"{self._budgets_text(method)}, got {list(budgets)}; without it all of them are "
                f"drawn."
            )

    def _budgets_text(self, method: Method) -> str:
        served_budgets = supported_budgets(self.model_of(method))
        if len(served_budgets) < 10:
            return ", ".join(str(budget) for budget in served_budgets)
        return f"{served_budgets[0]}…{served_budgets[-1]}, even ones"

    def budgets_of(self, method: Method) -> tuple[int, ...]:
        """Returns the budgets of the study that a method serves, at which it is evaluated."""
        served_budgets = supported_budgets(self.model_of(method))
        return tuple(budget for budget in self.budgets if budget in served_budgets)

    def connector_of(self, method: Method) -> str:
        """Returns the connector of a method: itself, unless it is a variant of another one."""
        return self.variants[method].of if method in self.variants else method

    def model_of(self, method: Method, *, transfer: bool = False) -> ModelConfig:
        """Returns the model with a method's connector.

        Args:
          method: the method.
          transfer: whether the model is for a transfer. It then has no soft-caps, as in the paper
            (app. Implementation Details), unless `softcaps_in_transfers` is set.
        """
        kind = self.connector_of(method)
        usual = self.connectors.get(kind, self.model.connector)
        connector = self.connectors.get(method, usual)
        without = transfer and not self.softcaps_in_transfers
        caps = {"attn_softcap": 0.0, "final_softcap": 0.0} if without else {}
        return dataclasses.replace(self.model, connector=connector.of_kind(kind), **caps)

    def train_config_for(self, train: TrainConfig, method: Method) -> TrainConfig:
        """Returns a training recipe with the method's training budgets and a variant's length."""
        train = self.in_parts(train)
        if method in self.variants:
            return self.variants[method].trained(train)
        budgets = self.train_budgets_of(method)
        return train if budgets is None else dataclasses.replace(train, budgets=budgets)

    def train_budgets_of(self, method: Method) -> tuple[int, ...] | None:
        """Returns the budgets that a method's trainings draw from, if the study states any.

        A method that `train_budgets` does not name, such as a connector of one's own or one that a
        sweep adds, draws as those that it names; None where these differ, or none is named.
        """
        if method in self.train_budgets:
            return self.train_budgets[method]
        served_budgets = supported_budgets(self.model_of(method))
        # With one budget nothing is drawn, and the recipe stays as it is.
        if len(served_budgets) == 1:
            return None
        return tuple(b for b in self._shared_budgets if b in served_budgets) or None

    @functools.cached_property
    def _shared_budgets(self) -> tuple[int, ...]:
        """The list that all of `train_budgets` are taken from; empty if there is no such list."""
        #   m3: [4, 16, 64]   parcel: [16, 64]       4, 16, 64: PARCEL serves no 4
        #   m3: [16]          parcel: [16, 64]       none: M³ serves 64, and does not draw it
        listed = tuple(dict.fromkeys(b for budgets in self.train_budgets.values() for b in budgets))
        for method, budgets in self.train_budgets.items():
            if {*budgets} != {*listed} & {*supported_budgets(self.model_of(method))}:
                return ()
        return listed

    def draws(self) -> dict[Method, tuple[int, ...]]:
        """Returns the budgets that elastic methods draw from where they do not draw alike.

        Method -> budgets, () for all that it serves; empty where each draws from what it serves of
        one list.
        """
        served = {
            method: {*budgets}
            for method in self.methods
            if len(budgets := supported_budgets(self.model_of(method))) > 1
        }
        trainings = [*filter(None, (self.intermediary, *self.fine_tunings.values()))]
        for train in trainings:
            drawn = {method: self.train_config_for(train, method).budgets for method in served}
            # One that draws from all it serves makes the list that of all budgets.
            lists = served if None in drawn.values() else drawn
            one_list = set().union(*(lists[m] or served[m] for m in served))
            if any({*(drawn[m] or served[m])} != one_list & served[m] for m in served):
                return {method: budgets or () for method, budgets in drawn.items()}
        return {}

    def describe_draws(self) -> Iterator[str]:
        """Yields a line for each view of the study whose elastic methods do not draw alike."""
        for view in self.views:
            if draws := view.draws():
                yield f"warning: {drawn_budgets_text(draws, view.at[1:])}"

    def describe_empty_budgets(self) -> Iterator[str]:
        """Yields a line if no method of a study without elastic methods serves some budgets."""
        for view in self.views:
            if empty := view._unserved_budgets():
                yield (
                    f"warning: budgets {', '.join(map(str, empty))}: no method of the study serves "
                    f"them{f' at {view.at[1:]}' if view.at else ''}; their columns stay empty."
                )

    def _unserved_budgets(self) -> list[int]:
        served_budgets = {budget for method in self.methods for budget in self.budgets_of(method)}
        return [budget for budget in self.budgets if budget not in served_budgets]

    def in_parts(self, train: TrainConfig) -> TrainConfig:
        """Returns a training recipe with the study's `microbatch`, unless it states its own."""
        if train.microbatch is not None or self.compute.microbatch is None:
            return train
        return dataclasses.replace(train, microbatch=self.compute.microbatch)

    def fine_tuning_of(self, benchmark: str, method: Method) -> TrainConfig:
        """Returns the recipe by which a method is fine-tuned on one of `fine_tunings`."""
        return self.train_config_for(self.fine_tunings[benchmark], method)

    def describe_budgets(self) -> Iterator[str]:
        """Yields the warnings about budgets that are seldom meant: see the three below."""
        yield from self.describe_undrawn_budgets()
        yield from self.describe_draws()
        yield from self.describe_empty_budgets()

    def describe_undrawn_budgets(self) -> Iterator[str]:
        """Yields a warning for each group of methods scored at budgets that no training draws.

        Such a cell is not wrong, but it says how a method extrapolates, which is seldom meant.
        """
        methods_by_budgets: dict[tuple[int, ...], list[str]] = {}
        for view in self.views:
            for method in view.methods:
                drawn = {view.fine_tuning_of(name, method).budgets for name in view.fine_tunings}
                # None: all that the method serves.
                trained = {budget for budgets in drawn for budget in budgets or view.budgets}
                undrawn = tuple(b for b in view.budgets_of(method) if b not in trained)
                if drawn and undrawn:
                    methods_by_budgets.setdefault(undrawn, []).append(f"{method}{view.at}")
        for budgets, methods in methods_by_budgets.items():
            yield (
                f"warning: budgets {', '.join(map(str, budgets))} are scored and no training of "
                f"{', '.join(methods)} draws them; name them in train_budgets, too, or leave "
                f"train_budgets out, to draw from all."
            )

    def reference_of(self, method: Method) -> str:
        """Returns the name of a method, with its class's file, for another process to resolve."""
        file = self.connector_files.get(method)
        return f"{file}:{method.partition(':')[2]}" if file else method

    @property
    def input_paths(self) -> dict[str, str]:
        """Config key -> path of a file that the study reads instead of making it."""
        if self.backbones:
            return {
                f"backbones.{name}.{key}": path
                for name, pair in zip(self.backbones, self.pairs, strict=True)
                for key, path in pair.input_paths.items()
            }
        codec = self.mask_codec.path if self.mask_codec else None
        paths = {
            "tokenizer.path": self.tokenizer.path,
            "mask_codec.path": codec,
            **(
                _start_paths_by_method(self.start)
                if isinstance(self.start, dict)
                else {"start": self.start}
            ),
        }
        return {key: path for key, path in paths.items() if path is not None}

    @property
    def seed_pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs (number of the pretraining seed, transfer seed), the same for every method.

        One shuffled list of `SEED_RANGE` is cut into a part per pretraining, and each pretraining
        takes its transfer seeds from the start of its part. So adding seeds of either sort changes
        none of the earlier ones, and their artifacts are reused.
        """
        low, high = SEED_RANGE
        per_pretraining = (high - low + 1) // MAX_PRETRAIN_SEEDS
        pairs = []
        order = np.random.default_rng(self.seed).permutation(high - low + 1)
        for number in range(self.num_pretrain_seeds):
            seeds = order[number * per_pretraining :][: self.num_seeds]
            pairs += [(number, int(low + value)) for value in seeds]
        return tuple(pairs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The transfer seeds, all distinct."""
        return tuple(seed for _, seed in self.seed_pairs)

    def stage_seed(self, stage: str, number: int = 0) -> int:
        """Returns the seed of a stage, in [0, 2**31), derived by hashing: each stage has its own.

        Args:
          stage: name of a pretraining stage, or "mask_codec".
          number: number of the pretraining seed.
        """
        digest = hashlib.blake2b(f"{self.seed} {stage} {number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    @property
    def eval_rows(self) -> dict[str, EvalRow]:
        """Row name -> the row, for every split that is prepared for evaluation."""
        return {
            f"{row.name}{self.at}": dataclasses.replace(row, name=f"{row.name}{self.at}")
            for name, entry in self.transfers.items()
            for row in rows_of(name, entry)
        }

    @property
    def rows(self) -> dict[str, EvalRow]:
        """Row name -> the row, for every row of the results: benchmarks with `transfer: true`."""
        scored = {name for name, entry in self.transfers.items() if entry.transfer}
        return {name: row for name, row in self.eval_rows.items() if row.benchmark in scored}

    @property
    def fine_tunings(self) -> dict[str, TrainConfig]:
        """Fine-tuned benchmark -> its recipe; one that is scored with a parent counts as that."""
        return {
            trained_on(name): self.transfers.get(trained_on(name), entry).train
            for name, entry in self.transfers.items()
            if entry.transfer and training_of(name, entry)
        }

    @property
    def zero_shot(self) -> tuple[str, ...]:
        """The benchmarks that are scored with the checkpoint of the last stage."""
        entries = self.transfers.items()
        return tuple(name for name, entry in entries if entry.transfer and entry.zero_shot)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyView(StudyConfig):
    """The view of a study on one backbone, at one resolution.

    Attributes:
      name_on: name of the backbone; "" where the study has one only.
      key: config key of what a higher resolution has of its own, "stage2" or
        "stages.N.resolution"; "" at the backbone's own resolution.
      keys_on: see `backbone_keys`.
    """

    name_on: str = ""
    key: str = ""
    keys_on: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def backbone(self) -> str:
        """Name of the backbone, where the study has several; "" elsewhere."""
        return self.name_on

    @property
    def is_higher(self) -> bool:
        """Whether this is the view of a study at a higher resolution than its own."""
        return bool(self.key)

    @property
    def prefix(self) -> str:
        """Beginning of the config keys of its settings."""
        return f"{self.key}." if self.key else ""

    @property
    def backbone_keys(self) -> Mapping[str, str]:
        """Setting -> its config key, of what the backbone states in the place of the study."""
        return self.keys_on

    @property
    def at(self) -> str:
        """Suffix of the names of steps and rows, as "@448" or "@448@siglip2+gemma3"."""
        return f"@{self.model.vision.image_px}{self.on}" if self.key else self.on


def _values_of(config: StudyConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _pair_of(config: StudyConfig, name: str, backbone: BackboneConfig) -> StudyView:
    """Returns the study that a backbone would be alone.

    Raises:
      ValueError: if it makes no study.
    """
    model = backbone.model.model_in(config.model)
    before, after = config.model.vision.num_patches, model.vision.num_patches
    px = model.vision.image_px
    is_own = (model.vision, model.text, model.projector) == (
        config.model.vision, config.model.text, config.model.projector,
    )  # fmt: skip
    start = config.start if backbone.start == AS_STUDY else backbone.start
    if backbone.start == AS_STUDY and start is not None and not is_own:
        raise ValueError(
            f"start must be stated, as the study's, {start}, is a checkpoint of another tower and "
            f"decoder; null starts from random parameters."
        )
    tokenizer = backbone.tokenizer or config.tokenizer
    if backbone.tokenizer is None and tokenizer.path is not None:
        families = model.text.family, config.model.text.family
        if len({*families}) > 1:
            raise ValueError(
                f"tokenizer must be stated for {families[0]}, as the study's, {tokenizer.path}, is "
                f"of {families[1]}."
            )

    connectors = config.connectors
    if before != after:
        connectors = {method: _without_buckets(c) for method, c in connectors.items()}
    small_px, resolved = config.model.vision.image_px, _with_image_px(config, px)
    stages = {
        stage: stated
        for stage in ("stage1", "intermediary")
        if (stated := getattr(backbone, stage)) != AS_STUDY
    }
    changed: dict[str, Any] = {
        **resolved,
        **stages,
        "backbones": {},
        "model": model,
        "tokenizer": tokenizer,
        "start": start,
        "connectors": connectors | backbone.connectors,
        "transfers": {
            name: _with_recipe_at(px, name, transfer, small_px)
            for name, transfer in resolved["transfers"].items()
        },
        "budgets": backbone.budgets or _fit_budgets(config.budgets, before, after),
        "train_budgets": config.train_budgets | backbone.train_budgets,
        "stage2": config.stage2 and _fit_resolution(config.stage2, config.model, model),
        "stages": tuple(
            dataclasses.replace(
                stage, resolution=_fit_resolution(stage.resolution, config.model, model)
            )
            if stage.resolution is not None
            else stage
            for stage in config.stages
        ),
    }
    values = _values_of(config) | changed
    values["name_on"] = name if len(config.backbones) > 1 else ""
    values["keys_on"] = {setting: f"backbones.{name}.{setting}" for setting in backbone.stated}
    if before == after:
        return StudyView(**values)
    # A method may serve other budgets on another number of patches. What it serves here is known of
    # the study but for its training budgets.
    plain = _with_train_budgets(config.variants, lambda budgets: None)
    view = StudyView(**values | {"train_budgets": {}, "variants": plain})

    def served(method: Method, budgets: Sequence[int]) -> tuple[int, ...]:
        supported = supported_budgets(view.model_of(method))
        return tuple(b for b in _fit_budgets(budgets, before, after) if b in supported)

    return dataclasses.replace(
        view,
        train_budgets={
            method: served(method, budgets)
            for method in config.methods
            if method not in config.variants
            if (budgets := config.train_budgets_of(method))
        }
        | backbone.train_budgets,
        variants={
            method: dataclasses.replace(
                variant,
                train_budgets=variant.train_budgets and served(method, variant.train_budgets),
            )
            for method, variant in config.variants.items()
        },
    )


def _fit_budgets(budgets: Sequence[int], before: int, after: int) -> tuple[int, ...]:
    """Returns budgets on another tower: as many tokens, but for all tokens."""
    #   16 x 16 patches   16  64  256     24 x 24 patches   16  64  576
    return tuple(dict.fromkeys(after if budget == before else budget for budget in budgets))


def _fit_resolution(resolution: _Resolution, study: ModelConfig, model: ModelConfig) -> _Resolution:
    """Returns a higher resolution of the study on another tower, whose patches may differ."""
    before, after = (
        (resolution.image_px // vision.patch_px) ** 2 for vision in (study.vision, model.vision)
    )
    if before == after:
        return resolution
    return dataclasses.replace(
        resolution,
        budgets=resolution.budgets and _fit_budgets(resolution.budgets, before, after),
        train_budgets={
            method: _fit_budgets(budgets, before, after)
            for method, budgets in resolution.train_budgets.items()
        },
        connectors={method: _without_buckets(c) for method, c in resolution.connectors.items()},
    )


def _with_recipe_at(px: int, name: str, transfer: TransferConfig, before_px: int) -> TransferConfig:
    """Returns a transfer in which what the registry's recipe says is of another image side."""
    trained = benchmark_of(trained_on(name), transfer)
    was, now = recipe_of(trained, before_px), recipe_of(trained, px)
    changes = {
        field: now[field]
        for field, value in was.items()
        if now[field] != value and getattr(transfer.train, field) == value
    }
    return dataclasses.replace(transfer, train=dataclasses.replace(transfer.train, **changes))


def _without_buckets(connector: ConnectorConfig) -> ConnectorConfig:
    # Buckets are token counts declared for one number of patches; by default they follow it.
    return dataclasses.replace(connector, buckets=())


def _with_train_budgets(
    variants: Mapping[str, Variant], fit: Callable[[Sequence[int]], tuple[int, ...] | None]
) -> dict[str, Variant]:
    return {
        name: dataclasses.replace(
            variant, train_budgets=variant.train_budgets and fit(variant.train_budgets)
        )
        for name, variant in variants.items()
    }


def _with_image_px(config: StudyConfig, px: int) -> dict[str, Any]:
    """Returns those fields of a study that prepare images, for images of another side [pixels]."""

    def resized(owner: Any) -> Any:
        if owner.prepare is None:
            return owner
        return dataclasses.replace(owner, prepare=dataclasses.replace(owner.prepare, image_px=px))

    watch = config.watch
    return {
        "prepare": dataclasses.replace(config.prepare, image_px=px),
        "sources": tuple(map(resized, config.sources)),
        "watch": watch and dataclasses.replace(watch, sources=tuple(map(resized, watch.sources))),
        "transfers": {name: resized(entry) for name, entry in config.transfers.items()},
    }


def _view_at(
    config: StudyConfig, key: str, resolution: ResolutionConfig, methods: tuple[Method, ...]
) -> StudyView:
    px, before = resolution.image_px, config.model.vision.num_patches
    vision = dataclasses.replace(config.model.vision, image_px=px)
    after = vision.num_patches

    def scale(budgets: Sequence[int]) -> tuple[int, ...]:
        return tuple(scale_budget(budget, before, after) for budget in budgets)

    resolved = _with_image_px(config, px)
    transfers = resolved["transfers"] if resolution.transfers is None else resolution.transfers
    # Left out means: as in the study, fitted to the larger images; stated means: exactly this.
    #
    #              study, 224 px     Stage 2, 448 px
    #   images     256 features      1024 features
    #   budgets    16  64  256       64  256  1024   (the same shares)
    #   prepare    image_px: 224     image_px: 448
    changed: dict[str, Any] = {
        "model": dataclasses.replace(
            config.model,
            vision=vision,
            connector=_without_buckets(config.model.connector),
            remat=resolution.remat or config.model.remat,
        ),
        "connectors": {m: _without_buckets(c) for m, c in config.connectors.items()}
        | resolution.connectors,
        "prepare": resolution.prepare or resolved["prepare"],
        "sources": resolution.sources or resolved["sources"],
        "watch": resolved["watch"],
        "transfers": {name: entry for name, entry in transfers.items() if entry is not None},
        "budgets": resolution.budgets or scale(config.budgets),
        "train_budgets": {m: scale(budgets) for m, budgets in config.train_budgets.items()}
        | resolution.train_budgets,
        "variants": _with_train_budgets(config.variants, scale),
        "num_seeds": resolution.num_seeds or config.num_seeds,
        "eval_batch_size": resolution.eval_batch_size or config.eval_batch_size,
        "methods": methods,
        "stage2": None,
        "stages": (),
    }
    changed |= {"name_on": config.backbone, "key": key}
    return StudyView(**{**_values_of(config), **changed})


def _start_paths_by_method(start: dict[Method, str]) -> dict[str, str]:
    return {f"start.{method}": path for method, path in start.items()}
