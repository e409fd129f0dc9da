"""What the earlier runs of a study had, and what its user has changed since."""

import functools
import json
from collections.abc import Mapping, Set
from typing import Any

from flows.graph.graph import StudyGraph, graph_of
from flows.graph.inputs import read_inputs
from flows.graph.nearest import SEED
from flows.lookup.config_leaves import config_leaves
from flows.lookup.runs import ended_run_records
from flows.steps.kind import Step
from flows.steps.registry import kind_of
from flows.study.load import check_config
from infra.errors import ConfigError
from infra.store.digest import canonical_json
from infra.store.records import PRUNED
from infra.store.redact import REDACTED
from infra.store.store import Artifact, Store


class LastRuns:
    """The earlier runs of a graph's study; the newest that had a step speaks for it.

    Args:
      store: the store with the records of these runs.
      graph: the study's graph.
    """

    def __init__(self, store: Store, graph: StudyGraph) -> None:
        self._store, self._study = store, graph.study
        self._steps: dict[str, Mapping[str, Step] | None] = {}
        self._by_name: dict[str, dict[str, list[Artifact]]] = {}

    def artifact(self, step: Step) -> Artifact | None:
        """Returns the artifact that the newest run with a step of this name had; None if none.

        There is none of files that the study is given: their contents are no values of the code.
        """
        found = None if kind_of(step).file_field else self._find_run_with_artifact(step)
        return found[1] if found else None

    def changed_leaves(self, step: Step) -> set[str]:
        """Returns the paths of a step's values that its user has changed since that run.

        All paths count as changed if that run, or its config, does not tell.
        """
        found = self._find_run_with_artifact(step)
        before = self._steps_today(found[0]) if found else None
        now = _step_config_leaves(step)
        if before is None or step.name not in before:
            return {*now}
        was = _step_config_leaves(before[step.name])
        return {path for path in was.keys() | now.keys() if was.get(path) != now.get(path)}

    def _find_run_with_artifact(self, step: Step) -> tuple[Mapping[str, Any], Artifact] | None:
        """Returns the newest run that had an artifact under a step's name, and the artifact."""
        if step.kind not in self._by_name:
            by_name = self._by_name[step.kind] = {}
            for artifact in self._store.artifacts(step.kind):
                by_name.setdefault(artifact.manifest.name, []).append(artifact)
        for record, keys in (
            self._ended_runs_of_study if step.name in self._by_name[step.kind] else ()
        ):
            artifacts = [a for a in self._by_name[step.kind][step.name] if a.key in keys]
            if artifacts:
                return record, max(artifacts, key=lambda artifact: artifact.manifest.started)
        return None

    @functools.cached_property
    def others_keys(self) -> Set[str]:
        """Keys of artifacts that only runs of other studies name."""
        own, others = set[str](), set[str]()
        for record in self._ended_runs_of_store:
            is_own = self._study is None or record["name"] == self._study.name
            (own if is_own else others).update(record["artifacts"], record.get(PRUNED, ()))
        return others - own

    @functools.cached_property
    def _ended_runs_of_store(self) -> list[dict[str, Any]]:
        return [*ended_run_records(self._store).values()]

    @functools.cached_property
    def _ended_runs_of_study(self) -> list[tuple[dict[str, Any], frozenset[str]]]:
        """The records of the study's runs that ended, newest first, with the keys they name."""
        named = [
            r for r in self._ended_runs_of_store if self._study and r["name"] == self._study.name
        ]
        named.sort(key=lambda record: record["finished"], reverse=True)
        return [(r, frozenset([*r["artifacts"], *r.get(PRUNED, ())])) for r in named]

    def _steps_today(self, record: Mapping[str, Any]) -> Mapping[str, Step] | None:
        """Returns name -> the step that today's code makes of what a run's config stated.

        What differs between these and the steps of today's config was changed by the user: both
        have today's defaults and recipes. None if it cannot be told.
        """
        statements = record["config"].get("statements")
        text = json.dumps(statements, sort_keys=True)
        if text not in self._steps:
            self._steps[text] = None
            if statements and REDACTED not in text:
                try:
                    study = check_config(json.loads(text), source=record["name"])
                    graph = graph_of(study, inputs=read_inputs(study, self._store))
                    self._steps[text] = {step.name: step for step in graph.steps}
                except (ConfigError, OSError):  # For example, a file that it names is gone.
                    pass
        return self._steps[text]


def _step_config_leaves(step: Step) -> dict[str, Any]:
    return {**config_leaves(json.loads(canonical_json(step.config))), SEED: step.seed}
