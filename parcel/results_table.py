"""The results table of a run, to look at in a notebook or to go on computing with."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from flows.lookup.results import show_results
from flows.lookup.runs import find_run
from flows.pages.figures import figure_of_run, write_figure
from flows.report.plot import FORMS
from infra.errors import ConfigError
from infra.store.store import Store
from parcel.optional import import_pandas

if TYPE_CHECKING:
    import pandas


class Plot:
    """A figure of a run, see `ResultsTable.plot`."""

    def __init__(self, store: Store, run: str, figure: str, *, mixed: bool) -> None:
        self._store, self._run, self._figure, self._mixed = store, run, figure, mixed
        self._png = figure_of_run(store, run, "png", figure, mixed=mixed)

    def save(self, path: str | Path) -> None:
        """Writes the figure as a new file, whose suffix says its form: .pdf, .svg or .png.

        Raises:
          ConfigError: if the form is another, or the file is there or cannot be written.
        """
        path = Path(path)
        form = path.suffix.removeprefix(".")
        if form not in FORMS:
            raise ConfigError(f"path must end with .{', .'.join(FORMS)}, got {str(path)!r}.")
        write_figure(self._store, self._run, form, path, self._figure, mixed=self._mixed)

    def _repr_png_(self) -> bytes:
        return self._png


class ResultsTable:
    """The results of a run; a notebook shows it as the table that `parcel results` prints.

    Args:
      store: the store of the run.
      run: the study's name, or the beginning of the run's full name.
      mixed: whether scores of several library versions or accelerators are averaged, too.

    Raises:
      ConfigError: if there is no such run, listing the runs that exist.
    """

    def __init__(self, store: Store, run: str, *, mixed: bool = False) -> None:
        find_run(store, run)
        self._store, self._run, self._mixed = store, run, mixed

    def text(self, form: str = "md") -> str:
        """Returns the table as text, in any format of `parcel results --format` but html.

        Raises:
          ConfigError: if there is no such format, or the run has no table of it.
        """
        return show_results(self._store, self._run, form, None, mixed=self._mixed)

    def plot(self, figure: str = "scores") -> "Plot":
        """Returns a figure; a notebook shows it where it is the last line of a cell.

            parcel.results("small").plot("retention").save("retention.pdf")

        Args:
          figure: scores, pareto, retention or curves.

        Raises:
          ConfigError: if there is no such figure, or the run has nothing to draw in it.
        """
        return Plot(self._store, self._run, figure, mixed=self._mixed)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row per benchmark, method, budget and seed: its score, interval and artifacts.

        The columns are those of `parcel results --format cells`.

        Raises:
          ConfigError: if pandas is not installed.
        """
        pandas = import_pandas("text('cells'), which is CSV")
        return pandas.read_csv(io.StringIO(self.text("cells")))

    def __repr__(self) -> str:
        return self.text()

    def _repr_markdown_(self) -> str:
        return self.text()
