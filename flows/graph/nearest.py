"""Finds the artifact that is most similar to a step that has none, and what differs between both.

A sweep asks this for thousands of steps, which differ in little but their seeds. So the configs of
two steps are compared once for all steps that share them, and among artifacts with other names all
seeds that none of them has lead to the same one.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from flows.lookup.config_leaves import config_leaves
from flows.steps.kind import Step
from flows.steps.registry import full_config, libraries_of
from infra.store.digest import canonical_json, settings_json
from infra.store.redact import redact
from infra.store.store import Artifact

SEED = "the seed"
"""Path under which a step's own seed is compared; its config may have a leaf called "seed"."""

INPUT = "input "
"""Beginning of the paths under which the contents of inputs are compared."""

_COMPARED = 200
"""Most artifacts with other names that a new step is compared with."""

_MAX_UNLIKE = 1
"""Most values of its config in which an artifact with another name may differ, to be compared."""

Difference = tuple[str, Any, Any]
"""A path, the value of an artifact there, and that of the step."""


class NearestArtifacts:
    """The artifacts of one kind, among which the one nearest to a step is looked up.

    Args:
      artifacts: artifacts of the kind.
    """

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        # Their configs are put into comparable form when one is first compared: most never are.
        self._artifacts = list(artifacts)
        self._by_name: dict[str, list[Artifact]] = {}
        for artifact in self._artifacts:
            self._by_name.setdefault(artifact.manifest.name, []).append(artifact)
        self._comparable_by_key: dict[str, _Comparable] = {}
        self._config_by_text: dict[str, Mapping[str, Any]] = {}
        self._config_differences: dict[tuple[int, int], list[Difference]] = {}
        self._nearest_of_other_names: dict[tuple[Any, ...], _Comparable] = {}

    def __bool__(self) -> bool:
        return bool(self._artifacts)

    def differences(self, step: Step, inputs: Mapping[str, Artifact]) -> list[Difference] | None:
        """Returns the differences between a step and the nearest artifact, sorted by path.

        None if no artifact has its name, and those of other names have other configs: they are of
        another benchmark, say, and the differences would tell nothing.

        Args:
          step: a step of the kind.
          inputs: role -> its input, if all are known; else {}, and inputs are not compared.
        """
        target = self._comparable_step(step, inputs)
        # Artifacts of the same name if there are any; else a bounded number of others, since a
        # large sweep has thousands.
        if named := self._by_name.get(step.name):
            nearest = self._nearest_comparable(target, named)
        else:
            nearest = self._nearest_of_others(target)
            if len(self._of_configs(nearest, target)) > _MAX_UNLIKE:
                return None
        return sorted(
            self._differences_of_comparables(nearest, target), key=lambda difference: difference[0]
        )

    def differences_from(
        self, artifact: Artifact, step: Step, inputs: Mapping[str, Artifact]
    ) -> list[Difference]:
        """Returns the differences between a step and one of the artifacts, as `differences`."""
        differences = self._differences_of_comparables(
            self._comparable_artifact(artifact), self._comparable_step(step, inputs)
        )
        return sorted(differences, key=lambda difference: difference[0])

    def _comparable_step(self, step: Step, inputs: Mapping[str, Artifact]) -> "_Comparable":
        return _Comparable(
            config=self._redacted_config_leaves(settings_json(step.config)),
            others={SEED: step.seed, **libraries_of(step.kind, step.config)},
            inputs={f"{INPUT}{role}": a.manifest.content for role, a in inputs.items()},
        )

    def _nearest_of_others(self, target: "_Comparable") -> "_Comparable":
        others = self._artifacts[-_COMPARED:]
        # A seed that none of them has differs from all of theirs, whatever it is: a thousand new
        # seeds of one training have the same nearest artifact.
        seed = target.others[SEED]
        is_seen = any(artifact.manifest.seed == seed for artifact in others)
        group = id(target.config), is_seen, seed if is_seen else None, *target.inputs.items()
        if group not in self._nearest_of_other_names:
            self._nearest_of_other_names[group] = self._nearest_comparable(target, others)
        return self._nearest_of_other_names[group]

    def _nearest_comparable(
        self, target: "_Comparable", candidates: list[Artifact]
    ) -> "_Comparable":
        # The nearest artifact tells most: a step with one other value is explained by that value.
        return min(
            map(self._comparable_artifact, candidates),
            key=lambda candidate: len(self._differences_of_comparables(candidate, target)),
        )

    def _comparable_artifact(self, artifact: Artifact) -> "_Comparable":
        if artifact.key not in self._comparable_by_key:
            manifest = artifact.manifest
            self._comparable_by_key[artifact.key] = _Comparable(
                config=self._redacted_config_leaves(canonical_json(full_config(manifest))),
                others={SEED: manifest.seed, **manifest.libraries},
                inputs={f"{INPUT}{role}": read.content for role, read in manifest.inputs.items()},
            )
        return self._comparable_by_key[artifact.key]

    def _redacted_config_leaves(self, text: str) -> Mapping[str, Any]:
        """Returns the leaves of a config, the same object for equal ones; redacted as manifests."""
        if text not in self._config_by_text:
            self._config_by_text[text] = config_leaves(redact(json.loads(text)))
        return self._config_by_text[text]

    def _differences_of_comparables(
        self, was: "_Comparable", now: "_Comparable"
    ) -> list[Difference]:
        read = _path_differences(was.inputs, now.inputs) if now.inputs else []
        return [*self._of_configs(was, now), *_path_differences(was.others, now.others), *read]

    def _of_configs(self, was: "_Comparable", now: "_Comparable") -> list[Difference]:
        pair = id(was.config), id(now.config)
        if pair not in self._config_differences:
            self._config_differences[pair] = _path_differences(was.config, now.config)
        return self._config_differences[pair]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Comparable:
    """An artifact, or a step that would make one, in comparable form.

    Attributes:
      config: path of a leaf of the config -> value.
      others: "the seed" and the names of libraries -> value.
      inputs: "input <role>" -> digest of the input's content.
    """

    #   train.peak_lr     0.001           a leaf of the config
    #   the seed          3
    #   jax               0.9.0           a library
    #   input data/0      5f1c…           the contents of an input
    config: Mapping[str, Any]
    others: Mapping[str, Any]
    inputs: Mapping[str, str]


def _path_differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    return [
        (path, was.get(path), now.get(path))
        for path in was.keys() | now.keys()
        if was.get(path) != now.get(path)
    ]
