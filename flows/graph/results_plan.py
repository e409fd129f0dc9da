"""The layout of a study's results table."""

import dataclasses

from flows.config.benchmark import training_of
from flows.graph.costs import costs_of
from flows.graph.inputs import NO_INPUTS, StudyInputs
from flows.report.cells import Plan
from flows.study.settings import REFERENCE
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.errors import ConfigError
from pipelines.sources.paper_groups import block_of, group_sizes, rows_by_group

ZERO_SHOT = "zero-shot"
"""Name, in a table, of the training behind the rows that a stage's checkpoint is scored on."""


def results_plan(config: StudyConfig, inputs: StudyInputs = NO_INPUTS) -> Plan:
    """Returns the layout of a study's results table, on all its backbones, at all resolutions.

    The cell of a budget that a method does not serve stays empty.

    Raises:
      ConfigError: if nothing is scored.
    """
    if not config.backbone_studies[0].rows:
        raise ConfigError(
            "transfers must have a benchmark, got none: there is nothing to score. "
            "`parcel run --until train` needs none."
        )
    plan, *also = (
        _plan_of_view(view, inputs, several=len(study.resolutions) > 1)
        for study in config.backbone_studies
        for view in study.resolutions
    )
    return dataclasses.replace(plan, also=tuple(also))


def _plan_of_view(view: StudyView, inputs: StudyInputs, *, several: bool) -> Plan:
    # The paper's groups and blocks go by its own names of rows at a resolution; a study's rows
    # of other benchmarks are in none. What holds for all of a table is left out: budgets that all
    # methods serve, the size of the only resolution.
    served_budgets = {
        method: view.budgets_of(method) for method in view.methods if method != REFERENCE
    }
    paper_rows = {name: row.paper_row for name, row in view.rows.items()}
    is_high, suffix = view.is_higher, view.view_suffix
    groups = rows_by_group(paper_rows, is_high=is_high)
    sizes = group_sizes(is_high=is_high)
    blocks = {name: block_of(row, is_high=is_high) for name, row in paper_rows.items() if row}
    return Plan(
        methods=view.methods,
        benchmarks=tuple(view.rows),
        budgets=view.budgets,
        seeds=view.seeds,
        reference=REFERENCE,
        budgets_of={m: served for m, served in served_budgets.items() if served != view.budgets},
        groups=groups,
        group_sizes={name: sizes[name] for name in groups},
        blocks={name: block for name, block in blocks.items() if block},
        left_out=tuple(name for name, row in view.rows.items() if not row.in_means),
        pretrainings=tuple(number for number, _ in view.seed_pairs),
        trainings={
            name: training_of(row.benchmark, view.transfers[row.benchmark]) or ZERO_SHOT
            for name, row in view.rows.items()
        },
        costs=inputs.costs[suffix] if suffix in inputs.costs else costs_of(view),
        resolution=view.model.vision.image_px if several else None,
        backbone=view.backbone or None,
        draws=view.draws(),
    )
