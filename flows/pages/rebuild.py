"""Publishes a store's pages in the UI: at the end of a run, or all of them from the records."""

import base64
import collections
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey

from flows.lookup.runs import ended_run_records
from flows.pages.history_drawing import UsageIndex
from flows.pages.lineage_page import page as lineage_page
from flows.pages.links import page_key, page_link
from flows.pages.page import Page, address, are_beside
from flows.pages.record_cards import Card, Cards
from flows.report.cells import Cell
from flows.report.json_file import read_json
from flows.report.markdown import to_markdown
from flows.steps.kind import Contents
from flows.steps.kinds.cast import CAST
from flows.steps.registry import KINDS, kind_of
from infra.prefect.best_effort import best_effort
from infra.prefect.page_queue import PageQueue, UIPage
from infra.store.lineage import lineage_edges
from infra.store.manifest import Manifest, kind_of_key
from infra.store.store import Artifact, Store

_SAMPLES = 4
"""Number of sample items on a page."""
_PLOT_PX = 900
"""Largest width of a plot, which is embedded in the page's text [pixels]."""
_AT_ONCE = 200
"""Number of artifacts per request to the server, which gives no more at once."""
_SHOWN = ("dataset", "checkpoint", "files")
"""Contents of the artifacts whose pages are published again at the end of a run."""

_Uses = Mapping[str, Mapping[str, str]]
"""Key of an artifact -> key and name of each artifact made from it."""


def rebuild(store: Store) -> int:
    """Publishes every lineage page and every run's results page; returns the number of pages."""
    view = store.snapshot()
    count, uses, cards = 0, UsageIndex(view).of_all(), Cards(view)
    for artifact in view.artifacts():
        _create_ui_page(_ui_page_of_artifact(view, artifact, uses, cards, reused=True))
        count += 1
    # Oldest first: of several runs with one name, the UI shows the page published last.
    for run, record in sorted(
        ended_run_records(view).items(), key=lambda item: item[1]["finished"]
    ):
        if record["results"] is None:
            continue
        _create_ui_page(_table_page(store, record["name"], run, record["results"]))
        count += 1
    return count


def _create_ui_page(page: UIPage) -> None:
    shown = page.redacted()
    create_markdown_artifact(str(shown.text), key=page.key, description=shown.description)


def publish_results(store: Store, run: str, name: str, key: str, pages: PageQueue) -> None:
    """Publishes the results table of a study, and the pages of what its scores were made from.

    These pages are published again because the users of an artifact, and the answers it led to,
    are known only at the end of a run. Pages of transfers that the run reused stay as they were.

    Args:
      store: the store of the study.
      run: full name of the run's record.
      name: name of the study.
      key: key of its results.
      pages: queue of the run's pages.
    """
    pages.put(_table_page(store, name, run, key))
    # One pass over the edges of the history gives both: what each artifact was made into, and what
    # was there to be made from.
    uses: dict[str, dict[str, str]] = collections.defaultdict(dict)
    found: dict[str, Manifest] = {}
    for source, _, product in lineage_edges(store, key):
        uses[source.key][product.key] = product.name
        found[source.key] = source
    cards = Cards(store)
    for manifest in found.values():
        maker = manifest.environment.get("prefect", {}).get("flow_run_id")
        # A reused transfer has the page that its own run gave it; there may be hundreds.
        holds = kind_of(manifest).holds
        is_transfer = holds == "checkpoint" and any(_score_keys_of_checkpoint(manifest.key, uses))
        if holds in _SHOWN and (maker == pages.flow_run_id or not is_transfer):
            artifact = store.get_cached(manifest.key)
            pages.put(
                _ui_page_of_artifact(
                    store, artifact, uses, cards, reused=maker != pages.flow_run_id
                )
            )


def _ui_page_of_artifact(
    store: Store, artifact: Artifact, uses: _Uses, cards: Cards, *, reused: bool
) -> UIPage:
    samples = _sample_cards(store, artifact, uses, cards)
    return UIPage(
        key=page_key(artifact.key),
        text=lineage_page(
            store, artifact, reused=reused, users=uses.get(artifact.key, {}), cards=samples
        ),
        description=artifact.manifest.name,
    )


def _sample_cards(store: Store, artifact: Artifact, uses: _Uses, cards: Cards) -> Iterator[Card]:
    """Yields sample records, or for a checkpoint sample answers at its largest budget."""
    if kind_of(artifact.manifest).holds != "checkpoint":
        yield from cards.samples(artifact, _SAMPLES)
    elif scores := [store.get_cached(key) for key in _score_keys_of_checkpoint(artifact.key, uses)]:
        best = max(scores, key=lambda one: one.manifest.config.get("budget", 0))
        yield from cards.samples(best, _SAMPLES)


def _score_keys_of_checkpoint(checkpoint: str, uses: _Uses) -> Iterator[str]:
    """Yields the keys of the scores of a checkpoint's predictions, and of its cast's."""
    for user in uses.get(checkpoint, {}):
        if _artifact_holds(user, "answers"):
            yield from (key for key in uses.get(user, {}) if _artifact_holds(key, "scores"))
        elif kind_of_key(user) == CAST.name:
            yield from _score_keys_of_checkpoint(user, uses)


def _artifact_holds(key: str, contents: Contents) -> bool:
    kind = KINDS.get(kind_of_key(key))
    return kind is not None and kind.holds == contents


def _table_page(store: Store, name: str, run: str, key: str) -> UIPage:
    """Returns the results table of a run, with its plot and a link from each cell to its page."""
    folder = store.get(key).path
    # From the JSON, not from the Markdown beside it: the links are made here, where it is known
    # which server shows the page.
    report = read_json((folder / "results.json").read_text(encoding="utf-8"))
    # Two kinds of links: where this server has the store's own pages, a cell leads to its page;
    # else to the page of each seed's scores.
    head = f"[Lineage of this table]({page_link(key)})"
    if are_beside(store.uri):
        head = f"[Items, predictions and search]({address(Page('results', (run,)))}) · {head}"

        def cell_link(text: str, cell: Cell) -> str:
            parts = (run, cell.benchmark, cell.method, str(cell.budget))
            return f"[{text}]({address(Page('cell', parts))})"
    else:
        cells = [cell for section in report.sections for cell in section.cells]
        keys = [key for cell in cells for key in cell.artifacts]
        newest = best_effort(_newest_page_links, keys) or {key: page_link(key) for key in keys}

        def cell_link(text: str, cell: Cell) -> str:
            """Returns the text, linked to the first seed's page, and a numbered link per other."""
            first, *others = (newest[key] for key in cell.artifacts)
            more = "".join(f" [{i}]({path})" for i, path in enumerate(others, start=2))
            return f"[{text}]({first}){more}"

    text = to_markdown(report, link=cell_link)
    picture = f"![score against budget]({_plot_data_uri(folder / 'results.png')})"
    return UIPage(
        key=f"results-{name}",
        text=f"{head}\n\n{text}\n{picture}\n\nCertificate: `parcel certify {run} --key FILE`\n",
        description=f"Results of {name}",
    )


def _newest_page_links(keys: Sequence[str]) -> Mapping[str, str]:
    """Returns key -> UI path of the artifact's newest page, or of its key if it has no page."""
    found = {key: page_link(key) for key in keys}
    with get_client(sync_client=True) as client:
        # Many keys per request, as many as the server gives at once.
        for start in range(0, len(keys), _AT_ONCE):
            some = {page_key(key): key for key in keys[start : start + _AT_ONCE]}
            asked = ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=[*some]))
            for page in client.read_latest_artifacts(artifact_filter=asked, limit=_AT_ONCE):
                found[some[page.key]] = f"/v2/artifacts/artifact/{page.latest_id}"
    return found


def _plot_data_uri(path: Path) -> str:
    """Returns a plot as a data URI, in few colors and no wider than the page."""
    with Image.open(path) as image:
        image.thumbnail((_PLOT_PX, _PLOT_PX * 4))
        small = image.convert("RGB").quantize(64)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
