"""`parcel lineage export`: writes the lineage in the formats of other tools."""

from collections.abc import Iterator
from typing import Literal

from flows.lookup.target import LookupTarget
from flows.steps.registry import kind_of
from infra.store.lineage import walk_lineage
from infra.store.store import Store

LineageFormat = Literal["openlineage", "croissant"]


def export_lineage(
    store: Store, target: LookupTarget, form: LineageFormat
) -> Iterator[tuple[str, str]]:
    """Yields (file name, text) for the artifacts in the history of those named.

    Args:
      store: the store of the artifacts.
      target: the artifacts to begin with.
      form: "openlineage" gives the two events of every step, one line each, oldest step first;
        "croissant" gives a description of each prepared dataset.
    """
    # What several of the named artifacts rest on is met, and exported, once.
    view, visited_keys = store.snapshot(), set[str]()
    artifacts = [
        visit.artifact
        for root in target.artifacts
        for visit in walk_lineage(view, root.key, visited_keys=visited_keys)
        if not visit.is_again
    ]
    if form == "openlineage":
        from flows.lineage.open_lineage import open_lineage_events

        # Oldest first: whoever reads the events meets a step after those that it was made from.
        for artifact in sorted(artifacts, key=lambda artifact: artifact.manifest.started):
            yield f"{artifact.key}.jsonl", "\n".join(open_lineage_events(view, artifact))
        return
    from flows.lineage.croissant import croissant_description

    for artifact in artifacts:
        if kind_of(artifact.manifest).holds == "dataset":
            yield f"{artifact.key}.json", croissant_description(artifact)
