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
from flows.lineage.certificate.statement import PREDICATE_TYPE, STATEMENT_TYPE
from flows.lineage.certificate.traced import check_traced
from flows.report.data_tables import align_table
from flows.steps.kind import Step
from infra.errors import ConfigError
from infra.store.store import Store

NOT_PROVED = (
    "Not proved at any level: that no run was made without a record, or in a store begun anew; "
    "that the data are what they are said to be; that the metric measures what matters."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a verification.

    Attributes:
      predicate: what was signed.
      key: the public key that the certificate names.
      is_key_given: whether the verifier named the key.
      levels: the levels, in order.
    """

    predicate: Mapping[str, Any]
    key: str
    is_key_given: bool
    levels: tuple[Level, ...]

    @property
    def failure(self) -> Level | None:
        """The first level that failed; None if none did."""
        return next((level for level in self.levels if level.state == "failed"), None)

    def lines(self) -> Iterator[str]:
        """Yields the lines that are printed."""
        suite = self.predicate["suite"]
        yield f"{suite['version']}: the table of {suite['name']}, {self.predicate['results']}"
        for run in self.predicate["runs"]:
            table = run["results"] or "no table"
            began = run.get("began", "")[:16]
            yield f"  run {run['run']}, began {began}: {run['outcome']}, {table}"
        yield ""
        yield NOT_PROVED
        if not self.is_key_given:
            yield f"Nor whose key {self.key} is: compare it, or name the author's by --public-key."
        yield ""
        rows = [(level.name, level.state, level.detail) for level in self.levels]
        yield from align_table([("level", "outcome", "detail"), *rows])


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
    kind = statement.get("_type"), statement.get("predicateType")
    if kind != (STATEMENT_TYPE, PREDICATE_TYPE) or not isinstance(predicate, dict):
        raise ConfigError(f"FILE must be a certificate of a table, got {path}: {kind[1]!r:.60}.")
    problems = [problem] if problem else [*_subject_problems(statement)]
    levels = [level_of(SIGNED, problems, f"by {key}"), check_consistent(predicate)]
    if store is None:
        levels += [_unchecked(name, "no --store") for name in (TRACED, REMADE)]
    else:
        levels.append(check_traced(predicate, store))
        if levels[-1].state == "failed":
            levels.append(_unchecked(REMADE, f"the store is not the one behind it, see {TRACED}"))
        elif not share:
            levels.append(_unchecked(REMADE, "no --replay"))
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
    return Verdict(
        predicate=predicate, key=key, is_key_given=bool(public_key), levels=tuple(levels)
    )


def _unchecked(name: str, why: str) -> Level:
    return Level(name=name, state="not checked", detail=why)


def _subject_problems(statement: Mapping[str, Any]) -> Iterator[str]:
    """Yields where the files that a statement is about are not those of its table."""
    predicate = statement["predicate"]
    files = predicate.get("manifests", {}).get(predicate.get("results"), {}).get("files", {})
    stated = {each["name"]: each["digest"]["sha256"] for each in statement.get("subject", ())}
    if stated != {name: file["sha256"] for name, file in files.items()}:
        yield "its subject is not the files of its table"
