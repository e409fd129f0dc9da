"""The runs a store remembers: what was asked for, and which results came of it."""

import json
from pathlib import Path
from typing import Any

from flows.config.load import ConfigError
from infra.store.store import Artifact, Store


def find_run(store: Store, name: str) -> dict[str, Any]:
    """Returns the record of a finished run.

    Args:
      store: the store it wrote to.
      name: the study's name (the newest run of it), or the beginning of a run's full name.

    Raises:
      ConfigError: if no run is called so, with those there are.
    """
    records = [(path, json.loads(path.read_text())) for path in _paths(store)]
    matching = [(p, r) for p, r in records if r["name"] == name or p.stem.startswith(name)]
    if not matching:
        known = ", ".join(path.stem for path, _ in records) or "none yet"
        raise ConfigError(f"RUN must name a finished run, got {name!r}. In {store.root}: {known}.")
    return max(matching, key=lambda entry: entry[1]["finished"])[1]


def results_of(store: Store, name: str) -> Artifact:
    """Returns the results artifact of a run.

    Raises:
      ConfigError: if there is no such run.
    """
    return store.get(find_run(store, name)["results"])


def _paths(store: Store) -> list[Path]:
    return sorted((store.root / "runs").glob("*.json"))
