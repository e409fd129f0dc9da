"""Results: the tables and the plot of a study."""

import dataclasses
from collections.abc import Iterator

from flows.report.cells import CellKey, Plan
from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from infra.store.digest import file_sha256, listing_sha256


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultsSpec:
    """The tables of a study.

    Attributes:
      plan: the cells that the tables should have.
      accepted: cells that rest on an artifact that was accepted although its code changed since.
    """

    plan: Plan
    accepted: tuple[CellKey, ...] = ()


def make(work: StepContext) -> Iterator[Progress]:
    """Gathers the scores of all inputs into tables."""
    from flows.report.gather import gather_report
    from flows.report.pareto import plot_latency, plot_pareto
    from flows.report.plot import plot_report
    from flows.report.render import FORMATS, comparisons_to_csv, latency_to_csv, render_report

    spec: ResultsSpec = work.config
    report = gather_report(spec.plan, spec.accepted, work.artifacts, work.recall)
    for form in FORMATS:
        (work.out / f"results.{form}").write_text(render_report(report, form))
    (work.out / "comparisons.csv").write_text(comparisons_to_csv(report))
    plot_report(report, work.out / "results.png")
    plot_pareto(report, work.out / "pareto.png")
    paths = sorted(path for path in work.out.iterdir() if path.is_file())
    work.content = listing_sha256({path.name: file_sha256(path) for path in paths})
    # After the content digest: measured times differ each time the same results are made.
    plot_latency(report, work.out / "latency.png")
    (work.out / "latency.csv").write_text(latency_to_csv(report))
    work.counts["cells"] = sum(cell.n for section in report.sections for cell in section.cells)
    yield Progress(done=1, total=1)


RESULTS = Kind(
    name="results",
    make=make,
    spec=ResultsSpec,
    libraries=("matplotlib",),
    stop=("model.eval.metrics.registry",),
)
