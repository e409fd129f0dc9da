"""`parcel certify`: what is signed of a run, as an in-toto statement.

    subject                   the files of the table, by digest
    predicate
      suite, evaluatedAt      name of the study, full name of the run, and its end
      assuranceLevel          self_attested
      preRegistration         digest of what the run's record said when it began
      harness                 version and source tree of what made the table
      table                   the whole table, with its comparisons, as results.json has it
      results, manifests      key of the table, and every manifest behind it: data, configs, seeds,
                              code, libraries, machines
      runs                    every run of that name, with what it promised
      licences                licences of the records that were trained on
      items                   answers, references and what else the table is computed from

Field names follow two drafts of the in-toto attestation framework, which neither merges: evaluation
results (pull request 575 at 35c83da45c5ad59d1d42a343e9c718b32838a829) and criteria that stand
before a run (587 at a9c8e5bd11165f070578334356fcdaa09512e9f1). `manifests`, `runs`, `licences` and
`items` are ours.
"""

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any

from flows.lineage.data_summary import summarise_data
from flows.lookup.runs import began_of, find_run, run_outcome
from flows.lookup.target import LookupTarget
from flows.report.cells import CHANCE, SCREENED, CellKey
from infra.errors import ConfigError
from infra.store.lineage import walk_lineage
from infra.store.manifest import Manifest
from infra.store.records import beginning_sha256, run_records
from infra.store.store import Artifact, Store
from infra.store.stored_folder import open_stored_folder
from model import files
from model.data.parts import open_parts, records_by_id
from model.eval.predictions_file import read_predictions
from model.eval.scorer import fields_of
from pipelines.hygiene.matches import MATCHES

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:parcel-pipeline:certified-table:v1"

TABLE = "results.json"
"""The file of a results artifact that a statement holds."""

_MAX_BYTES = 2**30
"""The longest that a file of items may be [bytes]."""

_LISTED = ("run", "name", "flow_run_id", "began", "finished", "promised", "previous", "results")
"""Fields of a run's record that a statement holds. Its command, config and host are not among
them."""


def certify_run(store: Store, name: str, *, items: bool = True) -> dict[str, Any]:
    """Returns the statement of a run.

    Args:
      store: the store of the run.
      name: a study's name, for its newest run; or a run's full name.
      items: whether the answers and their references are in it, without which a score cannot be
        computed again from it.

    Raises:
      ConfigError: if there is no such run, or files that its scores were computed from are gone.
    """
    # From the run's record to its table, and from there to every artifact behind it.
    record = find_run(store, name)
    view = store.snapshot()
    results = store.get(record["results"])
    history = {
        visit.artifact.key: visit.artifact
        for visit in walk_lineage(view, results.key)
        if not visit.is_again
    }
    # Fields of the two drafts first; from "table" on they are ours.
    predicate = {
        "suite": {"name": record["name"], "version": record["run"]},
        "evaluatedAt": record["finished"],
        "assuranceLevel": "self_attested",
        "preRegistration": registration_of(record),
        "harness": harness_of(results.manifest),
        "table": json.loads((results.path / TABLE).read_text(encoding="utf-8")),
        "results": results.key,
        "manifests": {key: manifest_values(each.manifest) for key, each in history.items()},
        "runs": runs_of_name(store, record["name"]),
        "licences": training_licences(view, results),
    }
    if items:
        try:
            predicate["items"] = _collect_items(results, history)
        except OSError as error:
            raise ConfigError(
                f"RUN must have the files that its scores were computed from, got {results.key}: "
                f"{error}; `--no-items` certifies it without them."
            ) from None
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": path, "digest": {"sha256": file.sha256}}
            for path, file in sorted(results.manifest.files.items())
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def registration_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digest of what a run's record said when it began."""
    return {"alg": "sha256", "value": beginning_sha256(record)}


def harness_of(results: Manifest) -> dict[str, Any]:
    """Returns the version and the source tree of what made a table."""
    tree = {"digest": {"sha256": results.source}} if results.source else {}
    version = results.environment.get("git", {}).get("version", "")
    return {"name": "parcel-pipeline", "version": version, **tree}


def manifest_values(manifest: Manifest) -> dict[str, Any]:
    """Returns a manifest as plain values."""
    return json.loads(manifest.to_json())


def runs_of_name(store: Store, name: str) -> list[dict[str, Any]]:
    """Returns the records of all runs of a name, cut to the listed fields, in order of time."""
    records = [each for each in run_records(store.files).values() if each["name"] == name]
    return [
        {f: record[f] for f in _LISTED if f in record} | {"outcome": run_outcome(record)}
        for record in sorted(records, key=began_of)
    ]


def training_licences(store: Store, results: Artifact) -> list[dict[str, Any]]:
    """Returns the licences of the records that the trainings behind a table saw, by source."""
    try:
        seen = summarise_data(store, LookupTarget(name=results.key, artifacts=(results,))).seen
    except ConfigError:  # It rests on no training, or datasets are gone: nothing is claimed.
        return []
    return [dataclasses.asdict(row) for row in seen]


def pack(data: bytes) -> str:
    """Returns bytes compressed, as text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    """Returns the bytes that `pack` was given.

    Raises:
      ValueError: if it is no such text, or stands for more bytes than a benchmark's answers take.
    """
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"its items are damaged: {error}") from None
    if not inflater.eof:  # A few kilobytes can stand for more than a memory holds.
        raise ValueError(f"its items end early, or one has more than {_MAX_BYTES:,} bytes")
    return data


def _collect_items(results: Artifact, history: Mapping[str, Artifact]) -> dict[str, Any]:
    """Returns all that a table is computed from.

    Answers to a split are texts in the order of its records, which stand once. So the file of
    predictions can be written again from both, byte for byte:

        splits   data key -> [{"prefix", "source", "source_sha256", "fields": what metrics read}]
        answers  predictions key -> ["red", "2", …]
        files    key -> name -> bytes: guesses, matches of hygiene, the mask codec
    """
    splits: dict[str, str] = {}
    answers: dict[str, str] = {}
    kept: dict[str, dict[str, str]] = {}
    for role, entry in results.manifest.inputs.items():
        artifact = history[entry.key]
        if role.startswith(CHANCE):
            kept[entry.key] = _pack_files(artifact, files.CHANCE, files.PREDICTIONS)
        if role.startswith(SCREENED):
            kept[entry.key] = _pack_files(artifact, MATCHES)
        if CellKey.of_role(role) is None:
            continue
        inputs = {name: history[each.key] for name, each in artifact.manifest.inputs.items()}
        data, predictions, codec = inputs["data"], inputs["predictions"], inputs.get("mask_codec")
        if codec is not None and codec.key not in kept:
            kept[codec.key] = _pack_files(codec, files.MASK_CODEC)
        if data.key not in splits:
            splits[data.key] = _pack_json(split_references(data))
        texts = [row["prediction"] for row in read_predictions(predictions.path)]
        answers[predictions.key] = _pack_json(texts)
    return {"splits": splits, "answers": answers, "files": kept}


def split_references(data: Artifact) -> list[dict[str, Any]]:
    """Returns the fields of each record of a dataset that metrics read, as plain values."""
    names = ("prefix", "source", "source_sha256")
    return [
        {**{name: getattr(record, name) for name in names}, "fields": fields_of(record)}
        for record in records_by_id(open_parts([data.uri]))
    ]


def _pack_json(value: Any) -> str:
    return pack(json.dumps(value, ensure_ascii=False).encode())


def _pack_files(artifact: Artifact, *names: str) -> dict[str, str]:
    folder = open_stored_folder(artifact.uri).local_folder(names)
    return {name: pack((folder / name).read_bytes()) for name in names}
