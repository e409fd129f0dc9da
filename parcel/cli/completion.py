"""What a shell offers at the TAB key: names of studies and of cells, from a store on a disk.

A key press must be answered at once, so only the names of records and one manifest are read, and no
bucket is asked.
"""

import re
from pathlib import Path

import typer

from parcel.studies import DEFAULT_STORE

_ID = re.compile(r"-[0-9a-f]{12}$")
"""Matches what the full name of a run has behind its study's name."""


def complete_study(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the studies of the store that begin so."""
    return [name for name in _newest_run_by_study(context) if name.startswith(incomplete)]


def complete_config(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the studies of the store, the YAML files and the folders that begin so."""
    # Named as it was begun, also from "./" or "../".
    before = incomplete[: incomplete.rfind("/") + 1]
    folder = Path(before or ".").expanduser()
    paths = [path for path in sorted(folder.glob("*")) if not path.name.startswith(".")]
    files = [f"{before}{path.name}" for path in paths if path.suffix in (".yaml", ".yml")]
    folders = [f"{before}{path.name}/" for path in paths if path.is_dir()]
    return [
        *complete_study(context, incomplete),
        *_filter_completions([*files, *folders], incomplete),
    ]


def complete_target(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the studies that begin so; behind the "/" of one, its cells."""
    study, slash, _ = incomplete.partition("/")
    if not slash:
        return complete_study(context, incomplete)
    return _filter_completions(
        [f"{study}/{cell}" for cell in _cells_of_newest_run(context, study)], incomplete
    )


def complete_cell(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the cells that begin so of the study that the command names."""
    # While a command is typed, its words are not yet assigned to its arguments.
    study = context.params.get("run") or next(iter(context.args), "")
    return _filter_completions(_cells_of_newest_run(context, study), incomplete)


def _filter_completions(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _completion_store_folder(context: typer.Context) -> Path | None:
    uri = context.params.get("store") or DEFAULT_STORE
    folder = Path(uri).expanduser()
    return folder if "://" not in uri and (folder / "runs").is_dir() else None


def _newest_run_by_study(context: typer.Context) -> dict[str, str]:
    """Returns name of a study -> full name of its newest run."""
    folder = _completion_store_folder(context)
    if folder is None:
        return {}
    records = sorted((folder / "runs").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return {_ID.sub("", path.stem): path.stem for path in records}


def _cells_of_newest_run(context: typer.Context, study: str) -> list[str]:
    """Returns the cells of the newest run of a study, as BENCHMARK/METHOD/BUDGET."""
    folder, run = _completion_store_folder(context), _newest_run_by_study(context).get(study)
    if folder is None or run is None:
        return []
    from infra.store.records import read_run
    from infra.store.store import Store

    store = Store(folder)
    try:
        results = read_run(store.files, run)["results"]
        roles = list(store.get_cached(results).manifest.inputs) if results else []
    except (KeyError, OSError, ValueError):
        return []  # Nobody reads an error at the TAB key.
    #   chartqa:test_human/parcel/64/48213   a cell and its seed
    #   chance/chartqa:test_human            no cell
    parts = [role.rpartition("/") for role in roles]
    return list(dict.fromkeys(cell for cell, _, seed in parts if seed.isdigit()))
