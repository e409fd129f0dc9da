"""`parcel lineage trace`: shows the history of a cell, down to its source samples."""

from collections.abc import Iterator

from flows.lineage.target import LineageTarget
from flows.steps.accepted import accepted_codes
from flows.steps.registry import RECORDS
from infra.store.lineage import LineageVisit, walk_lineage
from infra.store.store import Artifact, Store
from model.eval.items_file import ItemsFile
from model.eval.predictions_file import read_predictions

ACCEPTED_NOTE = "kept although its code has changed since"

SHORT = 12
"""Number of hex digits of a digest that are shown."""


def trace_lineage(store: Store, target: LineageTarget, *, samples: int) -> Iterator[str]:
    """Yields the history of artifacts as the lines of a tree; each artifact is expanded once.

    The trace of a whole table leaves out the samples of scores; the trace of a cell has them, so
    that predictions show theirs only where the trace begins with them.

    Args:
      store: the store of the artifacts.
      target: the artifacts to begin with.
      samples: number of source samples shown per dataset, and per file of scores.
    """
    is_table = any(artifact.manifest.kind == "results" for artifact in target.artifacts)
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
            kind = visit.artifact.manifest.kind
            is_shown = not is_table if kind == "scores" else kind != "predictions" or not depth
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
    if not limit:
        return
    if artifact.manifest.kind == "scores":
        rows = _score_rows(artifact)
    elif artifact.manifest.kind == "predictions":
        rows = _prediction_rows(artifact)
    elif artifact.manifest.kind in RECORDS:
        rows = _dataset_rows(artifact)
    else:
        return
    # Rows are read lazily: after the last one shown, the file is left.
    for i, row in enumerate(rows):
        if i == limit:
            yield "…"
            return
        yield row


def _score_rows(artifact: Artifact) -> Iterator[str]:
    names = "id", "prediction", "score", "source", "source_sha256"
    for item, text, score, source, sha256 in zip(
        *ItemsFile(artifact.path).columns(*names), strict=True
    ):
        yield f"{item} {text!r} (score {score:g}) ← {source} sha256:{sha256[:SHORT]}"


def _prediction_rows(artifact: Artifact) -> Iterator[str]:
    for row in read_predictions(artifact.path):
        sha256 = row["source_sha256"][:SHORT]
        yield f"{row['id']} {row['prediction']!r} ← {row['source']} sha256:{sha256}"


def _dataset_rows(artifact: Artifact) -> Iterator[str]:
    from pipelines.records.dataset import Dataset

    for record in Dataset(artifact.uri).records():
        yield f"{record.id} ← {record.source} sha256:{record.source_sha256[:SHORT]}"
