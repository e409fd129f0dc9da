"""Measurements on samples of unprepared datasets, kept in the store's local state."""

import dataclasses
import json
from pathlib import Path

from flows.graph.explain import Explanation
from flows.steps.kind import Step
from flows.steps.registry import code_digest, libraries_of
from flows.steps.user_code import with_user_code
from infra.errors import one_line_message
from infra.store.digest import value_sha256
from infra.store.environment import execution_environment
from infra.store.store import Store
from infra.store.stored_folder import open_backend
from pipelines.prepare.estimate import DatasetEstimate, EstimateInterval, estimate_dataset

_FOLDER = "samples"

_FORM = 1
"""Version of the measurement and its file format; after a change no earlier sample is found."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedEstimate:
    """A measured sample, as it is kept.

    Attributes:
      asked: number of inputs requested; a dataset may have fewer.
      cpu: model of the processor that it was measured on.
      sample: the measurement.
    """

    asked: int
    cpu: str
    sample: DatasetEstimate


class SavedEstimates:
    """Kept samples, found by what they depend on: the dataset's config, raw files and code.

    Args:
      store: store in whose local state they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._folder = store.state / _FOLDER
        self._scratch = store.cache

    def find(self, step: Step) -> SavedEstimate | None:
        """Returns the latest sample of a dataset; None if there is none."""
        path = self._saved_estimate_path(step)
        if not path.is_file():
            return None
        raw = json.loads(path.read_text())
        ends = {
            name: EstimateInterval(*value)
            for name, value in raw["sample"].items()
            if _is_range(value)
        }
        return SavedEstimate(
            asked=raw["asked"], cpu=raw["cpu"], sample=DatasetEstimate(**raw["sample"] | ends)
        )

    def measure(
        self, step: Step, explanation: Explanation, count: int
    ) -> tuple[SavedEstimate | None, str]:
        """Measures and keeps a sample of a dataset; returns (sample, "") or (None, reason)."""
        # A user's files are read where they are; drawn ones are an artifact, perhaps not made yet.
        spec = step.config
        raw = explanation.steps[step.inputs["raw"]].artifact
        data_root = step.location or str(raw.path if raw else "")
        try:
            estimate = estimate_dataset(
                spec.prepare,
                source=with_user_code(spec.reader),
                split=spec.split,
                data_root=data_root,
                path=spec.path or None,
                features=spec.features,
                licence=spec.licence,
                licences=spec.licences,
                scratch=str(self._scratch(_FOLDER)),
                count=count,
            )
        # A dataset that cannot be sampled is a line in the plan, and does not end it.
        except (OSError, ValueError, RuntimeError) as error:
            return None, one_line_message(error)
        saved_estimate = SavedEstimate(
            asked=count, cpu=execution_environment()["hardware"]["cpu"], sample=estimate
        )
        text = json.dumps(dataclasses.asdict(saved_estimate))
        open_backend(str(self._folder)).put(self._saved_estimate_path(step).name, text.encode())
        return saved_estimate, ""

    def _saved_estimate_path(self, step: Step) -> Path:
        # A sample holds for the same raw files, settings, code and libraries, as a dataset does.
        depends = [
            _FORM,
            step.config,
            step.inputs["raw"].config,
            code_digest(step.kind, step.config),
            libraries_of(step.kind, step.config),
        ]
        return self._folder / f"{value_sha256(depends)}.json"


def why_not_sampled(step: Step, explanation: Explanation) -> str:
    """Returns why a dataset cannot be sampled; "" if it can."""
    raw = explanation.steps[step.inputs["raw"]].artifact
    if step.location is None and raw is None:
        return "the corpus is drawn when a run begins"
    return ""


def _is_range(value: object) -> bool:
    return isinstance(value, list)
