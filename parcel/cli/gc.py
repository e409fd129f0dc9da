"""`parcel gc`: lists what nothing needs any more, and deletes it on request."""

import re
from collections import Counter
from typing import Annotated

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption, open_existing_store

gc_app = typer.Typer()

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PLURALS = {
    "artifact": "artifacts",
    "files": "artifacts' files",
    "attempt": "attempts",
    "source": "sources",
    "journal": "journals",
}
_SINGLE = {"files": "artifact's files"}
_LISTED = ("artifact", "files", "set aside", "attempt", "scratch", "copy of scratch")
"""Sorts listed item by item; files of sources and half-written records are only counted."""


@gc_app.command(epilog="Example: parcel gc --older-than 30d --delete")
def gc(
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete; without it, only list.")
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="Age below which everything is kept: 7d, 12h, 30m, 0s."),
    ] = "7d",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Lists what no run needs any more, with its size; --delete deletes it.

    Checkpoints that a study does not keep (keep.transfers: predictions or bfloat16) lose their
    files, not their manifest. Never deleted: what a record in runs/ names, and everything that was
    made from; what a running study uses; what somebody is working on; what is younger than AGE.
    Delete a run's record to free its results.
    """
    from infra.store import gc as garbage

    # Listing and deleting look the same up to the last step, so a list is what would be deleted.
    age, opened = _parse_age(older_than), open_existing_store(store)
    collect = garbage.delete_garbage if delete else garbage.find_garbage
    garbage_entries = collect(opened, older_than=age)
    verb = "deleted" if delete else "would delete"
    for item in garbage_entries:
        if item.sort in _LISTED:
            title = f" ({item.title})" if item.title else ""
            days = f"{item.age / _SECONDS['d']:.1f} days old"
            typer.echo(f"{verb} {item.sort} {item.name}{title}: {_size_text(item.size)}, {days}")
    total = _size_text(sum(item.size for item in garbage_entries))
    #   would delete artifact dataset-9c… (prepare web): 1.2 MB, 9.0 days old
    #   would delete 1 artifact, 3 sources: 1.3 MB; nothing is deleted without --delete
    counts = Counter(item.sort for item in garbage_entries)
    sorts = ", ".join(
        f"{count} {_SINGLE.get(sort, sort) if count == 1 else _PLURALS.get(sort, sort)}"
        for sort, count in sorted(counts.items())
    )
    hint = "" if delete or not garbage_entries else "; nothing is deleted without --delete"
    typer.echo(f"{verb} {sorts or 'nothing'}: {total}{hint}")


def _parse_age(age: str) -> float:
    """Returns an age such as "7d" in seconds."""
    from infra.errors import ConfigError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)([dhms])", age)
    if not match:
        raise ConfigError(
            f"--older-than must be a number and d, h, m or s, such as 7d, got {age!r}."
        )
    return float(match[1]) * _SECONDS[match[2]]


def _size_text(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
