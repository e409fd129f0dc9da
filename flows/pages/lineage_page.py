"""Lineage pages for the Prefect UI.

They are views only: everything on them comes from the store, and can be rebuilt from it.
"""

import base64
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from flows.lineage.trace import ACCEPTED_NOTE, SHORT
from flows.lookup.data_rejects import rejects_of
from flows.pages.curves import curves_png, drawn_curves, log_of, logged_curves
from flows.pages.history_drawing import box_labels, distinct_names
from flows.pages.links import page_link
from flows.pages.page import Page, address, are_beside
from flows.pages.record_cards import Card
from flows.pages.sample_table import sample_table
from flows.report.markdown import fenced, markdown_table, mermaid_label, plain
from flows.report.text_lists import abbreviate_list
from flows.steps.accepted import accepted_codes
from flows.steps.registry import kind_of
from infra.store.lineage import lineage_edges
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store
from pipelines.records.dataset import DESCRIPTION, OMISSIONS, parse_info
from pipelines.records.holdings import group_omissions, omission_lines, reject_lines
from pipelines.records.schema import Omission

_GRAPH_NODES = 14
"""Largest number of boxes in a diagram; above it, ancestors of one sort share a box."""

_INPUTS = 200
"""Largest number of inputs listed; a browser would take seconds for the thousands of a table."""

_USERS = 40
"""Largest number of users listed."""

_LICENCES = 50
"""Largest number of licences listed."""

_NAMED = 5
"""Largest number of artifacts named in a sentence."""


def page(
    store: Store,
    artifact: Artifact,
    *,
    reused: bool,
    users: Mapping[str, str] | None = None,
    cards: Iterable[Card] = (),
) -> str:
    """Returns the lineage page of an artifact as Markdown: graph, facts, samples, inputs and users.

    Args:
      store: the store that holds it and its inputs.
      artifact: the artifact that the page is about.
      reused: whether this run found the artifact rather than made it.
      users: key -> name of each artifact made from it; None if not known yet.
      cards: a few of its records, or of the answers that it led to.
    """
    # From top to bottom: who made it, what was kept or rests on something kept, its history as a
    # graph, the facts, curves, samples, and the tables that may be long: inputs, users, config.
    manifest = artifact.manifest
    maker = manifest.environment.get("prefect", {}).get("flow_run_id")
    run = f"[{maker.rpartition('-')[2]}](/v2/runs/flow-run/{maker})" if maker else "outside Prefect"
    state = f"**Reused**; made by run {run}" if reused else f"Made by run {run}"
    git = manifest.environment.get("git", {})
    # The rows of a table without titles; counts, such as records or a score, come as they are
    # named.
    facts = {
        "key": f"`{manifest.key}`",
        "content": f"`{manifest.content}`",
        "code": f"`{manifest.code[:SHORT]}`"
        + (f" at commit `{git['commit'][:SHORT]}`" if git.get("commit") else "")
        + (f" of version {git['version']}" if git.get("version") else "")
        + (" + uncommitted changes" if git.get("dirty") else ""),
        "seed": manifest.seed if manifest.seed is not None else "none drawn",
        "made": f"{manifest.started}, in {manifest.seconds:.1f} s, "
        f"attempt {len(manifest.attempts)}",
        "files": f"{len(manifest.files)}, {sum(f.size for f in manifest.files.values()):,} bytes",
        **{plain(name.replace("_", " ")): plain(v) for name, v in manifest.counts.items()},
    }
    kept = accepted_codes(store)
    lines = [
        f"# {plain(manifest.name)}",
        "",
        f"{state}.",
        "",
        *_word_of_kept(store, manifest, kept),
    ]
    if are_beside(store.uri):
        live = address(Page("artifact", (manifest.key,)))
        lines += [f"[Live page]({live}): its samples, its files, and everything made from it.", ""]
    lines += [
        *fenced("mermaid", _mermaid_lineage_graph(store, artifact, kept)),
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    # Pictures are part of the text, as data URIs: Prefect stores a page as text alone.
    for what, curves in drawn_curves(logged_curves(log_of(artifact))).items():
        data = base64.b64encode(curves_png(what, curves)).decode()
        lines += ["", f"![{what} by step](data:image/png;base64,{data})"]
    lines += [
        "",
        *_rejects_list(artifact),
        *_licences_table(artifact),
        *_omissions_list(artifact),
        *sample_table(cards),
        "## Made from",
        "",
        *_inputs_table(store, manifest),
    ]
    # Unknown is not the same as none: while the run goes on, users are still to come.
    if users is not None:
        lines += ["", "## Used by", "", *_users_list(store, users)]
    if len(manifest.attempts) > 1:
        lines += ["", "## Attempts", "", "| begun | machine |", "|---|---|"]
        lines += [
            f"| {plain(one['started'])} | {plain(one['host'])} |" for one in manifest.attempts
        ]
    config = json.dumps(manifest.config, indent=1, sort_keys=True)
    block = fenced("json", config.split("\n"))
    lines += ["", "<details><summary>Config</summary>", "", *block, "</details>"]
    return "\n".join(lines) + "\n"


def _rejects_list(artifact: Artifact) -> list[str]:
    """Returns the rejects of a dataset by reason, with the command that shows more of them."""
    groups = rejects_of(artifact)
    if not groups:
        return []
    hint = f"`parcel data rejects {artifact.key}` shows more of them."
    return ["## Rejects", "", *fenced("text", reject_lines(groups)), "", hint, ""]


def _licences_table(artifact: Artifact) -> list[str]:
    """Returns a dataset's records by licence; nothing for other artifacts."""
    if kind_of(artifact.manifest).holds != "dataset":
        return []
    try:
        text = artifact.files.read(f"{artifact.folder}/{DESCRIPTION}").decode()
    except FileNotFoundError:  # gc deleted its files.
        return []
    counts = parse_info(text).licence_counts
    rows = [
        (*map(plain, (c.title, c.holder, c.address)), f"{c.records:,}") for c in counts[:_LICENCES]
    ]
    if rest := sum(count.records for count in counts[_LICENCES:]):
        rows.append((f"{len(counts) - _LICENCES} others", "", "", f"{rest:,}"))
    head = ("licence", "holder", "address", "records")
    return ["## Licences", "", markdown_table(head, rows, range(3))]


def _omissions_list(artifact: Artifact) -> list[str]:
    """Returns the files of a dataset's sources that look like data and were not read."""
    if OMISSIONS not in artifact.manifest.files:
        return []
    try:
        text = artifact.files.read(f"{artifact.folder}/{OMISSIONS}").decode()
    except FileNotFoundError:  # gc deleted its files.
        return []
    omissions = [Omission(**json.loads(line)) for line in text.split("\n") if line]
    lines = omission_lines(group_omissions(omissions))
    return ["## Looks like data, and was not read", "", *fenced("text", lines), ""]


def _inputs_table(store: Store, manifest: Manifest) -> list[str]:
    if not manifest.inputs:
        return ["Nothing: the lineage begins here."]
    rows = ["| role | artifact | content |", "|---|---|---|"]
    for role, entry in sorted(manifest.inputs.items())[:_INPUTS]:
        name = store.get_cached(entry.key).manifest.name
        link = f"[{plain(name)}]({page_link(entry.key)})"
        rows.append(f"| {plain(role)} | {link} | `{entry.content[:SHORT]}` |")
    if len(manifest.inputs) > _INPUTS:
        rows.append(f"| | and {len(manifest.inputs) - _INPUTS} more | |")
    return rows


def _users_list(store: Store, users: Mapping[str, str]) -> Iterator[str]:
    if not users:
        yield "Nothing yet."
    for key, name in distinct_names(store, dict(list(users.items())[:_USERS])).items():
        yield f"- [{plain(name)}]({page_link(key)})"
    if len(users) > _USERS:
        yield f"- and {len(users) - _USERS} more"


def _word_of_kept(
    store: Store, manifest: Manifest, kept: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yields a paragraph if `parcel accept` kept the artifact, and one if it kept an ancestor."""
    if codes := kept.get(manifest.key):
        yield f"† It was {ACCEPTED_NOTE}: it counts as made with code `{codes[-1][:SHORT]}`."
        yield ""
    below = {found.key: found.name for found, _, _ in lineage_edges(store, manifest.key)}
    if links := [
        f"[{plain(name)}]({page_link(key)})" for key, name in below.items() if key in kept
    ]:
        yield f"† It rests on artifacts {ACCEPTED_NOTE}: {abbreviate_list(links, _NAMED)}."
        yield ""


def _mermaid_lineage_graph(store: Store, artifact: Artifact, kept: Container[str]) -> Iterator[str]:
    """Yields a small graph with a box per ancestor, or per action if there are too many.

    The artifact's own box has a thick border. A box with an artifact that `parcel accept` kept has
    a dashed one.
    """
    #   graph LR
    #     n0["prepare web"]
    #     n1["stage1 vanilla"]
    #     n0 --> n1
    #     style n1 stroke-width:4px
    found = lineage_edges(store, artifact.key)
    manifests = {m.key: m for m in (artifact.manifest, *(e[0] for e in found))}
    box_of = box_labels(manifests, _GRAPH_NODES, times="x")
    ids = {label: f"n{i}" for i, label in enumerate(sorted(set(box_of.values())))}
    yield "graph LR"
    for label, box in ids.items():
        yield f'  {box}["{mermaid_label(label)}"]'
    # Between shared boxes many arrows are one, and one from a box to itself says nothing.
    arrows = {(ids[box_of[a.key]], ids[box_of[b.key]]) for a, _, b in found}
    for source, target in sorted(arrows):
        if source != target:
            yield f"  {source} --> {target}"
    own = ids[box_of[artifact.key]]
    yield f"  style {own} stroke-width:4px"
    for box in sorted({ids[box_of[key]] for key in manifests if key in kept} - {own}):
        yield f"  style {box} stroke-dasharray:6 4"
