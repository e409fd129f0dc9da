"""`parcel verify`: the levels at which a certificate holds, and what no level proves."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.lineage.certificate.consistent import check_consistent
from flows.lineage.certificate.envelope import open_envelope
from flows.lineage.certificate.level import REMADE, SIGNED, TRACED, Level, level_of
from flows.lineage.certificate.remade import check_remade
from flows.lineage.certificate.statement import PREDICATE_TYPE
from flows.lineage.certificate.traced import check_traced
from flows.report.data_tables import align_table
from flows.steps.kind import Step
from infra.errors import ConfigError, printable
from infra.store.store import Store
from infra.typed_json import typed

NOT_PROVED = (
    "Not proved at any level: that no run was made without a record, or in a store begun anew, and "
    "no record was written anew; that the data are what they are said to be; that the metric "
    "measures what matters."
)

_FIELDS: Mapping[str, Any] = {
    "suite": dict[str, str],
    "table": dict[str, Any],
    "results": str,
    "manifests": dict[str, dict[str, Any]],
    "runs": list[dict[str, Any]],
    "licences": list[dict[str, Any]],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a verification.

    Attributes:
      predicate: what was signed.
      note: a line on the key; "" where the verifier named it.
      levels: the levels, in order.
    """

    predicate: Mapping[str, Any]
    note: str
    levels: tuple[Level, ...]

    @property
    def failure(self) -> Level | None:
        """The first level that failed; None if none did."""
        return next((level for level in self.levels if level.state == "failed"), None)

    def lines(self) -> Iterator[str]:
        """Yields the lines that are printed."""
        suite = self.predicate["suite"]
        table = f"The table of {suite.get('name')}, {self.predicate['results']}"
        yield printable(f"{table}; runs of that name:")  # An author may have written anything.
        for run in self.predicate["runs"]:
            began = f"{run.get('began')}"[:16]
            outcome = f"{run.get('outcome')}, {run.get('results')}"
            yield printable(f"  {run.get('run')}, {began}: {outcome}")
        yield from ("", NOT_PROVED, *([self.note] if self.note else ()), "")
        rows = [(level.name, level.state, level.detail) for level in self.levels]
        yield from map(printable, align_table([("level", "outcome", "detail"), *rows]))


def verify_certificate(
    path: Path,
    *,
    public_key: str = "",
    store: Store | None = None,
    share: float = 0.0,
    seed: int | None = None,
    tolerance: float = 0.5,
    steps_of: Callable[[Store, str], Mapping[str, Step]] = lambda store, key: {},
    log: Callable[[str], None] = print,
) -> Verdict:
    """Checks a certificate at every level that the arguments allow.

    Args:
      path: the certificate.
      public_key: the author's public key; "" takes the one that the certificate names.
      store: the store of the run, or a copy; without it nothing is traced or made again.
      share: share of cells and trainings to make again [fraction].
      seed: seed of their draw; None draws one.
      tolerance: see `check_remade`.
      steps_of: function from a store and the key of a table to `steps` of `check_remade`.
      log: is told what is made again, line by line.

    Raises:
      ConfigError: if the file is no certificate, or things are made again without a store.
    """
    if share and store is None:
        raise ConfigError("--replay needs --store URI: the run's store, or a copy of it.")
    statement, key, problem = open_envelope(path, public_key)
    predicate = statement.get("predicate")
    try:
        if statement.get("predicateType") != PREDICATE_TYPE or not isinstance(predicate, dict):
            raise ValueError(f"predicateType must be {PREDICATE_TYPE}.")
        for name, kind in _FIELDS.items():
            typed(kind, predicate.get(name), name)
        problems = [problem] if problem else [*_subject_problems(statement)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"FILE must be a certificate of a table, got {path}: {error}") from None
    # A level is checked also where another failed, since they say different things. But nothing is
    # made again from a store that is not the one behind the table.
    levels = [level_of(SIGNED, problems, f"by {key}"), check_consistent(predicate)]
    why = "no --store" if store is None else "" if share else "no --replay"
    if store is None:
        levels.append(Level(name=TRACED, state="not checked", detail=why))
    else:
        levels.append(check_traced(predicate, store, with_table=levels[1].state == "not checked"))
        if levels[-1].state == "failed":
            why = f"the store is not the one behind the table, see {TRACED}"
    if store is None or why:
        levels.append(Level(name=REMADE, state="not checked", detail=why))
    else:
        levels.append(
            check_remade(
                predicate,
                store,
                share=share,
                seed=random.SystemRandom().randrange(10**6) if seed is None else seed,
                tolerance=tolerance,
                steps=steps_of(store, predicate["results"]),
                log=log,
            )
        )
    note = f"Nor whose key {key} is: compare it, or name the author's by --public-key."
    return Verdict(predicate=predicate, note="" if public_key else note, levels=tuple(levels))


def _subject_problems(statement: Mapping[str, Any]) -> Iterator[str]:
    """Yields where the files that a statement is about are not those of its table."""
    predicate = statement["predicate"]
    files = predicate["manifests"].get(predicate["results"], {}).get("files", {})
    stated = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    if stated != {name: file["sha256"] for name, file in files.items()}:
        yield "its subject is not the files of its table"
