"""The files that a study is given: checked, and their digests taken, before its graph is built."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.config.licences import fetched_licence
from flows.graph.costs import costs_of
from flows.graph.datasets import datasets_of, raw_folders
from flows.report.cells import Cost
from flows.steps.kinds.files import FilesSpec
from flows.study.input_files import (
    check_study_files,
    data_folders,
    input_files_spec,
    raw_digest_cache,
)
from flows.study.model_checks import check_groups, check_user_connectors
from flows.study.study import StudyConfig
from flows.study.user_data import check_user_data
from flows.study.view import StudyView
from infra.errors import ConfigError
from infra.store.raw_fingerprint import RawFingerprint
from infra.store.store import Store
from model.connector.registry import KINDS
from pipelines.records.licence import Licence


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyInputs:
    """Facts about what a study reads instead of making it.

    Attributes:
      files: (suffix of the backbone, config key) -> digests of the files that the key names.
      raw_states: folders of raw data that a dataset reads -> digest of the names, sizes and times
        of their files.
      licences: folder of raw data -> licence that came with it.
      costs: suffix of a view -> costs of its prompts, where a user's connector is traced for them.
    """

    files: Mapping[tuple[str, str], FilesSpec] = dataclasses.field(default_factory=dict)
    raw_states: Mapping[tuple[str, ...], str] = dataclasses.field(default_factory=dict)
    licences: Mapping[str, Licence] = dataclasses.field(default_factory=dict)
    costs: Mapping[str, tuple[Cost, ...]] = dataclasses.field(default_factory=dict)


NO_INPUTS = StudyInputs()
"""Of a study that makes all it reads: its corpus is drawn, its weights are too."""


def check_study(config: StudyConfig) -> None:
    """Checks, before anything runs, that what a study names is there and fits it.

    Raises:
      ConfigError: if a file, checkpoint, class or group of parameters that the config names is
        missing or unfit, or too many rows of a user's own benchmark are.
    """
    check_user_data(config)
    for study in config.backbone_studies:
        with _errors_of_backbone(study):
            check_study_files(study)
            check_user_connectors(study)
            check_groups(study)


def read_inputs(config: StudyConfig, store: Store | None = None) -> StudyInputs:
    """Returns the facts on which the identities of a study's steps rest.

    Args:
      config: the study.
      store: the store that remembers the digests of files which did not change since; None has
        all of them read.

    Raises:
      ConfigError: if a file is missing, or is not the one that was fetched.
      OSError: if a folder of raw data cannot be listed.
    """
    files, digest_cache = {}, None if store is None else raw_digest_cache(store)
    for study in config.backbone_studies:
        with _errors_of_backbone(study):
            for key, path in study.input_paths.items():
                if not Path(path).exists():
                    raise ConfigError(f"{key} must be an existing file, got {path}.")
                files[study.backbone_suffix, key] = input_files_spec(Path(path), digest_cache)
    costs = {
        view.view_suffix: costs_of(view)
        for view in config.views
        if not {*map(view.connector_of, view.methods)} <= KINDS
    }
    if config.data_root is None:
        return StudyInputs(files=files, costs=costs)
    root, fingerprint = config.data_root, RawFingerprint(config.data_root)
    licences = {folder: fetched_licence(root, folder) for folder in data_folders(config.views)}
    folders = {
        raw_folders(spec) for view in config.views for spec in datasets_of(view, licences).values()
    }
    states = {each: fingerprint.sha256(each) for each in sorted(folders)}
    return StudyInputs(files=files, raw_states=states, licences=licences, costs=costs)


@contextlib.contextmanager
def _errors_of_backbone(study: StudyView) -> Iterator[None]:
    """Names the backbone in an error about it, where the study has several."""
    try:
        yield
    except ConfigError as error:
        if not study.backbone:
            raise
        raise ConfigError(f"backbones.{study.backbone}: {error}") from None
