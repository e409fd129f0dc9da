"""A whole study as one value: data, model, stages, transfers, methods × budgets × seeds."""

import dataclasses
import hashlib
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from flows.study.held_out import check_held_out
from flows.study.image_size import check_image_px, with_image_px
from flows.study.kept import KeepConfig
from flows.study.own import corpus_named
from flows.study.source import SourceConfig
from flows.study.transfer import (
    EvalRow,
    TransferConfig,
    check_splits,
    check_transfer,
    rows_of,
    trained_on,
    with_recipes,
)
from infra.store.digest import NOT_IDENTITY
from model.config import ModelConfig
from model.connector.budgets import supported_budgets
from model.connector.config import ConnectorConfig
from model.connector.routing import Kind
from model.masks.codec import MaskCodecConfig
from model.train.config import TrainConfig
from pipelines.hygiene.screen import HygieneConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.records.codes import EXTRA_TOKENS
from pipelines.sources.registry import SOURCES
from pipelines.synthetic.config import CorpusConfig

Method = Kind
REFERENCE: Method = "vanilla"
"""The method whose score is 100 % retention; it knows one budget, all tokens."""

SEED_RANGE = (10_000, 100_000)
"""Transfer seeds are drawn from here. Source: PARCEL, app. Implementation Details."""

MAX_PRETRAIN_SEEDS = 20
"""Most pretraining seeds of a study; each has a part of the transfer seeds to itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """SentencePiece vocabulary, without the 1024 location and 128 segmentation tokens.

    Attributes:
      path: a tokenizer file to use; None trains one on the study's texts.
      vocab_size: pieces of the one trained here [tokens].
    """

    path: str | None = dataclasses.field(default=None, metadata=NOT_IDENTITY)
    vocab_size: int = 256_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Where steps run; never part of a result's identity.

    Attributes:
      ray_address: a running Ray cluster: "http://host:8265", its job server, or "host:port" of its
        head, or "auto" on one of its nodes. None starts one on this machine.
      num_cpus: cores of the cluster started here; None takes all.
      cpus_per_stage: cores of Stage 1, which runs alone.
      cpus_per_cell: cores of each intermediary or transfer.
      cpus_per_evaluation: cores of a transfer's evaluations; None takes `cpus_per_cell`.
      num_gpus: GPUs of the cluster started here; None takes all that JAX can use.
      gpus_per_stage: GPUs of Stage 1, where there are any; they must divide its batch. Where
        there are TPUs instead, a step that wants any GPU takes all chips of one host.
      gpus_per_cell: GPUs of each intermediary or transfer, where there are any.
      gpus_per_evaluation: GPUs of a transfer's evaluations; None takes those of a cell.
      cells_per_gpu: cells that share a GPU and its memory, where `gpus_per_cell` is 1.
      device: what steps run on at `ray_address`; None takes what its nodes have when a step is
        placed. Say it where an autoscaler begins with none.
      node_wait: how long a step may wait at `ray_address` for a node that is large enough to come
        up [s].
      retries: more tries of a step whose worker died.
      rebuild_limit: most work that a run does again because of changed code, without being told
        to, over all its steps [device-hours].
    """

    ray_address: str | None = None
    num_cpus: int | None = None
    cpus_per_stage: int = 2
    cpus_per_cell: int = 1
    cpus_per_evaluation: Annotated[int, Field(ge=1)] | None = None
    num_gpus: Annotated[int, Field(ge=0)] | None = None
    gpus_per_stage: Annotated[int, Field(ge=0)] = 1
    gpus_per_cell: Annotated[int, Field(ge=0)] = 1
    gpus_per_evaluation: Annotated[int, Field(ge=0)] | None = None
    cells_per_gpu: Annotated[int, Field(ge=1, le=20)] = 1
    device: Literal["cpu", "gpu", "tpu"] | None = None
    node_wait: Annotated[float, Field(ge=0)] = 900.0
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    rebuild_limit: Annotated[float, Field(ge=0)] = 1.0

    def __post_init__(self) -> None:
        if self.ray_address is not None:
            check_ray_address(self.ray_address)
        if self.cells_per_gpu > 1 and self.gpus_per_cell != 1:
            raise ValueError(
                f"cells_per_gpu must be 1 where gpus_per_cell is not 1, got {self.cells_per_gpu} "
                f"and {self.gpus_per_cell}."
            )

    @property
    def gpus_of_cell(self) -> float:
        """GPUs that a cell asks for; below 1 it shares one."""
        return self.gpus_per_cell / self.cells_per_gpu

    @property
    def cpus_of_evaluation(self) -> int:
        """Cores that a transfer's evaluations ask for."""
        return self.cpus_per_evaluation or self.cpus_per_cell

    @property
    def gpus_of_evaluation(self) -> float:
        """GPUs that a transfer's evaluations ask for."""
        own = self.gpus_per_evaluation
        return self.gpus_of_cell if own is None else float(own)


def check_ray_address(address: str) -> None:
    """Refuses what is no cluster's address.

    Raises:
      ValueError: with what is accepted.
    """
    if address.startswith("ray://"):
        raise ValueError(
            f"ray_address must not be Ray Client's, got {address!r}: every step would end with its "
            f'connection. Give the job server, "http://host:8265", or "host:port" of the head.'
        )
    rest = address.removeprefix("http://").removeprefix("https://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if address != "auto" and not (host and "/" not in rest.rstrip("/") and port.isdigit()):
        raise ValueError(
            f'ray_address must be "http://host:port" of a job server, "host:port" of a head, or '
            f'"auto", got {address!r}.'
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Methods × benchmarks × seeds × budgets, from raw data to the results table.

    Attributes:
      name: of the study, in lower-case letters, digits and dashes.
      seed: of everything: each stage draws a seed of its own from it, and the transfers theirs.
      methods: connectors compared.
      budgets: soft tokens per frame at evaluation; a method is evaluated at those it serves, and
        vanilla at all tokens only.
      train_budgets: method -> the budgets its intermediary stage and its transfers draw from, each
        equally often in expectation; a method that is not named draws uniformly from all it serves,
        as the paper's do.
      num_seeds: transfer seeds of each pretraining seed, shared by all methods; more of them
        begin with the same ones.
      num_pretrain_seeds: how often Stage 1 and the intermediaries are trained; the paper: once.
      data_root: folder with the raw corpora; None renders the synthetic one.
      corpus: the synthetic corpus; unused where `data_root` is given.
      sources: corpora of the Stage-1 mixture.
      prepare: how raw data become records.
      hygiene: what is looked for in the mixture: duplicates, and pictures of the benchmarks'
        evaluation splits. None does not look.
      tokenizer, mask_codec, model: what all methods share; no codec where nothing has masks.
      connectors: settings of a method's connector; its `kind` is the method. Others have
        `model.connector`'s.
      start: folder of a checkpoint that Stage 1 starts from, as `parcel convert` writes it; None
        starts from nothing. `tokenizer.path` must then be the checkpoint's own.
      stage1: vanilla pretraining.
      intermediary: pretraining of each method, from Stage 1.
      transfers: benchmark -> how it is fine-tuned on and evaluated; the registry's recipe where
        nothing else is stated.
      eval_batch_size: examples decoded together.
      compute: where steps run.
      keep: what `parcel gc` leaves of it.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)] = "study"
    seed: Annotated[int, Field(ge=0)] = 0
    methods: Annotated[
        tuple[Method, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True})
    ] = ("vanilla", "m3", "mqt", "parcel")
    budgets: Annotated[
        tuple[Annotated[int, Field(ge=2, le=1024)], ...],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    ] = (16, 64, 256)
    train_budgets: dict[Method, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    num_seeds: Annotated[int, Field(ge=1, le=100)] = 3
    num_pretrain_seeds: Annotated[int, Field(ge=1, le=MAX_PRETRAIN_SEEDS)] = 1
    data_root: str | None = None
    corpus: CorpusConfig = CorpusConfig()
    sources: tuple[SourceConfig, ...] = (SourceConfig(reader="web"),)
    prepare: PrepareConfig = PrepareConfig()
    hygiene: HygieneConfig | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    mask_codec: MaskCodecConfig | None = MaskCodecConfig()
    model: ModelConfig = ModelConfig()
    connectors: dict[Method, ConnectorConfig] = dataclasses.field(default_factory=dict)
    start: str | None = None
    stage1: TrainConfig = TrainConfig()
    intermediary: TrainConfig = TrainConfig()
    transfers: Annotated[dict[str, TransferConfig], BeforeValidator(with_recipes)] = (
        dataclasses.field(default_factory=dict)
    )
    eval_batch_size: Annotated[int, Field(ge=1)] = 32
    compute: ComputeConfig = ComputeConfig()
    keep: KeepConfig = KeepConfig()

    @model_validator(mode="before")
    @classmethod
    def _at_model_size(cls, values: Any) -> Any:
        return with_image_px(values)

    def __post_init__(self) -> None:
        for field in ("methods", "budgets"):
            values = getattr(self, field)
            if len(set(values)) != len(values):
                raise ValueError(f"{field} must not repeat a value, got {list(values)}.")
        for i, source in enumerate(self.sources):
            reader = corpus_named(f"sources.{i}.reader", source.reader)
            if source.reader not in SOURCES and not source.path:
                raise ValueError(
                    f"sources.{i}.path must be given, the folder below data_root that "
                    f"{source.reader} reads."
                )
            check_splits(f"sources.{i}.split", reader, source.split)
        for name, transfer in self.transfers.items():
            check_transfer(name, transfer)
        check_held_out(self.sources, self.transfers)
        check_image_px(self.model.vision.image_px, self.prepare, self.sources, self.transfers)
        vocabulary = self.tokenizer.vocab_size + len(EXTRA_TOKENS)
        if self.tokenizer.path is None and self.model.text.vocab_size != vocabulary:
            raise ValueError(
                f"model.text.vocab_size must be tokenizer.vocab_size + {len(EXTRA_TOKENS)} = "
                f"{vocabulary}, got {self.model.text.vocab_size}."
            )
        full = self.model.vision.num_patches
        if wrong := [b for b in self.budgets if b != full and (b > full or b % 2)]:
            raise ValueError(
                f"budgets: no method serves {wrong}. Accepted: even ones from 2 to {full}."
            )
        for method in self.methods:
            self._check_budgets(method)
        for method, budgets in self.train_budgets.items():
            self._check_train_budgets(method, budgets)

    def _check_budgets(self, method: Method) -> None:
        if self.budgets_of(method):
            return
        if method == REFERENCE:
            raise ValueError(
                f"budgets must hold {self._served(method)}, all tokens, where {REFERENCE} is "
                f"compared, got {list(self.budgets)}."
            )
        raise ValueError(
            f"budgets: {method} serves none of {list(self.budgets)}; it serves "
            f"{self._served(method)}. Add one of these, or leave the method out."
        )

    def _check_train_budgets(self, method: Method, budgets: tuple[int, ...]) -> None:
        served = supported_budgets(self.model_of(method))
        if not budgets or len(set(budgets)) != len(budgets) or not set(budgets) <= set(served):
            raise ValueError(
                f"train_budgets.{method} must be distinct budgets that {method} serves, "
                f"{self._served(method)}, got {list(budgets)}; without {method} in train_budgets "
                f"all of them are drawn."
            )

    def _served(self, method: Method) -> str:
        served = supported_budgets(self.model_of(method))
        if len(served) < 10:
            return ", ".join(str(budget) for budget in served)
        return f"{served[0]}…{served[-1]}, even ones"

    def budgets_of(self, method: Method) -> tuple[int, ...]:
        """Returns the budgets a method is evaluated at: those of the study that it serves."""
        served = supported_budgets(self.model_of(method))
        return tuple(budget for budget in self.budgets if budget in served)

    def model_of(self, method: Method, *, transfer: bool = False) -> ModelConfig:
        """Returns the model with a method's connector.

        Args:
          method: which.
          transfer: without soft-caps, as the paper's transfers are (app. Implementation Details).
        """
        connector = self.connectors.get(method, self.model.connector)
        caps = {"attn_softcap": 0.0, "final_softcap": 0.0} if transfer else {}
        return dataclasses.replace(
            self.model, connector=dataclasses.replace(connector, kind=method), **caps
        )

    def intermediary_of(self, method: Method) -> TrainConfig:
        """Returns how a method is pretrained from Stage 1, with its training budgets."""
        return self._with_budgets(self.intermediary, method)

    def fine_tuning_of(self, benchmark: str, method: Method) -> TrainConfig:
        """Returns how a method is fine-tuned on one of `fine_tunings`, with its budgets."""
        return self._with_budgets(self.fine_tunings[benchmark], method)

    def _with_budgets(self, train: TrainConfig, method: Method) -> TrainConfig:
        if method not in self.train_budgets:
            return train
        return dataclasses.replace(train, budgets=self.train_budgets[method])

    @property
    def given(self) -> dict[str, str]:
        """Paths of what the study is given rather than makes, by the key of the config."""
        codec = self.mask_codec.path if self.mask_codec else None
        paths = {
            "tokenizer.path": self.tokenizer.path,
            "mask_codec.path": codec,
            "start": self.start,
        }
        return {key: path for key, path in paths.items() if path is not None}

    @property
    def seed_pairs(self) -> tuple[tuple[int, int], ...]:
        """(number of the pretraining seed, transfer seed), the same for every method.

        Every pretraining takes from the start of a part of one shuffled list, so that more seeds
        of either sort leave those before them, and all their artifacts, as they were.
        """
        low, high = SEED_RANGE
        per_pretraining = (high - low + 1) // MAX_PRETRAIN_SEEDS
        pairs = []
        order = np.random.default_rng(self.seed).permutation(high - low + 1)
        for number in range(self.num_pretrain_seeds):
            own = order[number * per_pretraining :][: self.num_seeds]
            pairs += [(number, int(low + value)) for value in own]
        return tuple(pairs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The transfer seeds, all distinct."""
        return tuple(seed for _, seed in self.seed_pairs)

    def stage_seed(self, stage: str, number: int = 0) -> int:
        """Returns the seed of a stage, in [0, 2**31): no two stages see the same draws.

        Args:
          stage: "stage1", "intermediary", "mask_codec".
          number: of the pretraining seed.
        """
        digest = hashlib.blake2b(f"{self.seed} {stage} {number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    @property
    def eval_rows(self) -> dict[str, EvalRow]:
        """Every split that is prepared for evaluation, by the name of its row."""
        return {
            row.name: row for name, entry in self.transfers.items() for row in rows_of(name, entry)
        }

    @property
    def rows(self) -> dict[str, EvalRow]:
        """The rows of the results: those of benchmarks that are transferred to."""
        scored = {name for name, entry in self.transfers.items() if entry.transfer}
        return {name: row for name, row in self.eval_rows.items() if row.benchmark in scored}

    @property
    def fine_tunings(self) -> dict[str, TrainConfig]:
        """Benchmarks that are fine-tuned on, with their recipes; zero-shot ones have a parent."""
        scored = [name for name, entry in self.transfers.items() if entry.transfer]
        return {
            trained_on(name): self.transfers.get(trained_on(name), self.transfers[name]).train
            for name in scored
        }
