"""Results: the tables and the plot of a study.

Files:
  results.*: the table as Markdown, CSV, JSON and LaTeX, and drawn
  comparisons.csv: every two methods, at every budget
  pareto.png: score against cost
  latency.*: score against measured time
"""

import dataclasses
from collections.abc import Iterable, Iterator, Set

from flows.report.cells import CHANCE, CellKey, Plan
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
    from flows.report.pareto import MEASURED, draw_pareto
    from flows.report.plot import draw_scores
    from flows.report.render import FORMATS, comparisons_to_csv, latency_to_csv, render_report

    spec: ResultsSpec = work.config
    report = gather_report(spec.plan, spec.accepted, work.artifacts, work.recall)
    for form in FORMATS:
        (work.out / f"results.{form}").write_text(render_report(report, form))
    (work.out / "comparisons.csv").write_text(comparisons_to_csv(report))
    (work.out / "results.png").write_bytes(draw_scores(report))
    (work.out / "pareto.png").write_bytes(draw_pareto(report))
    paths = sorted(path for path in work.out.iterdir() if path.is_file())
    work.content = listing_sha256({path.name: file_sha256(path) for path in paths})
    # After the content digest: measured times differ each time the same results are made.
    (work.out / "latency.png").write_bytes(draw_pareto(report, of=MEASURED))
    (work.out / "latency.csv").write_text(latency_to_csv(report))
    work.counts["cells"] = sum(cell.n for section in report.sections for cell in section.cells)
    yield Progress(done=1, total=1)


def _mark_accepted(
    spec: ResultsSpec, roles: Iterable[str], accepted_roles: Set[str]
) -> ResultsSpec:
    """Returns the spec of a table that marks its cells that rest on accepted artifacts.

    All cells of a benchmark rest on its chance score, which decides whether they are above chance.
    """
    cells = [cell for role in roles if (cell := CellKey.of_role(role))]
    marked = [
        c for c in cells if str(c) in accepted_roles or f"{CHANCE}{c.benchmark}" in accepted_roles
    ]
    return dataclasses.replace(spec, accepted=tuple(sorted(marked, key=str)))


RESULTS = Kind(
    name="results",
    make=make,
    spec=ResultsSpec,
    libraries=("matplotlib",),
    stop=("model.eval.metrics.registry",),
    holds="table",
    mark_accepted=_mark_accepted,
)
