"""The level *traced*: a store has what a certificate names, and no test item was trained on."""

import collections
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.lineage.certificate.consistent import first_difference, table_difference
from flows.lineage.certificate.level import TRACED, Level, level_of
from flows.lineage.certificate.statement import (
    manifest_values,
    runs_of_name,
    split_references,
    training_licences,
    unpack,
)
from flows.lineage.training_order import data_of_training
from flows.lookup.promise import config_sha256
from flows.report.cells import SCREENED, CellKey
from flows.steps.registry import KINDS, kind_of
from infra.references import load_reference
from infra.store.lineage import StoreProblem, verify_artifact, walk_lineage
from infra.store.records import beginning_sha256, read_run
from infra.store.store import Artifact, Store
from infra.store.stored_folder import open_stored_folder
from pipelines.hygiene.matches import CONTAMINATION, MATCHES, read_matches
from pipelines.records.dataset import Dataset
from pipelines.records.licence import NONE_STATED
from pipelines.records.schema import Record


def check_traced(predicate: Mapping[str, Any], store: Store, *, with_table: bool) -> Level:
    """Compares a certificate with a store, or a copy of one; every file is digested.

    Args:
      predicate: the certificate's predicate.
      store: the store.
      with_table: whether to compute the table from the store's scores, as nothing else did.
    """
    try:
        return _check_history(predicate, store, with_table)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        return level_of(TRACED, [f"it cannot be traced: {type(error).__name__}: {error}"], "")


def _check_history(predicate: Mapping[str, Any], store: Store, with_table: bool) -> Level:
    manifests, problems = predicate["manifests"], list[str]()
    for key, stated in manifests.items():
        try:
            if manifest_values(store.get(key).manifest) != stated:
                problems.append(f"{key} has another manifest in the store")
        except (KeyError, ValueError) as error:
            problems.append(f"{error.args[0]}")
    if problems:  # What is not the same history cannot be walked together.
        return level_of(TRACED, problems, "")
    view = store.snapshot()
    results = view.get_cached(predicate["results"])
    problems += [f"{p.key} {p.path}: {p.reason}" for p in byte_problems(store, [*manifests])]
    problems += _source_problems(store, {value["source"] for value in manifests.values()})
    problems += _run_problems(store, predicate)
    if problems:
        return level_of(TRACED, problems, "")
    record = read_run(store.files, predicate["suite"]["version"])
    problems += _record_problems(record, results)
    problems += _reference_problems(view, predicate)
    if with_table and (bad := table_difference(predicate["table"], view, results.key)):
        problems.append(f"of the store's scores, {bad}")
    transfers = record["config"].get("transfers", {}).items()
    # Of these the study says that it trains on what is scored.
    open_rows = {name for name, each in transfers if (each or {}).get("allow_train_on_eval")}
    num_items, found = _test_items_in_training(view, results, open_rows)
    problems += found
    licences = training_licences(view, results)
    if licences != predicate["licences"]:
        problems.append("the licences of the training data are others in the store")
    counts = collections.Counter[str]()
    for row in licences:
        counts[row["licence"] or NONE_STATED] += row["records"]
    licence_text = ", ".join(f"{name} {num:,}" for name, num in counts.most_common()) or "unknown"
    pruned = sum(store.find_pruned(key) is not None for key in manifests)
    detail = (
        f"{len(manifests):,} artifacts, {pruned:,} of them without files; none of {num_items:,} "
        f"test items in training data; records by licence: {licence_text}"
    )
    return level_of(TRACED, problems, detail)


def byte_problems(store: Store, keys: Sequence[str]) -> Iterator[StoreProblem]:
    """Yields every difference between artifacts of a store and their manifests."""
    # Of a checkpoint the content is the digest of its parameters, of a dataset that of its records.
    # Its function is loaded for the first artifact that needs it: that of checkpoints imports JAX.
    logical = {
        name: lambda folder, content=kind.content: load_reference(content)(folder)
        for name, kind in KINDS.items()
        if kind.content
    }
    for key in keys:
        yield from verify_artifact(store, key, logical)


def _source_problems(store: Store, digests: set[str]) -> Iterator[str]:
    for digest in sorted(digests - {""}):
        try:
            collections.deque(store.open_source(digest).values(), maxlen=0)
        except (KeyError, ValueError, FileNotFoundError) as error:
            yield f"source tree {digest[:12]}: {error}"


def _run_problems(store: Store, predicate: Mapping[str, Any]) -> Iterator[str]:
    """Yields where the runs of the name are others in the store; later ones may be there."""
    stated = {run["run"]: run for run in predicate["runs"]}
    kept = {run["run"]: run for run in runs_of_name(store, predicate["suite"]["name"])}
    for name, run in stated.items():
        if name not in kept:
            yield f"the run {name} is not in the store"
        elif beginning_sha256(run) != beginning_sha256(kept[name]):
            yield f"the run {name} promised something else in the store"
        elif run["finished"] and run["results"] != kept[name]["results"]:
            yield f"the run {name} has another table in the store"
    last = max(run.get("began", "") for run in stated.values())
    for name in kept.keys() - stated.keys():
        if kept[name].get("began", "") <= last:
            yield f"the run {name} of this name is left out"


def _record_problems(record: Mapping[str, Any], results: Artifact) -> Iterator[str]:
    """Yields where a run's config is not what it promised, or its table hides what hygiene saw."""
    config, promised = record["config"], record.get("promised")
    if promised and promised[-1]["config_sha256"] != config_sha256(config):
        yield f"the config of {record['run']} is not the one that it promised"
    is_reported = (config.get("hygiene") or {}).get("contamination") == "report"
    shown = {entry.key for r, entry in results.manifest.inputs.items() if r.startswith(SCREENED)}
    if is_reported and not shown:
        yield "the study reports test pictures in its training data, and its table leaves them out"


def _reference_problems(store: Store, predicate: Mapping[str, Any]) -> Iterator[str]:
    """Yields where references to which answers were compared are not those of the store's data."""
    for key, text in predicate.get("items", {}).get("splits", {}).items():
        artifact = store.get_cached(key)
        if store.find_pruned(key) is None:
            kept = json.loads(json.dumps(split_references(artifact)))
            if difference := first_difference(json.loads(unpack(text)), kept, 0, "reference"):
                yield f"{artifact.manifest.name}: {difference} in the store"


def _test_items_in_training(
    store: Store, results: Artifact, open_rows: set[str]
) -> tuple[int, list[str]]:
    """Returns the number of test items, and which of them a training behind their scores read.

    An item is a picture, by the bytes of its file, with its question. What hygiene found, the table
    shows; a study may state that it trains on a split (`allow_train_on_eval`).
    """
    # Data that were trained on -> the splits that checkpoints of that training answer.
    splits_of = collections.defaultdict[str, set[str]](set)
    known: dict[str, set[str]] = {}
    for role, entry in results.manifest.inputs.items():
        cell = CellKey.of_role(role)
        if cell is None or cell.benchmark.partition(":")[0].partition("@")[0] in open_rows:
            continue
        split = store.get_cached(entry.key).manifest.inputs["data"].key
        for key in _trained_data(store, entry.key, known):
            splits_of[key].add(split)
    # Items that hygiene reports, which the table counts beside its scores.
    declared = {
        match.match
        for visit in walk_lineage(store, results.key)
        if kind_of(visit.artifact.manifest).matches and not visit.is_again
        for match in read_matches(open_stored_folder(visit.artifact.uri).local_folder(MATCHES))
        if match.kind == CONTAMINATION
    }
    # A record may ask in several words: each is a question of its own to look for.
    tests = {
        split: {
            question: record.id
            for record in Dataset(store.get_cached(split).uri).records()
            for question in _questions(record)
            if record.id not in declared
        }
        for split in set().union(*splits_of.values())
    }
    problems = [
        f"{artifact.manifest.name} trains on {tests[split][question]} of "
        f"{store.get_cached(split).manifest.name}, as {record.id}"
        for data, splits in sorted(splits_of.items())
        for artifact in [store.get_cached(data)]
        for record in Dataset(artifact.uri).records()
        for question in _questions(record)
        for split in splits
        if question in tests[split]
    ]
    return sum(len(set(items.values())) for items in tests.values()), problems


def _trained_data(store: Store, key: str, known: dict[str, set[str]]) -> set[str]:
    """Returns the datasets that the trainings behind an artifact read."""
    if key not in known:
        manifest = store.get_cached(key).manifest
        kind = kind_of(manifest)
        below = [e.key for role, e in manifest.inputs.items() if not kind.leaves_out(role)]
        read = set(data_of_training(manifest)) if kind.draws_batches else set[str]()
        known[key] = read.union(*(_trained_data(store, each, known) for each in below))
    return known[key]


def _questions(record: Record) -> set[tuple[str, str]]:
    """Returns the questions of a record, each with the digest of its picture's file."""
    prefixes = {record.prefix, *(prefix for several in record.prefixes for prefix in several)}
    return {(record.source_sha256, prefix) for prefix in prefixes}
