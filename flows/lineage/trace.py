"""`parcel lineage trace`: a cell of the table down to its source samples."""

from rich.console import Console
from rich.tree import Tree

from flows.lineage import pages as lineage
from flows.report.cells import CellKey
from flows.study.load import ConfigError
from flows.study.runs import results_of
from infra.store.store import Artifact, Store

_UNCUT = 2000
"""Characters in a line; longer than any [characters]."""


def trace(store: Store, run: str, cell: str, samples: int) -> None:
    """Prints the history of a run's cell, or of its whole table where `cell` is empty.

    Raises:
      ConfigError: if there is no such run or cell, with those there are.
    """
    results = results_of(store, run)
    if not cell:
        _print(lineage.tree(store, results.key, samples=samples))
        return
    tree = Tree(f"[bold]{cell}[/] of {results.key}")
    shown: set[str] = set()
    for role, entry in _cell_inputs(results, cell):
        tree.add(lineage.tree(store, entry, samples=samples, role=role, shown=shown))
    _print(tree)


def _print(tree: Tree) -> None:
    """Prints a tree with whole lines: digests are for copying, so nothing is cut to fit."""
    console = Console(highlight=False, width=_UNCUT)
    with console.capture() as captured:
        console.print(tree)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _cell_inputs(results: Artifact, cell: str) -> list[tuple[str, str]]:
    inputs = sorted(results.manifest.inputs.items())
    keyed = [(key, entry.key) for role, entry in inputs if (key := CellKey.of_role(role))]
    found = [(f"seed {key.seed}", artifact) for key, artifact in keyed if key.cell == cell]
    if not found:
        cells = sorted({key.cell for key, _ in keyed})
        raise ConfigError(
            f"--cell must be benchmark/method/budget of the table, got {cell!r}. "
            f"Accepted: {', '.join(cells)}."
        )
    return found
