"""Records of runs: their configs and results; and artifacts found by name."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.study.kept import KeepConfig, let_go_by
from flows.study.load import ConfigError
from infra.store.gc import LET_GO, RUNS
from infra.store.redact import redact
from infra.store.store import Artifact, Store


def note_run(
    store: Store,
    config: Mapping[str, Any],
    results: str | None,
    *,
    artifacts: Sequence[str],
    flow_run_id: str,
    failed: Sequence[str],
) -> None:
    """Writes the record of a run; the same results have one record.

    What a record names, and what that was made from, is never garbage; but for checkpoints that
    the study does not keep.

    Args:
      store: where.
      config: what was asked for, as plain values; it has a name.
      results: key of the results artifact; None where the run came to none.
      artifacts: keys of all that it made or found.
      flow_run_id: of the Prefect run.
      failed: "step: reason" of each step that failed.
    """
    keep = KeepConfig(**config.get("keep", {}))
    # Where a step failed, what it reads may be asked for again.
    gone = set() if failed else let_go_by(keep, map(store.recall, artifacts))
    record = {
        "name": config["name"],
        "results": results,
        "artifacts": sorted({*artifacts} - gone),
        LET_GO: sorted(gone),
        "flow_run_id": flow_run_id,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "failed": redact(list(failed)),
        "config": redact(config),
    }
    own = results.removeprefix("results-") if results else "unfinished"
    text = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    store.files.put(f"{RUNS}/{record['name']}-{own}.json", text)


def find_run(store: Store, name: str) -> dict[str, Any]:
    """Returns the record of a finished run.

    Args:
      store: the store it wrote to.
      name: the study's name (the newest run of it), or the beginning of a run's full name.

    Raises:
      ConfigError: if no run is called so, with those there are.
    """
    finished = {run: record for run, record in records(store).items() if record["results"]}
    matching = [r for run, r in finished.items() if r["name"] == name or run.startswith(name)]
    if not matching:
        known = ", ".join(finished) or "none yet"
        raise ConfigError(f"RUN must name a finished run, got {name!r}. In {store.uri}: {known}.")
    return max(matching, key=lambda record: record["finished"])


def records(store: Store) -> dict[str, dict[str, Any]]:
    """Returns the record of every run that came to its end, by the run's full name."""
    names = [name for name in store.files.listing(RUNS) if name.endswith(".json")]
    texts = {name.removesuffix(".json"): store.files.read(f"{RUNS}/{name}") for name in names}
    return {run: json.loads(text) for run, text in texts.items()}


def folder_of(what: str, name: str, store: str) -> Path:
    """Returns a folder given by its path, or as an artifact; it may not exist without a store.

    Args:
      what: the argument, as an error names it.
      name: a folder, or the beginning of an artifact's key.
      store: where artifacts are.

    Raises:
      ConfigError: if there is a store, and `name` is neither.
    """
    folder = Path(name)
    there = "://" in store or Path(store).expanduser().is_dir()
    if folder.is_dir() or not there:
        return folder
    try:
        return Store(store).resolve(name).path
    except KeyError as error:
        raise ConfigError(
            f"{what} must be a folder or an artifact of {store}: {error.args[0]}"
        ) from None


def find_dataset(name: str, store: str) -> Path:
    """Returns the folder of a prepared dataset given by its path, or as an artifact.

    Raises:
      ConfigError: if there is no such dataset.
    """
    from pipelines.records.dataset import DESCRIPTION  # Pillow and NumPy come with it.

    folder = folder_of("dataset", name, store)
    if not (folder / DESCRIPTION).is_file():
        raise ConfigError(
            f"dataset must be a prepared one, or its artifact, got {name}: no {DESCRIPTION} there; "
            f"`parcel prepare` makes it."
        )
    return folder


def results_of(store: Store, name: str) -> Artifact:
    """Returns the results artifact of a run.

    Raises:
      ConfigError: if there is no such run.
    """
    return store.get(find_run(store, name)["results"])
