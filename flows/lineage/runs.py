"""Records of runs, with their configs and results; and look-up of artifacts by name."""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.disk_use import KeepConfig, prunable_checkpoints
from infra.errors import ConfigError
from infra.store.records import FORMAT, PRUNED, RUNS, run_records
from infra.store.redact import redact
from infra.store.store import Artifact, Store


def write_run_record(
    store: Store,
    config: Mapping[str, Any],
    results: str | None,
    *,
    artifacts: Sequence[str],
    flow_run_id: str,
    failed: Sequence[str],
    given_up: Sequence[str] = (),
) -> None:
    """Writes the record of a run; runs of a study with the same results share one record.

    Runs without results share one if they made or found the same artifacts. `parcel gc` keeps the
    artifacts that a record names and all that they were made from, except checkpoints that the
    study's `keep` lets go.

    Args:
      store: the store of the run.
      config: the study's config, as plain values, with its name.
      results: key of the results artifact; None if the run made none.
      artifacts: keys of all artifacts that the run made or found.
      flow_run_id: id of the Prefect flow run.
      failed: "step: reason" for each step that failed.
      given_up: names of steps that were not tried, because they had failed too often.
    """
    keep = KeepConfig(**config.get("keep", {}))
    # After a failure nothing is let go: the next attempt may read these files again.
    pruned_keys = set() if failed else prunable_checkpoints(keep, map(store.get_cached, artifacts))
    record = {
        "format": FORMAT,
        "name": config["name"],
        "results": results,
        # gc keeps these; what `keep` let go is named apart, so that its absence is explained.
        "artifacts": sorted({*artifacts} - pruned_keys),
        PRUNED: sorted(pruned_keys),
        "flow_run_id": flow_run_id,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "failed": redact(list(failed)),
        "given_up": list(given_up),
        "config": redact(config),
    }
    # Without results, runs that made other artifacts have records of their own: `parcel prepare`
    # after `parcel train` must not take away the record that keeps its checkpoints.
    digest = hashlib.sha256(" ".join(record["artifacts"]).encode()).hexdigest()[:12]
    suffix = results.removeprefix("results-") if results else f"unfinished-{digest}"
    text = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    store.files.put(f"{RUNS}/{record['name']}-{suffix}.json", text)


def find_run(store: Store, name: str) -> dict[str, Any]:
    """Returns the record of a finished run.

    Args:
      store: the store that the run wrote to.
      name: the study's name, for its newest run; if no study has it, the beginning of a run's full
        name.

    Raises:
      ConfigError: if there is no such run, listing the runs that exist.
      RecordError: if the record of a run cannot be read.
    """
    finished = {
        run: record for run, record in ended_run_records(store).items() if record["results"]
    }
    matching = [record for record in finished.values() if record["name"] == name]
    matching = matching or [record for run, record in finished.items() if run.startswith(name)]
    if not matching:
        names = ", ".join(finished) or "none yet"
        raise ConfigError(f"RUN must name a finished run, got {name!r}. In {store.uri}: {names}.")
    return max(matching, key=lambda record: record["finished"])


def ended_run_records(store: Store) -> dict[str, dict[str, Any]]:
    """Returns full name -> record of every run that ended, with or without results.

    Raises:
      RecordError: if one cannot be read.
    """
    return run_records(store.files)


def artifact_folder(what: str, name: str, store: str) -> Path:
    """Returns the folder that a path or an artifact's key names.

    Args:
      what: name of the argument in an error.
      name: path of a folder, or the beginning of an artifact's key.
      store: the artifact store; if there is none, `name` is returned as a path that may not exist.

    Raises:
      ConfigError: if the store exists and `name` is neither a folder nor one of its artifacts.
    """
    folder = Path(name)
    is_store = "://" in store or Path(store).expanduser().is_dir()
    if folder.is_dir() or not is_store:
        return folder
    try:
        return Store(store).resolve(name).path
    except KeyError as error:
        raise ConfigError(
            f"{what} must be a folder or an artifact of {store}: {error.args[0]}"
        ) from None


def find_dataset(name: str, store: str) -> Path:
    """Returns the folder of a prepared dataset, given by its path or its artifact's key.

    Raises:
      ConfigError: if there is no such dataset.
    """
    from pipelines.records.dataset import DESCRIPTION  # Pillow and NumPy come with it.

    folder = artifact_folder("dataset", name, store)
    if not (folder / DESCRIPTION).is_file():
        raise ConfigError(
            f"dataset must be a prepared one, or its artifact, got {name}: no {DESCRIPTION} there; "
            f"`parcel prepare` makes it."
        )
    return folder


def results_artifact(store: Store, name: str) -> Artifact:
    """Returns the results artifact of a run.

    Raises:
      ConfigError: if there is no such run.
    """
    return store.get(find_run(store, name)["results"])
