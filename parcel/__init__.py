"""PARCEL in a notebook or a script: a study from its raw data to its table.

    import parcel

    study = parcel.load("small.yaml", num_seeds=2)    # or load() for the demo
    table = parcel.run(study)                         # as `parcel run` does, with its progress
    table.to_pandas()                                 # a row per benchmark, method, budget and seed
    parcel.sweep("small", seeds=5)                    # only missing cells run
    parcel.curves("small").to_pandas()                # what its trainings logged, step by step
    parcel.items("small/chartqa/parcel/64")           # pictures, questions and what was answered
    print(parcel.trace("small/chartqa/parcel/64"))    # a cell, down to its source samples

Each function calls what the command or the page of its name calls, and takes the same store:
`.parcel` in the current folder, or what the variable `PARCEL_STORE` names. A wrong request is a
`ConfigError`, whose one line says the field, the value, what is accepted and the cure.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcel.environment import (
    bypass_proxy,
    drop_unusable_certificates,
    find_own_packages,
    use_utf8,
)

if TYPE_CHECKING:  # Imported when they are needed: `import parcel` takes no time.
    from flows.graph.graph import Phase
    from flows.study.study import StudyConfig
    from infra.store.store import Store
    from parcel.cell_items import CellFilter, CellItems
    from parcel.results_table import ResultsTable
    from parcel.training_curves import TrainingCurves

__all__ = ["curves", "items", "load", "results", "run", "sweep", "trace"]

# Before a library reads the variables, and for commands, too.
find_own_packages()
bypass_proxy()
drop_unusable_certificates()
use_utf8()


def load(
    config: str | Path | None = None, *, store: str | None = None, **overrides: Any
) -> "StudyConfig":
    """Returns the checked config of a study.

        parcel.load("small.yaml", num_seeds=2, **{"stage1.total_steps": 20})

    Args:
      config: a YAML file, or the name of a study that ran in the store, for its newest run, or the
        full name of a run; None takes the demo.
      store: the store that has studies by name [URI].
      **overrides: key of the config, as "stage1.peak_lr" -> its value.

    Raises:
      ConfigError: naming the file, the field, the value and what is accepted.
    """
    from parcel.studies import load_named_study

    return load_named_study(
        None if config is None else str(config),
        _override_words(overrides),
        _store_or_default_uri(store),
    )


def run(
    config: "StudyConfig | str | Path | None" = None,
    *,
    until: "Phase" = "report",
    rebuild: Sequence[str] = (),
    approve: bool = False,
    failed: bool = False,
    tags: Sequence[str] = (),
    note: str = "",
    store: str | None = None,
    **overrides: Any,
) -> "ResultsTable | None":
    """Runs a study, with progress below the call; returns its table, as `parcel run` prints it.

    The run has a process of its own. It ends in order, as at Ctrl-C, if the call is interrupted or
    this process ends; the same call then goes on with it.

    What the store has already is reused, so a second call with the same study returns at once.

        parcel.run("small.yaml", num_seeds=2)

    Args:
      config: a study, or what `load` takes.
      until: the last phase to run: prepare, train, transfer, evaluate or report.
      rebuild: steps to make again at any cost if their code has changed; may hold `*`.
      approve: wait for somebody's approval in the UI before anything is made.
      failed: run only the steps that failed in the last run of the study, and what they need.
      tags: words to find the run by.
      note: a line about the run, for its page.
      store: the store [URI].
      **overrides: as in `load`.

    Returns:
      The table; None where the run stops before the report.

    Raises:
      ConfigError: as `load`; or if changed code would repeat more than `compute.rebuild_limit`.
      RuntimeError: if a step failed.
    """
    from flows.lookup.open_store import open_store
    from flows.machine.start import keep_server, start_study
    from flows.run.request import RunRequest
    from infra.errors import ConfigError
    from infra.processes.child import call_in_child
    from parcel.studies import start_in_store

    # Overrides are part of loading a study: one that is loaded is checked already.
    if config is None or isinstance(config, str | Path):
        config = load(config, store=store, **overrides)
    elif overrides:
        raise ConfigError(
            f"{', '.join(overrides)} must be given to parcel.load, got it beside a study that is "
            f"loaded."
        )
    opened = open_store(_store_or_default_uri(store))
    keep_server(opened)
    request = RunRequest(
        config=config,
        until=until,
        rebuild=tuple(rebuild),
        approve=approve,
        failed=failed,
        tags=tuple(tags),
        note=note,
    )
    words = ["parcel.run", config.name]
    has_failed = call_in_child(words, start_in_store, start_study, request, opened.uri)
    if has_failed:
        raise RuntimeError(_describe_failure(config.name, opened))
    return results(config.name, store=store) if until == "report" else None


def sweep(
    study: str = "demo",
    *,
    when: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    approve: bool = False,
    store: str | None = None,
    **add: Any,
) -> "ResultsTable":
    """Adds seeds, methods, benchmarks or budgets to a study, and runs only what is missing.

        parcel.sweep("small", seeds=5, methods=["vanilla", "parcel"])
        parcel.sweep("small", until_decided=True, when={"max_hours": 8})

    Args:
      study: demo, a YAML file, or the name of a study that ran in the store.
      when: when cells may begin, and how much work they may do: start, end, timezone, max_hours,
        first.
      overrides: key of the study's config -> its value.
      approve: wait for somebody's approval in the UI before anything is made.
      store: the store [URI].
      **add: what is added: methods, benchmarks, budgets, seeds, pretrain_seeds, add_seeds,
        add_pretrain_seeds, max_seeds, max_pretrain_seeds, until_decided, compare, least_seeds. What
        the study has already stays: seeds=1 leaves a study of two as it is, and a line says so.

    Returns:
      The study's table, with the new cells.

    Raises:
      ConfigError: naming the field, the value and what is accepted.
      RuntimeError: if a step failed.
    """
    from flows.lookup.open_store import open_store
    from flows.machine.start import keep_server, start_sweep
    from flows.run.limits import SweepLimits
    from flows.sweep.form_values import check_values, sweep_of_form
    from flows.sweep.sweep import Sweep
    from infra.processes.child import call_in_child
    from parcel.studies import start_in_store

    # Plain values become the same types that the command and the form fill in.
    sweep_and_limits = (
        check_values(Sweep, add, "sweep"),
        check_values(SweepLimits, dict(when or {}), "sweep"),
    )
    opened, words = open_store(_store_or_default_uri(store)), _override_words(overrides or {})
    # Refuses before anything has started.
    sweep_run = sweep_of_form(study, opened, words, sweep_and_limits[0])
    for line in sweep_run.describe_redundant_settings():
        print(line)
    keep_server(opened)
    request = ["parcel.sweep", study]
    has_failed = call_in_child(
        request, start_in_store, start_sweep, study, opened.uri, words, *sweep_and_limits,
        approve=approve,
    )  # fmt: skip
    if has_failed:
        raise RuntimeError(_describe_failure(sweep_run.config.name, opened))
    return results(sweep_run.config.name, store=store)


def results(run: str, *, mixed: bool = False, store: str | None = None) -> "ResultsTable":
    """Returns the results table of a run, as `parcel results` prints it.

        parcel.results("small").to_pandas().groupby(["benchmark", "method", "budget"]).score.mean()

    Args:
      run: a study's name, for its newest run; or the beginning of a run's full name.
      mixed: average scores of several library versions or accelerators, too.
      store: the store [URI].

    Raises:
      ConfigError: if there is no such run, listing the runs that exist.
    """
    from parcel.results_table import ResultsTable

    return ResultsTable(_store_of(run, store), run, mixed=mixed)


def curves(run: str, *, store: str | None = None) -> "TrainingCurves":
    """Returns what the trainings behind a run's table logged, as its page draws it.

        losses = parcel.curves("small").to_pandas().query("quantity == 'loss'")
        losses.pivot_table(index="step", columns="method", values="value").plot()

    Args:
      run: a study's name, for its newest run; or a run's full name.
      store: the store [URI].

    Raises:
      ConfigError: if there is no such run, listing the runs that exist.
    """
    from parcel.training_curves import TrainingCurves

    return TrainingCurves(_store_of(run, store), run)


def items(
    cell: str, *, show: "CellFilter" = "all", find: str = "", store: str | None = None
) -> "CellItems":
    """Returns the items of a cell: pictures, questions, and what each seed answered.

        wrong = parcel.items("small/chartqa/parcel/64", show="wrong")
        wrong[0].images[0]

    Args:
      cell: RUN/BENCHMARK/METHOD/BUDGET, or the same with /SEED.
      show: "right" for items whose mean score over seeds is at least 0.5, "wrong" for the others,
        or "all".
      find: text that an item's id must contain.
      store: the store [URI].

    Raises:
      ConfigError: if there is no such cell, listing those that exist; or `show` is none of these.
    """
    from parcel.cell_items import CellItems

    return CellItems(_store_of(cell, store), cell, show=show, find=find)


def trace(name: str, *, samples: int = 3, store: str | None = None) -> str:
    """Returns the history of a table, a cell or an artifact, as `parcel lineage trace` prints it.

        print(parcel.trace("small/chartqa/parcel/64"))

    Args:
      name: RUN, RUN/BENCHMARK/METHOD/BUDGET, the same with /SEED, or an artifact's key.
      samples: number of source samples shown per dataset.
      store: the store [URI].

    Raises:
      ConfigError: if nothing has that name.
    """
    from flows.lineage.trace import trace_lineage as lines_of
    from flows.lookup.target import find_target

    opened = _store_of(name, store)
    return "\n".join(lines_of(opened, find_target(opened, name), samples=samples))


def _describe_failure(name: str, store: "Store") -> str:
    """Returns how the newest run of a study ended, with the first step that failed, in one line."""
    from flows.lookup.runs import describe_ends, ended_run_records, runs_named

    runs = runs_named(ended_run_records(store).values(), name)
    ends = describe_ends(runs[0]["failed"], runs[0].get("holes", ())) if runs else ""
    return f"the run of {name} failed: {ends or 'its last lines say why'}"


def _override_words(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as a command line has them, with values in YAML."""
    from infra.yaml_text import dump_yaml

    return [
        f"{key}={dump_yaml(value, default_flow_style=True)}" for key, value in overrides.items()
    ]


def _store_of(run: str, store: str | None) -> "Store":
    """Returns the opened store; a line says where a run's name, or a cell's, hides a larger run."""
    from flows.lookup.open_store import open_existing_store
    from parcel.studies import mention_larger_run

    opened = open_existing_store(_store_or_default_uri(store))
    mention_larger_run(opened, run)
    return opened


def _store_or_default_uri(store: str | None) -> str:
    """Returns the store that a command would take."""
    from parcel.studies import DEFAULT_STORE

    return store or os.environ.get("PARCEL_STORE") or DEFAULT_STORE
