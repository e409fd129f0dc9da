"""Fetches data sets and weights, and prints the lines of `parcel data fetch`."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.errors import ConfigError
from pipelines.fetch.catalogue import CATALOGUE, DataSet, RemoteFile, select_data_sets
from pipelines.fetch.catalogue import load_catalogue as load
from pipelines.fetch.fetch import fetch_data_sets
from pipelines.fetch.hub import check_terms, download_from_hub, list_weights
from pipelines.records.licence import NONE_STATED

_INTERVAL = 5.0
"""Time between two progress lines about one file [s]."""


def fetch_and_print(
    names: tuple[str, ...],
    to: Path,
    *,
    list_all: bool,
    dry_run: bool,
    catalogue: Path | None,
    workers: int,
    accept_licence: bool,
    write_line: Callable[[str], None],
) -> None:
    """Fetches data sets and weights, or prints what would be fetched.

    Args:
      names: names of the data sets and weights to fetch.
      to: the data root; weights get a folder there, too.
      list_all: whether to list everything in the catalogue, and fetch nothing.
      dry_run: whether to describe what is named, and fetch nothing.
      catalogue: file of the catalogue; None takes the project's own.
      workers: number of files that are fetched at a time.
      accept_licence: whether the user accepts the licences of the weights.
      write_line: called with each line.

    Raises:
      ConfigError: if a name is not in the catalogue, or none is given; if a licence is not
        accepted, or weights need a token.
      DownloadError: if a file cannot be fetched.
    """
    catalogued = load(catalogue or CATALOGUE)
    if list_all:
        for name, data_set in sorted(catalogued.items()):
            write_line(_describe_data_set(name, data_set))
        return
    # Wrong requests end here or in the next line, before anything is fetched.
    if not names:
        raise ConfigError("data fetch needs a name; --list shows them all.")
    selected = {
        name: _list_files(name, data_set, to, accept_licence, dry_run)
        for name, data_set in select_data_sets(catalogued, names).items()
    }
    _check_folders(selected)
    # All that one must know first (terms, what must be got by hand) is printed before the
    # downloads.
    for name, data_set in selected.items():
        write_line(_describe_data_set(name, data_set))
        write_line(f"  described at {data_set.page}")
        if data_set.licence_page:
            write_line(f"  licence at {data_set.licence_page}")
        if data_set.terms:
            write_line(f"  terms: {data_set.terms}")
        if dry_run:
            for file in data_set.files:
                write_line(f"  {file.address} -> {to / data_set.folder / _target_name(file)}")
        if data_set.by_hand:
            write_line(f"  by hand: {data_set.by_hand}")
    if not dry_run:
        _fetch_selected(selected, to, workers, write_line)


def _list_files(
    name: str, data_set: DataSet, to: Path, is_accepted: bool, dry_run: bool
) -> DataSet:
    """Returns a data set as it is, and weights with the files that the Hub has of them."""
    if not data_set.hub:
        return data_set
    # Twice: what the catalogue knows needs no answer of the Hub, which may know more.
    if data_set.licence and not dry_run:
        check_terms(name, data_set, is_accepted=is_accepted)
    listed = list_weights(data_set, to / data_set.folder)
    if not dry_run:
        check_terms(name, listed, is_accepted=is_accepted)
    return listed


def _check_folders(selected: Mapping[str, DataSet]) -> None:
    """Refuses two names of weights for one folder; data sets share theirs."""
    names: dict[str, str] = {}
    for name, data_set in selected.items():
        other = names.setdefault(data_set.folder, name) if data_set.hub else name
        if other != name:
            raise ConfigError(
                f"{other} and {name} both belong into the folder {data_set.folder}: fetch one of "
                f"them with another --to."
            )


def _fetch_selected(
    selected: Mapping[str, DataSet], to: Path, workers: int, write_line: Callable[[str], None]
) -> None:
    last: dict[RemoteFile, float] = {}

    def on_file(name: str, file: RemoteFile, sha256: str) -> None:
        outcome = "is there already" if sha256 == "there" else f"sha256 {sha256}"
        write_line(f"{name}: {_target_name(file)} {outcome}")

    def on_progress(file: RemoteFile, size: int) -> None:
        if time.monotonic() - last.setdefault(file, time.monotonic()) >= _INTERVAL:
            last[file] = time.monotonic()
            of_total = f" of {file.size:,}" if file.size else ""
            print(f"{file.name}: {size:,}{of_total} bytes", file=sys.stderr)

    def on_wait(folder: Path) -> None:
        write_line(f"{folder}: another process fetches into it; this one goes on after it")

    fetch_data_sets(
        selected,
        to,
        workers=workers,
        on_file=on_file,
        on_progress=on_progress,
        on_wait=on_wait,
        download=download_from_hub,
    )


def _target_name(file: RemoteFile) -> str:
    return file.name if file.unpack is None else f"{file.unpack}/ of {file.name}"


def _describe_data_set(name: str, data_set: DataSet) -> str:
    if data_set.hub and not data_set.files:
        files = f"weights {data_set.hub}"
    elif data_set.files:
        size = data_set.size
        size_text = "size not known" if size is None else f"{size / 1e9:.2f} GB"
        plural = "s" if len(data_set.files) > 1 else ""
        files = f"{len(data_set.files)} file{plural}, {size_text}"
    else:
        files = "by hand only"
    also = f"; needs {', '.join(data_set.also)}" if data_set.also else ""
    hand = "; some by hand" if data_set.files and data_set.by_hand else ""
    gated = "; gated, needs HF_TOKEN" if data_set.gated else ""
    return f"{name}: {files}{hand}{also}{gated}; licence: {data_set.licence or NONE_STATED}"
