"""What a terminal shows of a run that has ended: its table, its counts, what failed and is next."""

from rich.console import Console
from rich.markdown import Markdown

from flows.lookup.runs import describe_ends
from flows.report.text_lists import abbreviate_list, counted
from flows.run.result import StudyResult
from infra.prefect.server import UI
from infra.store.store import Store

_MAX_NAMES = 3
"""Most steps named in one line; the others are only counted."""


def print_result(
    console: Console, store: Store, result: StudyResult, seconds: float, ui: UI | None
) -> None:
    """Prints the table, a summary and the address of a run.

    Args:
      console: the terminal.
      store: the run's store.
      result: its outcome.
      seconds: how long it took [s].
      ui: UI that outlives the run; None if it ends with it.
    """
    if result.results:
        table = (store.get(result.results).path / "results.md").read_text(encoding="utf-8")
        console.print(Markdown(table)) if console.is_terminal else print(table)
    _print_summary(console, store, result, seconds)
    console.print(f"flow run: {_run_url(result.flow_run_id, ui)}", soft_wrap=True)


def _print_summary(console: Console, store: Store, result: StudyResult, seconds: float) -> None:
    config = result.config
    # What went wrong comes first, each cause once, and what to do next last, where a person looks:
    #
    #   failed: stage1 m3, stage1 mqt: …
    #   17 steps in 160 s: 8 made, 5 reused, 2 failed, 2 not run
    #   not run, since stage1 m3 failed: transfer m3 chartqa seed=48213, …
    #   tables and plot: .parcel/artifacts/results-…
    #   next: parcel lineage trace demo/chartqa:test_human/parcel/64
    steps_by_failure: dict[str, list[str]] = {}
    for step, _, why in (failure.partition(": ") for failure in result.failed):
        steps_by_failure.setdefault(why, []).append(step)
    for why, failed in steps_by_failure.items():
        names = abbreviate_list(failed, _MAX_NAMES)
        console.print(f"failed: {names}: {why}", markup=False, soft_wrap=True)
    steps = result.made + result.reused + len(result.failed) + len(result.holds)
    idle = not (result.made or result.failed or result.holds)
    summary = "everything reused" if idle else f"{result.reused} reused"
    ends = describe_ends(result.failed, result.holds, cause=False)
    counts = ", ".join(filter(None, (f"{result.made} made", summary, ends)))
    console.print(f"{counted(steps, 'step')} in {seconds:.0f} s: {counts}")
    for why, nodes in result.nodes_by_hold_reason.items():
        console.print(
            f"not run, {why}: {abbreviate_list(nodes, _MAX_NAMES)}",
            markup=False,
            soft_wrap=True,
        )
    if result.results:
        console.print(result.disk_use, soft_wrap=True)
        folder = store.get(result.results).path
        console.print(f"tables and plot: {folder}", soft_wrap=True)
        # A cell that this study has: its first row, its last method, that method's last budget.
        study, method = config.backbone_studies[0], config.methods[-1]
        if row := next(iter(study.rows), None):
            cell = f"{row}/{method}/{study.budgets_of(method)[-1]}"
            console.print(f"next: parcel lineage trace {config.name}/{cell}")


def _run_url(flow_run_id: str, ui: UI | None) -> str:
    """Returns the address of a run's UI page; where its server ends with it, how to see it."""
    if ui is None:  # The port is that of the next `parcel serve`, which is not known yet.
        return f"{flow_run_id}  (`parcel serve` shows it)"
    return ui.link(f"/runs/flow-run/{flow_run_id}")
