"""Makes the UI's pages again from the records of a store."""

from prefect.artifacts import create_markdown_artifact

from flows.lineage import pages
from flows.lineage.links import page_key, page_link
from flows.study.runs import records
from infra.store.store import Store


def rebuild(store: Store) -> int:
    """Publishes every lineage page and every run's results page; returns how many."""
    published, view = 0, store.at_once()
    for artifact in view.artifacts():
        manifest = artifact.manifest
        create_markdown_artifact(
            pages.page(view, artifact, reused=True),
            key=page_key(manifest.key),
            description=manifest.name,
        )
        published += 1
    # Of runs of one name the UI shows the page that came last.
    for record in sorted(records(view).values(), key=lambda record: record["finished"]):
        if record["results"] is None:
            continue
        publish_results(store, record["name"], record["results"])
        published += 1
    return published


def publish_results(store: Store, name: str, key: str) -> None:
    """Publishes the results matrix of a study, its cells linked to their lineage."""
    text = (store.get(key).path / "linked.md").read_text()
    head = f"[Lineage of this table]({page_link(key)})\n\n"
    create_markdown_artifact(head + text, key=f"results-{name}", description=f"Results of {name}")
