"""The level *consistent*: a certificate's parts follow from each other, without any store.

answers + references ─▶ scores ─▶ table, intervals, comparisons    computed again
manifests                       each key and content is that of what it names
runs ─▶ the promise of the table's run ─▶ the table's plan, metrics and splits
"""

import dataclasses
import datetime
import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.lineage.certificate.level import CONSISTENT, Level, level_of
from flows.lineage.certificate.statement import TABLE, unpack
from flows.lookup.promise import promise_of
from flows.lookup.results import results_spec
from flows.report.cells import CellKey
from flows.report.gather import gather_report, trained_checkpoint
from flows.report.json_file import to_json
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.results import ResultsSpec
from flows.steps.registry import code_digest, kind_of, typed_config, user_modules
from infra.credentials import REDACTED
from infra.errors import ConfigError
from infra.store.digest import canonical_json, file_sha256
from infra.store.manifest import File, Manifest, Recipe
from infra.store.records import beginning_sha256
from infra.store.store import Artifact, Store
from infra.typed_json import typed
from model import files
from model.eval.items_file import write_items
from model.eval.metrics.registry import METRICS, get_metric
from model.eval.predictions_file import write_predictions
from model.eval.scorer import Scorer

_TOLERANCE = 2e-6
"""Largest difference of a number in a table, which has six decimals: the last may be rounded
otherwise by other C libraries."""

_MASK_TOLERANCE = 0.02
"""The same where masks are decoded, of whose pixels a few may fall on the other side [points]."""


def check_consistent(predicate: Mapping[str, Any]) -> Level:
    """Computes a certificate's numbers again, and compares its parts with each other."""
    try:
        with tempfile.TemporaryDirectory(prefix="parcel-verify-") as temporary:
            return _check_parts(_Parts.of_predicate(predicate, Store(temporary)))
    except ConfigError as error:  # Of a version with other configs.
        return Level(name=CONSISTENT, state="not checked", detail=str(error))
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, OSError) as error:
        problem = f"it is no certificate of a table: {type(error).__name__}: {error}"
        return level_of(CONSISTENT, [problem], "")


def _check_parts(parts: "_Parts") -> Level:
    problems = [*_link_problems(parts), *_promise_problems(parts), *_chain_problems(parts)]
    own = sorted({metric for metric in parts.metrics.values() if metric not in METRICS})
    if not problems and (parts.items is None or own):
        why = "certified with --no-items"
        if own:
            why = f"{', '.join(own)} is the study's own code"
        detail = f"{why}, so scores were not computed from answers; all else fits together"
        return Level(name=CONSISTENT, state="not checked", detail=detail)
    # Scores of broken links would say less than the links themselves.
    detail = f"{len(parts.cells):,} scores and their table computed again from the answers"
    return level_of(
        CONSISTENT, problems or [*_table_problems(parts)], detail + _promise_text(parts)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Parts:
    """A predicate, read."""

    name: str
    table: Mapping[str, Any]
    results: Manifest
    spec: ResultsSpec
    manifests: dict[str, Manifest]
    cells: Mapping[str, CellKey]
    runs: list[dict[str, Any]]
    run: Mapping[str, Any]
    items: Mapping[str, Any] | None
    store: Store

    @classmethod
    def of_predicate(cls, predicate: Mapping[str, Any], store: Store) -> "_Parts":
        manifests = {key: typed(Manifest, value) for key, value in predicate["manifests"].items()}
        results = manifests[predicate["results"]]
        runs = typed(list[dict[str, Any]], predicate["runs"])
        full_name = predicate["suite"]["version"]
        roles = ((role, CellKey.of_role(role)) for role in results.inputs)
        return cls(
            name=predicate["suite"]["name"],
            table=predicate["table"],
            results=results,
            spec=results_spec(results),
            manifests=manifests,
            cells={role: cell for role, cell in roles if cell},
            runs=runs,
            run=next(run for run in runs if run["run"] == full_name),
            items=predicate.get("items"),
            store=store,
        )

    def artifact(self, key: str) -> Artifact:
        """Returns an artifact of the table's history; only what was computed again has files."""
        return Artifact(self.store.files, self.manifests[key])

    @property
    def metrics(self) -> dict[str, str]:
        """Role of a score -> its metric."""
        return {r: self.manifests[self.results.inputs[r].key].config["metric"] for r in self.cells}


def _link_problems(parts: _Parts) -> Iterator[str]:
    """Yields where a manifest is not what another one, or its own key, says."""
    for key, manifest in parts.manifests.items():
        if manifest.key != key:
            yield f"{key}: its manifest is that of {manifest.key}"
        for role, entry in manifest.inputs.items():
            if entry.key not in parts.manifests:
                yield f"{manifest.name}: its input {role}, {entry.key}, is missing"
            elif parts.manifests[entry.key].content != entry.content:
                yield f"{manifest.name}: its input {role} is {entry.key} with other content"
        if _identity_of(manifest) not in ("", key.rpartition("-")[0]):
            yield f"{manifest.name}: its inputs, config or seed are not those of its key {key}"
        train = manifest.config["train"] if kind_of(manifest).draws_batches else {}
        planned = math.inf if train.get("epochs") else train.get("total_steps", math.inf)
        if float(manifest.counts.get("steps", 0)) > planned:
            yield f"{manifest.name}: {manifest.counts['steps']} updates, its config has {planned}"
    text = json.dumps(parts.table, indent=1, ensure_ascii=False) + "\n"
    if not _has_text(parts.results, TABLE, text.encode()):
        yield f"the table is not {TABLE} of {parts.results.key}"


def _identity_of(manifest: Manifest) -> str:
    """Returns the identity that a manifest's fields give; "" where they cannot tell."""
    # Reading a config that names a user's code would import it; one that held a credential has
    # another digest than it had.
    if user_modules(manifest.kind, manifest.config) or REDACTED in canonical_json(manifest.config):
        return ""
    try:
        config = typed_config(manifest.kind, manifest.config)
    except ConfigError:
        return ""
    if isinstance(config, FitSpec):
        config = config.as_recorded(manifest.counts)
    return Recipe(
        kind=manifest.kind,
        name=manifest.name,
        inputs=manifest.inputs,
        config=config,
        seed=manifest.seed,
        libraries=manifest.libraries,
    ).identity


def _promise_problems(parts: _Parts) -> Iterator[str]:
    """Yields where the table is not the one that its run promised, or is older than its promise."""
    if parts.run["results"] != parts.results.key or parts.run["name"] != parts.name:
        yield f"the run {parts.run['run']} is not that of this table"
    scored = {}
    for role, cell in parts.cells.items():
        score = parts.manifests[parts.results.inputs[role].key]
        answers = parts.manifests[score.inputs["predictions"].key]
        trained = trained_checkpoint(answers, parts.artifact)
        data = parts.manifests[answers.inputs["data"].key]
        scored[cell.benchmark] = (score.config["metric"], data.config)
        if answers.inputs["data"] != score.inputs["data"]:
            yield f"{role}: answered on other data than it is scored on"
        told = (score.config["budget"], answers.config["budget"])
        if told != (cell.budget, cell.budget):
            yield f"{role}: answered and scored with a budget of {told[1]} and {told[0]}"
        if _seed_of(trained) not in (cell.seed, None):
            yield f"{role}: its checkpoint has the seed {_seed_of(trained)}"
    if not parts.run.get("promised"):
        return
    promised = parts.run["promised"][-1]
    kept = json.loads(canonical_json(promise_of(parts.spec.plan, scored)))
    for name in ("plan", "comparisons", "family"):
        if difference := first_difference(promised[name], kept[name], 0, name):
            yield f"the table is not what was promised: {difference}"
    for row, value in kept["scored"].items():
        if difference := first_difference(promised["scored"].get(row), value, 0, row):
            yield f"the table is not what was promised: {difference}"
    first = next(run["began"] for run in parts.runs if "began" in run)
    began, made = map(datetime.datetime.fromisoformat, (first, parts.results.started))
    # Starts of steps are noted in whole seconds.
    if made + datetime.timedelta(seconds=1) < began:
        yield (
            f"the table was made at {made:%Y-%m-%d %H:%M} UTC, before the first run of the name "
            f"{parts.name}, at {began:%Y-%m-%d %H:%M} UTC: it is of an older study"
        )
    if parts.run["outcome"] == "complete" and (missing := _missing_cells(parts)):
        yield f"{missing[0]} was promised and is not in the table, of a run that is complete"


def _chain_problems(parts: _Parts) -> Iterator[str]:
    """Yields gaps in the chain of the runs of a name."""
    by_name = {run["run"]: run for run in parts.runs}
    for run in parts.runs:
        if "previous" not in run:
            continue  # Of a version without the chain.
        link = run["previous"]
        # Two that begin at once do not know of each other; one that had ended is known.
        ended = [each for each in parts.runs if (each["finished"] or "~") < run["began"]]
        if link is None and ended:
            yield f"{run['run']} does not name the run before it, {ended[-1]['run']}"
        elif link and link["run"] not in by_name:
            yield f"the run {link['run']} of this name is left out, which {run['run']} names"
        elif link and beginning_sha256(by_name[link["run"]]) != link["sha256"]:
            yield f"{link['run']} promised something else when {run['run']} began"


def _table_problems(parts: _Parts) -> Iterator[str]:
    """Yields where scores are not those of the answers, or the table not that of the scores."""
    assert parts.items is not None
    recomputed = _Recomputed(parts, parts.items)
    wrong = [problem for role in parts.cells for problem in recomputed.score_cell(role)]
    yield from wrong
    if wrong:
        return  # The table would differ for the same reason.
    recomputed.put_files()
    inputs = {role: parts.artifact(entry.key) for role, entry in parts.results.inputs.items()}
    report = gather_report(parts.spec.plan, parts.spec.accepted, inputs, parts.artifact)
    now = json.loads(to_json(report))
    masks = any(get_metric(metric).reads_masks for metric in parts.metrics.values())
    tolerance = _MASK_TOLERANCE if masks else _TOLERANCE
    if difference := first_difference(parts.table, now, tolerance, "table"):
        version = ""
        if code_digest("results", parts.results.config) != parts.results.code:
            version = "; its code is not this version's, which the certificate's harness names"
        yield f"{difference} when computed again{version}"


class _Recomputed:
    """The inputs of a table, computed again; their manifests name the files that came out."""

    def __init__(self, parts: _Parts, items: Mapping[str, Any]) -> None:
        self._parts, self._items, self._manifests = parts, items, parts.manifests
        self._splits: dict[str, list[dict[str, Any]]] = {}

    def score_cell(self, role: str) -> Iterator[str]:
        """Scores the answers of a cell, and yields how they differ from what is stated."""
        key = self._parts.results.inputs[role].key
        manifest = self._manifests[key]
        split, answers = manifest.inputs["data"].key, manifest.inputs["predictions"].key
        if split not in self._splits:
            self._splits[split] = json.loads(unpack(self._items["splits"][split]))
        records = self._splits[split]
        texts = json.loads(unpack(self._items["answers"][answers]))
        rows = [
            {
                "id": record["fields"]["id"],
                "prediction": text,
                "answers": record["fields"]["answers"],
                **{name: record[name] for name in ("prefix", "source", "source_sha256")},
            }
            for record, text in zip(records, texts, strict=True)
        ]
        folder = self._folder(answers)
        write_predictions(folder, rows)
        if not _has_text(
            self._manifests[answers], files.PREDICTIONS, (folder / files.PREDICTIONS).read_bytes()
        ):
            yield f"{role}: its answers, or their references, are not those of {answers}"
            return
        # The metric is that of this program; the answers are all it takes from the certificate.
        scorer = Scorer(manifest.config["metric"])
        decoder = self._mask_decoder(manifest)
        for record, text in zip(records, texts, strict=True):
            scorer.add(text, {**record["fields"], **decoder})
        scored = scorer.finish()
        result = scored.result.as_json(scorer.name)
        folder = self._folder(key)
        write_items(folder, [r | item for r, item in zip(rows, scored.rows(), strict=True)])
        (folder / files.SCORE).write_text(json.dumps(result, sort_keys=True) + "\n")
        self._manifests[key] = dataclasses.replace(manifest, files=_digests(folder))
        tolerance = _MASK_TOLERANCE if decoder else _TOLERANCE
        stated = float(manifest.counts.get("score", math.nan))
        if not math.isclose(stated, result["score"], abs_tol=tolerance):
            yield f"{role}: its answers score {result['score']:.4f}, and {stated:.4f} is stated"

    def put_files(self) -> None:
        """Writes the other files that the table is computed from: guesses, matches."""
        for key, packed in self._items["files"].items():
            for name, text in packed.items():
                data = unpack(text)
                if not _has_text(self._manifests[key], name, data):
                    raise ValueError(f"{name} is not that of {key}")
                (self._folder(key) / Path(name).name).write_bytes(data)
            kept = {n: f for n, f in self._manifests[key].files.items() if n in packed}
            self._manifests[key] = dataclasses.replace(self._manifests[key], files=kept)

    def _mask_decoder(self, manifest: Manifest) -> dict[str, Any]:
        if "mask_codec" not in manifest.inputs:
            return {}
        from model.masks.codec import MaskCodec  # Which imports JAX; few metrics read masks.

        key = manifest.inputs["mask_codec"].key
        path = self._folder(key) / files.MASK_CODEC
        path.write_bytes(unpack(self._items["files"][key][files.MASK_CODEC]))
        return {"decode_mask": MaskCodec.load(path).decode}

    def _folder(self, key: str) -> Path:
        folder = self._parts.store.state / self._parts.artifact(key).folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def first_difference(was: Any, now: Any, tolerance: float, path: str) -> str:
    """Returns the first place where two plain values differ; "" if they agree.

    Numbers may differ by `tolerance`; fields that only `now` has are of a later version.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = ((was[name], now.get(name), f"{path}.{name}") for name in was)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        both = enumerate(zip(was, now, strict=True))
        pairs = ((a, b, f"{path}.{_entry_name(a, number)}") for number, (a, b) in both)
    else:
        is_same = was == now
        if isinstance(was, int | float) and isinstance(now, int | float):
            is_same = math.isclose(was, now, abs_tol=tolerance, rel_tol=0)
        return "" if is_same else f"{path} is {was!r:.60} and {now!r:.60}"
    differences = (first_difference(a, b, tolerance, place) for a, b, place in pairs)
    return next(filter(None, differences), "")


def _entry_name(entry: Any, number: int) -> str:
    """Returns the name of an entry of a list in a table, such as parcel@64; else its number."""
    if not isinstance(entry, dict) or "method" not in entry:
        return (
            entry["benchmark"] if isinstance(entry, dict) and "benchmark" in entry else f"{number}"
        )
    return f"{entry['method']}@{entry.get('budget')}"


def _missing_cells(parts: _Parts) -> list[str]:
    present = {str(cell) for cell in parts.cells.values()}
    return [
        name
        for plan in parts.spec.plan.views
        for row in plan.benchmarks
        for method in plan.methods
        for budget in plan.budgets
        for seed in plan.seeds
        if plan.runs(method, budget) and (name := f"{row}/{method}/{budget}/{seed}") not in present
    ]


def _promise_text(parts: _Parts) -> str:
    missing = len(_missing_cells(parts))
    text = f"; {missing:,} planned ones are missing, as the table shows" if missing else ""
    promises = len(parts.run.get("promised", ()))
    text += f"; promised in {promises} steps, seed by seed" if promises > 1 else ""
    return text + ("" if promises else "; of a version whose runs promised nothing")


def _seed_of(checkpoint: Manifest) -> int | None:
    """Returns the seed of a transfer; None of a checkpoint that is scored as it is."""
    return checkpoint.environment.get("labels", {}).get("seed")


def _has_text(manifest: Manifest, name: str, data: bytes) -> bool:
    stated = manifest.files.get(name)
    return stated is not None and stated.sha256 == hashlib.sha256(data).hexdigest()


def _digests(folder: Path) -> dict[str, File]:
    return {
        path.name: File(sha256=file_sha256(path), size=path.stat().st_size)
        for path in folder.iterdir()
    }
