"""`parcel lineage trace`: shows the history of a cell, down to its source samples."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from flows.lookup.target import LookupTarget
from flows.report.items import guess_rows
from flows.steps.accepted import accepted_codes
from flows.steps.registry import kind_of
from infra.store.lineage import LineageVisit, walk_lineage
from infra.store.store import Artifact, Store
from model.eval.items_file import ItemsFile
from model.eval.predictions_file import read_predictions

ACCEPTED_NOTE = "kept although its code has changed since"

SHORT = 12
"""Number of hex digits of a digest that are shown."""


def trace_lineage(store: Store, target: LookupTarget, *, samples: int) -> Iterator[str]:
    """Yields the history of artifacts as the lines of a tree; each artifact is expanded once.

    The trace of a whole table leaves out the samples of scores; the trace of a cell has them, so
    that predictions show theirs only where the trace begins with them.

    Args:
      store: the store of the artifacts.
      target: the artifacts to begin with.
      samples: number of source samples shown per dataset, and per file of scores.
    """
    is_table = any(kind_of(root.manifest).holds == "table" for root in target.artifacts)
    view = store.snapshot() if is_table else store
    accepted, visited_keys, indents = accepted_codes(view), set[str](), [""]
    if target.seeds:
        yield target.name
    for place, artifact in enumerate(target.artifacts):
        role = f"seed {target.seeds[place]}" if target.seeds else ""
        for visit in walk_lineage(view, artifact.key, role, visited_keys=visited_keys):
            depth = visit.depth + bool(target.seeds)
            is_last = visit.is_last and (visit.depth > 0 or artifact is target.artifacts[-1])
            arm, bar = ("└── ", "    ") if is_last else ("├── ", "│   ")
            start = indents[depth - 1] + arm if depth else ""
            # indents[depth] is put before deeper lines: a bar for each level with inputs to come.
            indents[depth:] = [indents[depth - 1] + bar if depth else ""]
            mark = f" † {ACCEPTED_NOTE}" if visit.artifact.key in accepted else ""
            yield f"{start}{_artifact_headline(visit)}{mark}"
            holds = kind_of(visit.artifact.manifest).holds
            is_shown = not is_table if holds == "scores" else holds != "answers" or not depth
            if is_shown and not visit.is_again:
                for line in _sample_lines(visit.artifact, samples):
                    yield f"{indents[depth]}· {line}"


def _artifact_headline(visit: LineageVisit) -> str:
    manifest = visit.artifact.manifest
    role = f"{visit.role}: " if visit.role else ""
    if visit.is_again:
        return f"{role}{manifest.name} (shown above)"
    counts = ", ".join(f"{name} {value}" for name, value in manifest.counts.items())
    return f"{role}{manifest.name} {manifest.key} sha256:{manifest.content[:SHORT]}" + (
        f" ({counts})" if counts else ""
    )


def _sample_lines(artifact: Artifact, limit: int) -> Iterator[str]:
    """Yields "id ← source sha256" lines for the first `limit` records, answers or scores."""
    # Rows are read lazily: after the last one shown, the file is left.
    rows = _artifact_sample_rows(artifact) if limit else iter(())
    for row in itertools.islice(rows, limit):
        answer = f" {row['prediction']!r}" if "prediction" in row else ""
        score = f" (score {row['score']:g})" if "score" in row else ""
        source = f"{row['source']} " if "source" in row else ""
        yield f"{row['id']}{answer}{score} ← {source}sha256:{row['source_sha256'][:SHORT]}"
    if next(rows, None) is not None:
        yield "…"


def _artifact_sample_rows(artifact: Artifact) -> Iterator[Mapping[str, Any]]:
    """Yields a row for each record, answer, score or guess of an artifact; none of others."""
    match kind_of(artifact.manifest).holds:
        case "scores":
            names = ["id", "prediction", "score", "source", "source_sha256"]
            columns = ItemsFile(artifact.path).columns(*names)
            yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        case "answers":
            yield from read_predictions(artifact.path)
        case "guesses":
            names = ["id", "score", "source_sha256"]
            rows = guess_rows(artifact.path, names)
            yield from (dict(zip(names, row, strict=True)) for row in rows)
        case "dataset":
            from pipelines.records.dataset import Dataset

            for record in Dataset(artifact.uri).records():
                yield {name: getattr(record, name) for name in ("id", "source", "source_sha256")}
