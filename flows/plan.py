"""What a study comes to before anything runs: its datasets, its cells, its number of steps."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from flows.config.study import REFERENCE, StudyConfig
from flows.report.cells import Plan
from flows.steps import DatasetSpec
from pipelines.benchmarks.registry import BENCHMARKS

Phase = Literal["prepare", "train", "transfer", "evaluate", "report"]
PHASES: tuple[Phase, ...] = ("prepare", "train", "transfer", "evaluate", "report")


def results_plan(config: StudyConfig) -> Plan:
    """Returns which cells the results table of a study has.

    A budget that a method does not serve is an empty cell of its row.
    """
    own = {method: config.budgets_of(method) for method in config.methods if method != REFERENCE}
    return Plan(
        methods=config.methods,
        benchmarks=config.benchmarks,
        budgets=config.budgets,
        seeds=config.seeds,
        reference=REFERENCE,
        budgets_of={m: served for m, served in own.items() if served != config.budgets},
    )


def datasets_of(config: StudyConfig) -> dict[str, DatasetSpec]:
    """Returns every dataset to prepare, by name."""
    found: dict[str, DatasetSpec] = {}
    for source in config.sources:
        found[source.name] = DatasetSpec(
            reader=source.reader,
            path=source.path,
            split=source.split,
            prepare=source.prepare or config.prepare,
        )
    for name, transfer in config.transfers.items():
        benchmark = BENCHMARKS[name]
        # Augmentation is for pretraining: a transfer has it only where it says so itself.
        prepare = transfer.prepare or config.prepare.unaugmented()
        trained = BENCHMARKS[benchmark.parent or name]
        found[f"{name}/train"] = DatasetSpec(
            reader=trained.name,
            path="" if benchmark.parent else transfer.path,
            split=transfer.train_split or trained.train_split,
            prepare=prepare,
        )
        found[f"{name}/eval"] = DatasetSpec(
            reader=name,
            path=transfer.path,
            split=transfer.eval_split or benchmark.eval_split,
            prepare=dataclasses.replace(
                prepare.unaugmented(), limit=transfer.eval_limit or prepare.limit
            ),
        )
    return found


def num_steps(config: StudyConfig, until: Phase) -> int:
    """Returns how many steps a study has, up to a phase."""

    def phases() -> Iterator[int]:
        datasets = len(datasets_of(config))
        screened = len(config.sources) if config.hygiene else 0
        yield screened + (1 + datasets if config.data_root is None else 2 * datasets)
        noted = len(config.given) + (config.start is not None)
        yield 2 + (config.mask_codec is not None) + len(config.methods) + noted
        cells = len(config.benchmarks) * config.num_seeds
        yield cells * len(config.methods)
        yield cells * sum(len(config.budgets_of(m)) for m in config.methods) + len(
            config.benchmarks
        )
        yield 1

    return sum(list(phases())[: PHASES.index(until) + 1])
