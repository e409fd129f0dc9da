"""The study that a person names: a YAML file, or a study that ran; or the demo."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.config.study import StudyConfig


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
    from flows.config.load import apply_overrides, load

    # "small.yaml" is a file; "small", which has no suffix, is the name of a study that ran.
    if path is None or Path(path).suffix:
        return load(path, overrides)
    from flows.lineage.open_store import open_store
    from flows.study.form_values import study_values

    return apply_overrides(study_values(path, open_store(store)), overrides, source=path)
