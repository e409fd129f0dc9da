"""The level *consistent*: a certificate's parts follow from each other, without any store.

answers + references ─▶ scores ─▶ table, intervals, comparisons    computed again
manifests                       each key and content is that of what it names
runs ─▶ the promise of the table's run ─▶ the table's plan, metrics and splits
"""

import dataclasses
import datetime
import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.lineage.certificate.level import CONSISTENT, Level, level_of
from flows.lineage.certificate.statement import TABLE, harness_of, registration_of, unpack
from flows.lookup.promise import promise_of
from flows.lookup.results import report_of, results_spec
from flows.report.cells import CellKey
from flows.report.gather import trained_checkpoint
from flows.report.json_file import to_json
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.registry import code_digest, kind_of, typed_config, user_modules
from infra.credentials import REDACTED
from infra.errors import ConfigError
from infra.store.digest import canonical_json, file_sha256
from infra.store.lineage import verify_artifact
from infra.store.manifest import File, Manifest, Recipe
from infra.store.records import beginning_sha256
from infra.store.store import Store, manifest_name
from infra.typed_json import typed
from model import files
from model.eval.items_file import write_items
from model.eval.metrics.registry import METRICS, get_metric
from model.eval.predictions_file import read_predictions, write_predictions
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
            return _Certified(predicate, Store(temporary)).check()
    except ConfigError as error:  # Of a version with other configs.
        return Level(name=CONSISTENT, state="not checked", detail=str(error))
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, OSError) as error:
        problem = f"it is no certificate of a table: {type(error).__name__}: {error}"
        return level_of(CONSISTENT, [problem], "")


class _Certified:
    """A certified table, as artifacts in a store of its own; of most, only manifests are there."""

    def __init__(self, predicate: Mapping[str, Any], store: Store) -> None:
        self._predicate, self._store = predicate, store
        self._manifests = {k: typed(Manifest, v) for k, v in predicate["manifests"].items()}
        for key, manifest in self._manifests.items():
            store.files.create_if_absent(manifest_name(key), manifest.to_json().encode())
        self._results = self._manifests[predicate["results"]]
        self._plan = results_spec(self._results).plan
        roles = ((role, CellKey.of_role(role)) for role in self._results.inputs)
        self._cells = {role: cell for role, cell in roles if cell}
        self._scores = {r: self._manifests[self._results.inputs[r].key] for r in self._cells}
        self._metrics = {score.config["metric"] for score in self._scores.values()}
        self._runs = typed(list[dict[str, Any]], predicate["runs"])
        self._run = next(r for r in self._runs if r["run"] == predicate["suite"]["version"])
        self._decoders: dict[str, Any] = {}
        self._splits = {
            key: json.loads(unpack(text))
            for key, text in predicate.get("items", {}).get("splits", {}).items()
        }

    def check(self) -> Level:
        """Returns the level."""
        table = json.dumps(self._predicate["table"], indent=1, ensure_ascii=False) + "\n"
        self._put(self._results.key, TABLE, table.encode())
        has_items = "items" in self._predicate
        if has_items:
            self._put_items()
        problems = [*self._link_problems(), *self._promise_problems(), *self._chain_problems()]
        own = sorted(self._metrics - METRICS.keys())
        if not problems and (own or not has_items):
            why = f"{', '.join(own)} is the study's own code" if own else "it has no items"
            detail = f"{why}, so scores were not computed from answers; all else fits together"
            return Level(name=CONSISTENT, state="not checked", detail=detail)
        # Scores of broken links would say less than the links themselves, and a table of wrong
        # scores less than these.
        problems = problems or [p for r in self._cells for p in self._score_problems(r)]
        detail = f"{len(self._cells):,} scores and their table computed again from the answers"
        if missing := len(self._missing_cells()):
            detail += f"; {missing:,} planned ones are missing, as the table shows"
        if (promises := len(self._run.get("promised", ()))) != 1:
            # A sweep promises more seeds on its way.
            text = f"promised in {promises} steps" if promises else "its run promised nothing"
            detail += f"; {text}"
        return level_of(CONSISTENT, problems or [*self._table_problems()], detail)

    def _put_items(self) -> None:
        for key, packed in self._predicate["items"]["files"].items():
            for name, text in packed.items():
                self._put(key, name, unpack(text))
        for score in self._scores.values():
            answers = score.inputs["predictions"].key
            texts = json.loads(unpack(self._predicate["items"]["answers"][answers]))
            rows = [
                {
                    **{name: record[name] for name in ("prefix", "source", "source_sha256")},
                    **{name: record["fields"][name] for name in ("id", "answers")},
                    "prediction": text,
                }
                for record, text in zip(self._splits[score.inputs["data"].key], texts, strict=True)
            ]
            write_predictions(self._folder(answers), rows)

    def _link_problems(self) -> Iterator[str]:
        """Yields where an artifact is not what another one, its manifest or its key says."""
        for key, manifest in self._manifests.items():
            for problem in verify_artifact(self._store, key):
                if problem.reason != "missing":  # Most files are in no certificate.
                    yield f"{manifest.name}, {key}: {problem.path}: {problem.reason}"
            if _identity_of(manifest) not in ("", key.rpartition("-")[0]):
                yield f"{manifest.name}: its inputs, config or seed are not those of its key {key}"
            train = manifest.config["train"] if kind_of(manifest).draws_batches else {}
            most = math.inf if train.get("epochs") else train.get("total_steps", math.inf)
            if float(manifest.counts.get("steps", 0)) > most:
                yield f"{manifest.name}: {manifest.counts['steps']} updates, its config has {most}"

    def _promise_problems(self) -> Iterator[str]:
        """Yields where the table is not what its run promised, or is older than its promise."""
        suite = self._predicate["suite"]["name"]
        if (self._run["results"], self._run["name"]) != (self._results.key, suite):
            yield f"the run {self._run['run']} is not that of this table"
        of_record = {
            "evaluatedAt": self._run["finished"],
            "preRegistration": registration_of(self._run),
            "harness": harness_of(self._results),
        }
        for field, value in of_record.items():
            if self._predicate.get(field) != value:
                yield f"{field} is not what the run's record and the table's manifest say"
        scored = {}
        for role, cell in self._cells.items():
            score = self._scores[role]
            answers = self._manifests[score.inputs["predictions"].key]
            data = score.inputs["data"]
            scored[cell.benchmark] = (score.config["metric"], self._manifests[data.key].config)
            if answers.inputs["data"] != data:
                yield f"{role}: answered on other data than it is scored on"
            if {score.config["budget"], answers.config["budget"]} != {cell.budget}:
                yield f"{role}: answered or scored with another budget"
            # What is scored without a transfer has no seed of its own.
            trained = trained_checkpoint(answers, self._store.get_cached)
            seed = trained.environment.get("labels", {}).get("seed", cell.seed)
            if seed != cell.seed:
                yield f"{role}: its checkpoint has the seed {seed}"
        if not self._run.get("promised"):
            return
        promised, kept = self._run["promised"][-1], promise_of(self._plan, scored)
        # A row that the table has not, because nothing of it was scored, is no other promise.
        kept["scored"] = {**promised["scored"], **kept["scored"]}
        promised = {name: promised[name] for name in kept}
        if difference := first_difference(promised, kept, 0, "promise"):
            yield f"the table is not what was promised: {difference}"
        # A sweep adds to what was promised; what was promised once is never taken back.
        for earlier, later in itertools.pairwise(p["plan"] for p in self._run["promised"]):
            for field in ("methods", "benchmarks", "budgets", "seeds"):
                if lost := [str(each) for each in earlier[field] if each not in later[field]]:
                    yield f"{field} {', '.join(lost)} were promised first, and not later"
        first = next(run["began"] for run in self._runs if "began" in run)
        began, made = map(datetime.datetime.fromisoformat, (first, self._results.started))
        # Starts of steps are noted in whole seconds.
        if made + datetime.timedelta(seconds=1) < began:
            yield (
                f"the table was made at {made:%Y-%m-%d %H:%M} UTC, before the first run of the "
                f"name {suite}, at {began:%Y-%m-%d %H:%M} UTC: it is of an older study"
            )
        if self._run["outcome"] == "complete" and (missing := self._missing_cells()):
            yield f"{missing[0]} was promised and is missing, of a run that is complete"

    def _chain_problems(self) -> Iterator[str]:
        """Yields gaps in the chain of the runs of a name."""
        by_name = {run["run"]: run for run in self._runs}
        for run in self._runs:
            link = run.get("previous")
            # Two that begin at once do not know of each other; one that had ended is known. Runs of
            # earlier versions know of none.
            ended = [r for r in self._runs if (r["finished"] or "~") < run.get("began", "")]
            if "previous" in run and link is None and ended:
                yield f"{run['run']} does not name the run before it, {ended[-1]['run']}"
            elif link and link["run"] not in by_name:
                yield f"the run {link['run']} of this name is left out, which {run['run']} names"
            elif link and beginning_sha256(by_name[link["run"]]) != link["sha256"]:
                yield f"{link['run']} promised something else when {run['run']} began"

    def _score_problems(self, role: str) -> Iterator[str]:
        """Scores the answers of a cell, and yields how they differ from what is stated."""
        score, decoder = self._scores[role], {}
        rows = [*read_predictions(self._folder(score.inputs["predictions"].key))]
        if "mask_codec" in score.inputs:
            decoder = {"decode_mask": self._mask_decoder(score.inputs["mask_codec"].key)}
        # The metric is that of this program; the certificate gives answers and references alone.
        scorer = Scorer(score.config["metric"])
        for row, record in zip(rows, self._splits[score.inputs["data"].key], strict=True):
            scorer.add(row["prediction"], {**record["fields"], **decoder})
        scored = scorer.finish()
        result = scored.result.as_json(scorer.name)
        write_items(
            self._folder(score.key), [r | i for r, i in zip(rows, scored.rows(), strict=True)]
        )
        self._put(score.key, files.SCORE, json.dumps(result).encode())
        stated = float(score.counts.get("score", math.nan))
        if not math.isclose(stated, result["score"], abs_tol=self._tolerance):
            yield f"{role}: its answers score {result['score']:.4f}, and {stated:.4f} is stated"

    def _table_problems(self) -> Iterator[str]:
        """Yields where the table is not that of the scores, as they were computed again."""
        # Each manifest now has the files that are there: those of a score were written anew.
        for key in {entry.key for entry in self._results.inputs.values()}:
            digests = {
                path.name: File(sha256=file_sha256(path), size=path.stat().st_size)
                for path in self._folder(key).iterdir()
            }
            manifest = dataclasses.replace(self._manifests[key], files=digests)
            self._store.files.put(manifest_name(key), manifest.to_json().encode())
        store, key = Store(self._store.uri), self._results.key
        if difference := table_difference(self._predicate["table"], store, key, self._tolerance):
            yield difference

    def _mask_decoder(self, codec: str) -> Any:
        if codec not in self._decoders:  # It is compiled when it is first used.
            from model.masks.codec import MaskCodec  # Which imports JAX; few metrics read masks.

            loaded = MaskCodec.load(self._folder(codec) / files.MASK_CODEC)
            self._decoders[codec] = loaded.decode
        return self._decoders[codec]

    @property
    def _tolerance(self) -> float:
        masks = any(get_metric(metric).reads_masks for metric in self._metrics)
        return _MASK_TOLERANCE if masks else _TOLERANCE

    def _missing_cells(self) -> list[str]:
        return [
            f"{row}/{method}/{budget}/{seed}"
            for plan in self._plan.views
            for row in plan.benchmarks
            for method in plan.methods
            for budget in plan.budgets
            for seed in plan.seeds
            if plan.runs(method, budget) and f"{row}/{method}/{budget}/{seed}" not in self._cells
        ]

    def _put(self, key: str, name: str, data: bytes) -> None:
        (self._folder(key) / Path(name).name).write_bytes(data)

    def _folder(self, key: str) -> Path:
        folder = self._store.state / self._store.get_cached(key).folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def table_difference(
    table: Mapping[str, Any], store: Store, key: str, tolerance: float = _TOLERANCE
) -> str:
    """Returns the first place where a table is not that of the scores in a store; "" if none."""
    results = store.get(key)
    report, _ = report_of(store, results, mixed=False)
    now = json.loads(to_json(report))
    is_ours = code_digest("results", results.manifest.config) == results.manifest.code
    difference = first_difference(table, now, tolerance, "table")
    if is_ours and not difference:  # Nothing may be left out of what the same code writes.
        difference = first_difference(now, table, tolerance, "table")
        return f"{difference}: the table leaves it out" if difference else ""
    version = "" if is_ours else "; another version made it, which its harness names"
    return f"{difference} when computed again{version}" if difference else ""


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
    fields = {n: getattr(manifest, n) for n in ("kind", "name", "inputs", "seed", "libraries")}
    return Recipe(**fields, config=config).identity


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
    """Returns the name of an entry of a table's list, such as parcel@64; else its number."""
    names = entry if isinstance(entry, dict) else {}
    if "method" in names:
        return f"{names['method']}@{names.get('budget')}"
    return names.get("benchmark", f"{number}")
