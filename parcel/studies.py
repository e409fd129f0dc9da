"""The study that a person names: a YAML file, or a study that ran; or the demo."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.study.study import StudyConfig


DEFAULT_STORE = ".parcel"
"""The store that commands and functions take if none is named."""


def load_named_study(path: str | None, overrides: Sequence[str], store: str) -> "StudyConfig":
    """Returns the config of a study.

    Args:
      path: a YAML file, or the name of a study that ran in the store; None takes the demo.
      overrides: changes as "key.path=value" texts, with values in YAML.
      store: the store that has studies by name; it is opened only for a name [URI].

    Raises:
      ConfigError: naming the file, the field, the value and what is accepted.
    """
    from flows.study.load import apply_overrides, load

    # "small.yaml" is a file; "small", which has no suffix, is the name of a study that ran.
    if path is None or Path(path).suffix:
        return load(path, overrides)
    from flows.lookup.open_store import open_store
    from flows.sweep.form_values import study_values
    from infra.errors import ConfigError

    opened = open_store(store, make=False)
    try:
        values = study_values(path, opened)
    except ConfigError as error:
        files = [f"{path}{suffix}" for suffix in (".yaml", ".yml") if Path(path + suffix).is_file()]
        if not files:
            raise
        raise ConfigError(f"{error} There is a file {files[0]}: name it with its suffix.") from None
    config = apply_overrides(values, overrides, source=path)
    mention_larger_run(opened, path, with_table=False)
    return config


def mention_larger_run(store: Any, name: str, *, with_table: bool = True) -> None:
    """Prints a line on the standard error where the newest run of a name hides a larger one.

    Args:
      store: the store of the runs.
      name: a study's name, or that of a cell of it.
      with_table: whether only runs with a table count.
    """
    from flows.lookup.runs import describe_larger_run, ended_run_records

    records = [r for r in ended_run_records(store).values() if r["results"] or not with_table]
    if line := describe_larger_run(records, name.partition("/")[0]):
        print(line, file=sys.stderr)


def start_in_store(
    start: Callable[..., Any], study: Any, store: str, *words: Any, **options: Any
) -> int:
    """Runs a study or a sweep in the store of a URI, which this process opens itself.

    Args:
      start: function of a study, its store and more; returns what `run_in_terminal` takes.
      study: the study, its name, or what its run is asked to do.
      store: the store [URI].
      *words: further arguments.
      **options: options.
    """
    from flows.lookup.open_store import open_store
    from flows.machine.start import run_in_terminal
    from infra.store.variables import leave_out_variables

    leave_out_variables()  # A notebook keeps its own settings of JAX.
    opened = open_store(store)
    return run_in_terminal(start(study, opened, *words, **options), opened)
