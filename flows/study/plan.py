"""What a study comes to before anything runs: its datasets, its cells, its number of steps."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from flows.report.cells import Plan
from flows.steps.functions import DatasetSpec
from flows.study.config import REFERENCE, StudyConfig
from flows.study.transfer import TransferConfig, rows_of, train_data, trained_on
from pipelines.prepare.config import PrepareConfig

Phase = Literal["prepare", "train", "transfer", "evaluate", "report"]
PHASES: tuple[Phase, ...] = ("prepare", "train", "transfer", "evaluate", "report")


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
        trained = trained_on(name)
        if f"{trained}/train" not in found:
            own = config.transfers.get(trained)
            prepare = _prepare_of(config, own or transfer)
            path, split = train_data(name, config.transfers)
            found[f"{trained}/train"] = DatasetSpec(
                reader=trained, path=path, split=split, prepare=prepare
            )
        for row in rows_of(name, transfer):
            prepare = _prepare_of(config, transfer).unaugmented()
            limit = transfer.eval_limit or prepare.limit
            found[f"{row.name}/eval"] = DatasetSpec(
                reader=name,
                path=transfer.path,
                split=row.split,
                prepare=dataclasses.replace(prepare, limit=limit),
            )
    return found


def _prepare_of(config: StudyConfig, transfer: TransferConfig) -> PrepareConfig:
    """Returns how a benchmark is prepared; augmented only where its own settings say so."""
    return transfer.prepare or config.prepare.unaugmented()


def num_steps(config: StudyConfig, until: Phase) -> int:
    """Returns how many steps a study has, up to a phase."""

    def phases() -> Iterator[int]:
        datasets = len(datasets_of(config))
        screened = len(config.sources) if config.hygiene else 0
        yield screened + (1 + datasets if config.data_root is None else 2 * datasets)
        noted = len(config.given) + (config.start is not None)
        yield 2 + (config.mask_codec is not None) + len(config.methods) + noted
        yield len(config.fine_tunings) * config.num_seeds * len(config.methods)
        cells = config.num_seeds * sum(len(config.budgets_of(m)) for m in config.methods)
        yield len(config.rows) * (cells + 1)  # Each row has its chance, too.
        yield 1

    return sum(list(phases())[: PHASES.index(until) + 1])
