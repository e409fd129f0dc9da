"""What the trainings of a run logged by step, to draw or to compute with."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flows.pages.compare_page import trainings_by_sort
from flows.pages.curves import log_of, logged_curves
from flows.pages.run_results import study_of
from infra.store.store import Store
from parcel.optional import import_pandas

if TYPE_CHECKING:
    import pandas


class LoggedValue(NamedTuple):
    """A value that a training logged.

    Attributes:
      stage: sort of the training: transfer, stage2, intermediary or stage1.
      training: its name, as in a trace.
      method: the method it trains; of a training that methods share, the first that rests on it.
      seed: its seed.
      quantity: loss, gradient norm, loss on held-out records, or score of the probe.
      tokens: soft tokens at which a held-out loss or a probe was computed, as "16 tokens"; else "".
      step: number of the update.
      value: the value.
      checkpoint: key of the checkpoint.
    """

    stage: str
    training: str
    method: str
    seed: int | None
    quantity: str
    tokens: str
    step: float
    value: float
    checkpoint: str


class TrainingCurves:
    """The curves of all trainings that a table rests on; each training is listed once.

    A training whose files `gc` pruned has no values.

    Attributes:
      values: every logged value, training after training, the transfers first.

    Args:
      store: the store of the run.
      run: the study's name, or the run's full name.

    Raises:
      ConfigError: if there is no such run, listing the runs that exist.
    """

    def __init__(self, store: Store, run: str) -> None:
        self.values: Sequence[LoggedValue] = [*_logged_values(store, run)]

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row per logged value, with the columns of `LoggedValue`.

        Raises:
          ConfigError: if pandas is not installed.
        """
        pandas = import_pandas("values, a list")
        return pandas.DataFrame(self.values, columns=LoggedValue._fields)

    def text(self) -> str:
        """Returns a line per training: its steps, and its first and last loss."""
        losses: dict[str, list[LoggedValue]] = {}
        for value in self.values:
            if value.quantity == "loss":
                losses.setdefault(value.checkpoint, []).append(value)
        return "\n".join(
            f"{of[0].training}: loss {of[0].value:.3g} at step {of[0].step}, "
            f"{of[-1].value:.3g} at step {of[-1].step}"
            for of in losses.values()
        )

    def __repr__(self) -> str:
        return self.text()


def _logged_values(store: Store, run: str) -> Iterator[LoggedValue]:
    # Benchmarks share the stages before their transfers, so a training is met more than once.
    seen = set[str]()
    for section in study_of(store, run).report.sections:
        for stage, trainings in trainings_by_sort(store, section).items():
            for group, made in trainings:
                if made.key in seen:
                    continue
                seen.add(made.key)
                log = log_of(store.get_cached(made.key))
                for quantity, curves in logged_curves(log).items():
                    for tokens, points in curves.items():
                        for step, value in points:
                            yield LoggedValue(
                                stage=stage,
                                training=made.name,
                                method=section.methods[group],
                                seed=made.seed,
                                quantity=quantity,
                                tokens=tokens,
                                step=step,
                                value=value,
                                checkpoint=made.key,
                            )
