"""The results table of a run, to look at in a notebook or to go on computing with."""

import io
from typing import TYPE_CHECKING

from flows.lookup.results import show_results
from flows.lookup.runs import find_run
from infra.store.store import Store
from parcel.optional import import_pandas

if TYPE_CHECKING:
    import pandas


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
