"""The table of all kinds of steps. `flows.steps.kind` introduces the terms by example."""

import contextlib
import functools
import importlib.metadata
import json
from typing import Any

from flows.steps.kind import Kind
from flows.steps.kinds.chance import CHANCE
from flows.steps.kinds.checkpoint import CHECKPOINT
from flows.steps.kinds.corpus import CORPUS
from flows.steps.kinds.dataset import DATASET
from flows.steps.kinds.files import FILES
from flows.steps.kinds.mask_codec import MASK_CODEC
from flows.steps.kinds.predictions import PREDICTIONS
from flows.steps.kinds.raw_files import RAW_FILES
from flows.steps.kinds.results import RESULTS
from flows.steps.kinds.screened import SCREENED
from flows.steps.kinds.start import START
from flows.steps.kinds.tokenizer import TOKENIZER
from flows.steps.kinds.user_step import USER_CHECKPOINT, USER_DATASET, USER_FILES
from flows.steps.user_code import library_versions
from infra.source_code import Tree, checkout, code_sha256
from infra.store.digest import settings_json

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        CORPUS,
        FILES,
        RAW_FILES,
        DATASET,
        SCREENED,
        START,
        TOKENIZER,
        MASK_CODEC,
        CHECKPOINT,
        PREDICTIONS,
        CHANCE,
        RESULTS,
        USER_DATASET,
        USER_CHECKPOINT,
        USER_FILES,
    )
}

RECORDS = (DATASET.name, SCREENED.name, USER_DATASET.name)
"""Kinds whose artifacts hold records."""
PARAMETERS = (CHECKPOINT.name, START.name, USER_CHECKPOINT.name)
"""Kinds whose artifacts hold a model's parameters."""
USER_KINDS = (USER_DATASET.name, USER_CHECKPOINT.name, USER_FILES.name)
"""Kinds of the steps that users' own classes make."""


def step_code(kind: str, config: Any, tree: Tree | None = None) -> dict[str, str]:
    """Returns module -> digest of the code that makes a step of a kind.

    Args:
      kind: name of the kind.
      config: config of the step, typed or as plain values.
      tree: source tree to look in; None takes the sources of this process.
    """
    return _reached_code(kind, _extra_modules(kind, config), tree or checkout())


def code_digest(kind: str, config: Any) -> str:
    """Returns the digest of the code that this process would make a step with [hex]."""
    return _code_digest(kind, _extra_modules(kind, config))


def user_modules(kind: str, config: Any) -> tuple[str, ...]:
    """Returns the modules of the functions that a step's config names; most name none."""
    return KINDS[kind].user_modules(config)


def _extra_modules(kind: str, config: Any) -> tuple[str, ...]:
    also = KINDS[kind].also
    modules = tuple(also(json.loads(settings_json(config)))) if also else ()
    return modules + user_modules(kind, config)


def _reached_code(kind: str, also: tuple[str, ...], tree: Tree) -> dict[str, str]:
    step_kind = KINDS[kind]
    return tree.reach([step_kind.make.__module__, *also], stop=step_kind.stop)


@functools.cache
def _code_digest(kind: str, also: tuple[str, ...]) -> str:
    return code_sha256(_reached_code(kind, also, checkout()))


def libraries_of(kind: str, config: Any) -> dict[str, str]:
    """Returns name -> installed version of the libraries that decide the bytes of a step."""
    versions = dict(_libraries(kind))
    for module in user_modules(kind, config):
        versions |= library_versions(module)
    return versions


@functools.cache
def _libraries(kind: str) -> dict[str, str]:
    versions = {}
    for name in KINDS[kind].libraries:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # No decord on ARM.
            versions[name] = importlib.metadata.version(name)
    return versions
