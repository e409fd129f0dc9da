"""A study as data: every node, in an order in which they can run.

A *node* is one thing to a person: one row of the run's page, one Prefect task. Most make one
artifact. A transfer makes a checkpoint, and the predictions of all its rows and budgets:

    transfer parcel chartqa seed=48213
      job 1   checkpoint    transfer parcel chartqa seed=48213
      job 2   predictions   evaluate parcel chartqa:test_human seed=48213 budget=16
                            evaluate parcel chartqa:test_human seed=48213 budget=64  …

Submitting, counting, `--explain` and the plan read this one list.
"""

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from flows.report.cells import CHANCE, SCREENED, CellKey, Plan
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.raw_files import RawFilesSpec
from flows.steps.kinds.results import ResultsSpec
from flows.study.config import REFERENCE, Method, StudyConfig
from flows.study.costs import costs_of
from flows.study.given import files_of, paths_of
from flows.study.own import corpus_named
from flows.study.own_data import check_own_data
from flows.study.transfer import (
    TransferConfig,
    decoding_of,
    eval_window_of,
    metric_of,
    rows_of,
    source_of,
    train_data,
    trained_on,
)
from infra.store.digest import value_sha256
from infra.store.raw_files import RawFiles, RawState
from model.eval.config import EvalConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.registry import get

Phase = Literal["prepare", "train", "transfer", "evaluate", "report"]
PHASES: tuple[Phase, ...] = ("prepare", "train", "transfer", "evaluate", "report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Steps that run one after the other in one process.

    Attributes:
      steps: none reads the artifact of another one.
      cpus: cores on the cluster; 0 runs them in the study's own process.
      gpus: GPUs on the cluster, where it has any; below 1 jobs share one.
    """

    steps: tuple[Step, ...]
    cpus: int = 0
    gpus: float = 0.0

    @property
    def devices(self) -> int:
        """Devices that it is charged for."""
        return max(1, math.ceil(self.gpus))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """One thing to a person.

    Attributes:
      name: of its row; that of its first step.
      jobs: in their order; a later one may read an earlier one's artifacts.
    """

    name: str
    jobs: tuple[Job, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step, in order."""
        return tuple(step for job in self.jobs for step in job.steps)

    def matches(self, pattern: str) -> bool:
        """Whether a name, which may hold `*`, means the node or one of its steps."""
        return any(
            fnmatchcase(name, pattern) for name in (self.name, *(s.name for s in self.steps))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """The nodes of a study up to a phase; every node comes after those that it reads.

    Attributes:
      nodes: in order.
      cells: the step behind each number of the table.
      results: the step that makes the table; None where the phase is earlier.
    """

    nodes: tuple[Node, ...]
    cells: Mapping[CellKey, Step]
    results: Step | None

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step, in order."""
        return tuple(step for node in self.nodes for step in node.steps)

    def upstream(self) -> dict[Node, tuple[Node, ...]]:
        """Returns the nodes that each node reads."""
        owner = {step: node for node in self.nodes for step in node.steps}
        return {
            node: tuple(
                dict.fromkeys(
                    owner[read]
                    for step in node.steps
                    for read in step.inputs.values()
                    if owner[read] is not node
                )
            )
            for node in self.nodes
        }


def graph_of(
    config: StudyConfig, until: Phase = "report", *, known: RawFiles | None = None
) -> Graph:
    """Returns the graph of a study, up to and including a phase.

    Args:
      config: the study.
      until: the last phase.
      known: digests of raw files that need not be read again; None reads all.

    Raises:
      ConfigError: if a file that the config names is missing.
    """
    return _Builder(config, PHASES.index(until), known).graph()


class _Builder:
    """Adds nodes phase by phase.

    The same step asked for twice is one step, under its first name: a corpus of the mixture may
    also be the training split of a benchmark.
    """

    def __init__(self, config: StudyConfig, last: int, known: RawFiles | None) -> None:
        self.config = config
        self.last = last
        self.known_files = known
        self.given = paths_of(config)
        check_own_data(config)
        self.nodes: list[Node] = []
        self._known: dict[str, Step] = {}

    def graph(self) -> Graph:
        datasets = self._prepare()
        cells: dict[CellKey, Step] = {}
        results: Step | None = None
        if self.last >= PHASES.index("train"):
            shared = self._vocabulary(datasets)
            checkpoints = self._pretrain(datasets, shared)
            if self.last >= PHASES.index("transfer"):
                cells = self._transfer(datasets, shared, checkpoints)
            if self.last >= PHASES.index("report"):
                results = self._report(datasets, cells)
        return Graph(nodes=tuple(self.nodes), cells=cells, results=results)

    def _add(self, kind: str, name: str, *, cpus: int = 0, gpus: float = 0.0, **more: Any) -> Step:
        """Returns the step; as a node of its own, unless there is one that makes the same."""
        step = Step(kind=kind, name=name, **more)
        known = self._known.setdefault(_same(step), step)
        if known is step:
            self.nodes.append(Node(name=name, jobs=(Job(steps=(step,), cpus=cpus, gpus=gpus),)))
        return known

    def _prepare(self) -> dict[str, Step]:
        config, found = self.config, {}
        corpus = state = None
        if config.data_root is None:
            corpus = self._add("corpus", "corpus", config=config.corpus)
        else:
            state = RawState(config.data_root)
        for name, spec in datasets_of(config).items():
            raw = corpus
            if state is not None:
                raw = self._add(
                    "raw_files",
                    f"files {name}",
                    config=raw_files_spec(spec, state),
                    location=config.data_root,
                )
            assert raw is not None
            found[name] = self._add(
                "dataset",
                f"prepare {name}",
                config=spec,
                inputs={"raw": raw},
                location=config.data_root,
            )
        return found | self._screen(found)

    def _screen(self, datasets: Mapping[str, Step]) -> dict[str, Step]:
        """Returns the mixture's datasets as hygiene leaves them; none where none is asked for."""
        if self.config.hygiene is None:
            return {}
        held_out = {f"{name}/eval": datasets[f"{name}/eval"] for name in self.config.eval_rows}
        return {
            source.name: self._add(
                "screened",
                f"screen {source.name}",
                config=self.config.hygiene,
                inputs={"dataset": datasets[source.name], **held_out},
                keys={"": "hygiene"},
            )
            for source in self.config.sources
        }

    def _vocabulary(self, datasets: Mapping[str, Step]) -> dict[str, Step]:
        config = self.config
        held_out = {f"{name}/eval" for name in config.eval_rows}
        train = {role: step for role, step in datasets.items() if role not in held_out}
        pieces, codec = self._given("tokenizer.path"), self._given("mask_codec.path")
        made = {
            "tokenizer": self._add(
                "tokenizer",
                "tokenizer",
                config=config.tokenizer,
                inputs=pieces or train,
                location=config.tokenizer.path,
                keys={"": "tokenizer"},
            )
        }
        if config.mask_codec is not None:
            made["mask_codec"] = self._add(
                "mask_codec",
                "mask codec",
                config=config.mask_codec,
                seed=config.stage_seed("mask_codec"),
                inputs={**train, **codec},
                cpus=config.compute.cpus_per_cell,
                gpus=config.compute.gpus_of_cell,
                keys={"": "mask_codec"},
            )
        return made

    def _given(self, key: str) -> dict[str, Step]:
        """Notes the files that the config's `key` names, by digest; nothing where it names none."""
        if key not in self.given:
            return {}
        files = files_of(self.given[key], self.known_files)
        return {"given": self._add("files", f"files {key}", config=files)}

    def _pretrain(
        self, datasets: Mapping[str, Step], shared: Mapping[str, Step]
    ) -> dict[tuple[Method, int], Step]:
        """Returns the checkpoint of each method and pretraining seed."""
        config, found = self.config, {}
        mixture = {f"data/{i}": datasets[source.name] for i, source in enumerate(config.sources)}
        start: dict[str, Step] = {}
        if config.start is not None:
            given = self._given("start")
            start = {"init": self._add("start", "start", inputs=given, location=config.start)}
        for number in range(config.num_pretrain_seeds):
            suffix = f" pretrain={number}" if config.num_pretrain_seeds > 1 else ""
            stage1 = self._add(
                "checkpoint",
                f"stage1 {REFERENCE}{suffix}",
                config=FitSpec(model=config.model_of(REFERENCE), train=config.stage1),
                seed=config.stage_seed("stage1", number),
                inputs={**mixture, **shared, **start},
                cpus=config.compute.cpus_per_stage,
                gpus=config.compute.gpus_per_stage,
                keys={"train": "stage1"},
            )
            for method in config.methods:
                found[method, number] = self._add(
                    "checkpoint",
                    f"intermediary {method}{suffix}",
                    config=FitSpec(
                        model=config.model_of(method), train=config.intermediary_of(method)
                    ),
                    seed=config.stage_seed("intermediary", number),
                    inputs={**mixture, **shared, "init": stage1},
                    cpus=config.compute.cpus_per_cell,
                    gpus=config.compute.gpus_of_cell,
                    keys={"train": "intermediary"},
                )
        return found

    def _transfer(
        self,
        datasets: Mapping[str, Step],
        shared: Mapping[str, Step],
        checkpoints: Mapping[tuple[Method, int], Step],
    ) -> dict[CellKey, Step]:
        """Adds a node per transfer, and returns the predictions of all of them."""
        config = self.config
        cells: dict[CellKey, Step] = {}
        models = {method: config.model_of(method, transfer=True) for method in config.methods}
        for benchmark in config.fine_tunings:
            for method in config.methods:
                train = config.fine_tuning_of(benchmark, method)
                evaluations = self._evaluations(benchmark, method)
                for pretrain, seed in config.seed_pairs:
                    checkpoint = Step(
                        kind="checkpoint",
                        name=f"transfer {method} {benchmark} seed={seed}",
                        config=FitSpec(model=models[method], train=train),
                        seed=seed,
                        inputs={
                            "data/0": datasets[f"{benchmark}/train"],
                            **shared,
                            "init": checkpoints[method, pretrain],
                        },
                        keys={"train": f"transfers.{benchmark}.train"},
                    )
                    scored: dict[CellKey, Step] = {}
                    if self.last >= PHASES.index("evaluate"):
                        for row, spec in evaluations:
                            cell = CellKey(
                                benchmark=row, method=method, budget=spec.budget, seed=seed
                            )
                            scored[cell] = Step(
                                kind="predictions",
                                name=f"evaluate {method} {row} seed={seed} budget={spec.budget}",
                                config=spec,
                                inputs={"checkpoint": checkpoint, "data": datasets[f"{row}/eval"]},
                            )
                    cells |= scored
                    compute = config.compute
                    jobs = [
                        Job(
                            steps=(checkpoint,),
                            cpus=compute.cpus_per_cell,
                            gpus=compute.gpus_of_cell,
                        )
                    ]
                    if scored:  # After all of training, since they may want other devices.
                        jobs.append(
                            Job(
                                steps=tuple(scored.values()),
                                cpus=compute.cpus_of_evaluation,
                                gpus=compute.gpus_of_evaluation,
                            )
                        )
                    self.nodes.append(Node(name=checkpoint.name, jobs=tuple(jobs)))
        return cells

    def _evaluations(self, trained: str, method: Method) -> list[tuple[str, EvaluateSpec]]:
        """Returns the evaluations of a checkpoint: its benchmark's rows, and zero-shot ones."""
        return [
            (
                row,
                EvaluateSpec(
                    benchmark=found.benchmark,
                    budget=budget,
                    decode=decode_of(self.config, found.benchmark),
                ),
            )
            for row, found in self.config.rows.items()
            if trained_on(found.benchmark) == trained
            for budget in self.config.budgets_of(method)
        ]

    def _report(self, datasets: Mapping[str, Step], cells: Mapping[CellKey, Step]) -> Step:
        chance = {
            f"{CHANCE}{name}": self._add(
                "chance",
                f"chance {name}",
                config=metric_of(row.benchmark, self.config.transfers[row.benchmark]),
                inputs={
                    "train": datasets[f"{trained_on(row.benchmark)}/train"],
                    "eval": datasets[f"{name}/eval"],
                },
            )
            for name, row in self.config.rows.items()
        }
        # Pictures that were removed are in no corpus any more.
        hygiene = self.config.hygiene
        reported = hygiene is not None and hygiene.contamination == "report"
        screened = {
            f"{SCREENED}{source.name}": datasets[source.name]
            for source in (self.config.sources if reported else ())
        }
        return self._add(
            "results",
            f"results {self.config.name}",
            config=ResultsSpec(plan=results_plan(self.config)),
            inputs={**{str(key): step for key, step in cells.items()}, **chance, **screened},
            partial=True,
        )


def _same(step: Step) -> str:
    """Returns a text that two steps share exactly if they make the same artifact."""
    reads = {role: id(read) for role, read in step.inputs.items()}
    return value_sha256([step.kind, step.config, step.seed, reads])


def raw_files_spec(spec: DatasetSpec, state: RawState) -> RawFilesSpec:
    """Returns how the raw files of a dataset are noted, given the state of their data root."""
    return RawFilesSpec(
        reader=spec.reader,
        path=spec.path,
        split=spec.split,
        features=spec.features,
        state=state.sha256(get(spec.reader).folders(spec.path)),
        prepare=spec.prepare,
    )


def decode_of(config: StudyConfig, benchmark: str) -> EvalConfig:
    """Returns how a benchmark is decoded and scored."""
    transfer = config.transfers[benchmark]
    return EvalConfig(
        metric=metric_of(benchmark, transfer),
        batch_size=config.eval_batch_size,
        text_len=transfer.eval_text_len or transfer.train.text_len,
        max_frames=transfer.train.max_frames,
        decoding=decoding_of(benchmark, transfer),
    )


def results_plan(config: StudyConfig) -> Plan:
    """Returns which cells the results table of a study has.

    A budget that a method does not serve is an empty cell of its row.
    """
    own = {method: config.budgets_of(method) for method in config.methods if method != REFERENCE}
    main = tuple(name for name, row in config.rows.items() if row.main)
    return Plan(
        methods=config.methods,
        benchmarks=tuple(config.rows),
        budgets=config.budgets,
        seeds=config.seeds,
        reference=REFERENCE,
        budgets_of={m: served for m, served in own.items() if served != config.budgets},
        groups={"main": main} if 1 < len(main) < len(config.rows) else {},
        pretrainings=tuple(number for number, _ in config.seed_pairs),
        trainings={name: trained_on(row.benchmark) for name, row in config.rows.items()},
        costs=costs_of(config),
    )


def datasets_of(config: StudyConfig) -> dict[str, DatasetSpec]:
    """Returns every dataset to prepare, by name."""
    found: dict[str, DatasetSpec] = {}
    for i, source in enumerate(config.sources):
        found[source.name] = DatasetSpec(
            reader=corpus_named(f"sources.{i}.reader", source.reader),
            path=source.path,
            split=source.split,
            features=source.features,
            prepare=source.prepare or config.prepare,
        )
    for name, transfer in config.transfers.items():
        trained = trained_on(name)
        if f"{trained}/train" not in found:
            own = config.transfers.get(trained)
            prepare = _prepare_of(config, own or transfer)
            path, split = train_data(name, config.transfers)
            found[f"{trained}/train"] = DatasetSpec(
                reader=source_of(trained, own or transfer), path=path, split=split, prepare=prepare
            )
        for row in rows_of(name, transfer):
            prepare = _prepare_of(config, transfer).for_evaluation(eval_window_of(name))
            limit = transfer.eval_limit or prepare.limit
            found[f"{row.name}/eval"] = DatasetSpec(
                reader=source_of(name, transfer), path=transfer.path, split=row.split,
                prepare=dataclasses.replace(prepare, limit=limit),
            )  # fmt: skip
    return found


def _prepare_of(config: StudyConfig, transfer: TransferConfig) -> PrepareConfig:
    """Returns how a benchmark is prepared; augmented only where its own settings say so."""
    prepare = transfer.prepare or config.prepare.unaugmented()
    return dataclasses.replace(
        prepare,
        num_frames=transfer.num_frames or prepare.num_frames,
        frame_stride=transfer.frame_stride or prepare.frame_stride,
    )
