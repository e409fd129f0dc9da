"""Results: the tables and the plot of a study."""

import dataclasses
import json
from collections.abc import Iterator

from flows.lineage.links import page_link
from flows.report.cells import CellKey, Plan, Score
from flows.steps.kind import Kind, Work
from infra.progress import Progress
from model import files

CHANCE = "chance/"
"""Begins the role of an input that is a row's chance; the others are cells, see `CellKey`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultsSpec:
    """The tables of a study.

    Attributes:
      plan: which cells there should be.
      accepted: cells that rest on an artifact that was kept although its code has changed since.
    """

    plan: Plan
    accepted: tuple[CellKey, ...] = ()


def make(work: Work) -> Iterator[Progress]:
    """Gathers the scores of all inputs into tables."""
    from flows.report.build import build
    from flows.report.items import read_items
    from flows.report.plot import plot
    from flows.report.render import FORMATS, render

    spec: ResultsSpec = work.config
    scores, chance, guesses = [], {}, {}
    for role, folder in work.inputs.items():
        cell = CellKey.of_role(role)
        if cell is None:
            row = role.removeprefix(CHANCE)
            chance[row] = json.loads((folder / files.CHANCE).read_text())["score"]
            guesses[row] = read_items(folder / files.PREDICTIONS, chance[row])
            continue
        found = json.loads((folder / files.SCORE).read_text())
        scores.append(
            Score(
                **dataclasses.asdict(cell),
                score=found["score"],
                metric=found["metric"],
                artifact=work.keys[role],
                accepted=cell in spec.accepted,
                items=read_items(folder / files.PREDICTIONS, found["score"]),
            )
        )
    if not scores:
        raise ValueError("no cell was scored, so there is no table.")
    report = build(spec.plan, scores, chance, guesses)
    for form in FORMATS:
        (work.out / f"results.{form}").write_text(render(report, form))
    linked = render(report, "md", link=lambda c: page_link(c.artifacts[0]) if c.artifacts else None)
    (work.out / "linked.md").write_text(linked)
    plot(report, work.out / "results.png")
    work.counts["cells"] = len(scores)
    yield Progress(done=1, total=1)


RESULTS = Kind(name="results", make=make, libraries=("matplotlib",))
