"""The settings of a study, and what follows from them for its methods, budgets and seeds."""

import dataclasses
import functools
import hashlib
from typing import Annotated

import numpy as np
from pydantic import Field

from flows.config.benchmark import TransferConfig, trained_on, training_of
from flows.config.compute import ComputeConfig
from flows.config.keep import KeepConfig
from flows.config.source import SourceConfig
from flows.config.stages import Stage2Config, StageConfig
from flows.config.variant import Variant
from flows.config.watched import WatchedConfig
from flows.steps.kinds.tokenizer import TokenizerConfig
from model.config import ModelConfig
from model.connector.budgets import supported_budgets
from model.connector.config import ConnectorConfig
from model.masks.config import MaskCodecConfig
from model.train.config import TrainConfig
from pipelines.hygiene.screen import HygieneConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.synthetic.config import CorpusConfig

Method = str
"""Name of a compared method: a connector of the registry, a user's connector class as
"module:Class", or one of the study's variants."""
REFERENCE: Method = "vanilla"
"""The method whose score counts as 100 % retention; its only budget is all tokens."""


VariantName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]


SEED_RANGE = (10_000, 100_000)
"""Range that transfer seeds are drawn from. Source: PARCEL, app. Implementation Details."""

MAX_PRETRAIN_SEEDS = 20
"""Most pretraining seeds of a study; each has its own part of the range of transfer seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Settings that a study states, and that each of its views has.

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
      eval_batch_size: examples decoded together.
      compute: where steps run and with which resources.
      keep: which of the study's files `parcel gc` keeps.
    """

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
    eval_batch_size: Annotated[int, Field(ge=1)] = 32
    compute: ComputeConfig = ComputeConfig()
    keep: KeepConfig = KeepConfig()

    def budgets_of(self, method: Method) -> tuple[int, ...]:
        """Returns the budgets of the study that a method serves, at which it is evaluated."""
        served_budgets = supported_budgets(self.model_of(method))
        return tuple(budget for budget in self.budgets if budget in served_budgets)

    @property
    def unserved_budgets(self) -> list[int]:
        """The budgets of the study that no method serves."""
        served_budgets = {budget for method in self.methods for budget in self.budgets_of(method)}
        return [budget for budget in self.budgets if budget not in served_budgets]

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

    def fine_tuning_of(self, benchmark: str, method: Method) -> TrainConfig:
        """Returns the recipe by which a method is fine-tuned on one of `fine_tunings`."""
        return self.train_config_for(self.fine_tunings[benchmark], method)

    def in_parts(self, train: TrainConfig) -> TrainConfig:
        """Returns a training recipe with the study's `microbatch` and `pack`, where it has none."""
        if train.exact_shards is not None:  # Then both are the recipe's: parts of its identity.
            return train
        microbatch = self.compute.microbatch if train.microbatch is None else train.microbatch
        pack = self.compute.pack if train.pack == "auto" else train.pack
        return dataclasses.replace(train, microbatch=microbatch, pack=pack)

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

    def reference_of(self, method: Method) -> str:
        """Returns the name of a method, with its class's file, for another process to resolve."""
        file = self.connector_files.get(method)
        return f"{file}:{method.partition(':')[2]}" if file else method

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
