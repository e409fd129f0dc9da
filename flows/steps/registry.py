"""The table of all kinds of steps. `flows.steps.kind` introduces the terms by example."""

import contextlib
import functools
import importlib.metadata
import json
from typing import Any

from flows.steps.code import reach
from flows.steps.kind import Kind, Step
from flows.steps.kinds.cast import CAST
from flows.steps.kinds.chance import CHANCE
from flows.steps.kinds.checkpoint import CHECKPOINT
from flows.steps.kinds.corpus import CORPUS
from flows.steps.kinds.dataset import DATASET
from flows.steps.kinds.files import FILES
from flows.steps.kinds.mask_codec import MASK_CODEC
from flows.steps.kinds.predictions import PREDICTIONS
from flows.steps.kinds.raw_files import RAW_FILES
from flows.steps.kinds.results import RESULTS
from flows.steps.kinds.scores import SCORES
from flows.steps.kinds.screened import SCREENED
from flows.steps.kinds.start import START
from flows.steps.kinds.tokenizer import TOKENIZER
from flows.steps.kinds.user_step import USER_CHECKPOINT, USER_DATASET, USER_FILES
from flows.steps.user_code import library_versions
from infra.errors import ConfigError
from infra.source_code import Tree, checkout, code_sha256, read_module
from infra.store.births import with_births
from infra.store.digest import canonical_json, settings_json, value_sha256
from infra.store.manifest import Manifest

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
        CAST,
        PREDICTIONS,
        SCORES,
        CHANCE,
        RESULTS,
        USER_DATASET,
        USER_CHECKPOINT,
        USER_FILES,
    )
}

_UNKNOWN = Kind(name="", make=lambda work: iter(()))


def kind_of(step: Step | Manifest) -> Kind:
    """Returns the kind of a step or an artifact; one of another version has all the defaults."""
    return KINDS.get(step.kind, _UNKNOWN)


def full_config(manifest: Manifest) -> Any:
    """Returns the config in a manifest, with fields that it is older than at their birth values."""
    kind = KINDS.get(manifest.kind)
    return with_births(kind.spec, manifest.config) if kind else manifest.config


def typed_config(kind: str, config: Any) -> Any:
    """Returns a step's config from the plain values in a manifest.

    Raises:
      ConfigError: if this version of the code cannot read the config.
    """
    import pydantic

    try:
        spec: Any = KINDS[kind].spec
        return pydantic.TypeAdapter(spec).validate_python(with_births(spec, config))
    except (KeyError, pydantic.ValidationError) as error:
        message = error.errors()[0]["msg"] if isinstance(error, pydantic.ValidationError) else error
        raise ConfigError(f"this version cannot read the config of a {kind}: {message}") from None


def step_code(kind: str, config: Any, tree: Tree | None = None) -> dict[str, str]:
    """Returns module -> digest of the code that makes a step of a kind.

    Args:
      kind: name of the kind.
      config: config of the step, typed or as plain values.
      tree: source tree to look in; None takes the sources of this process.
    """
    return _reached_code(kind, *_code_of_config(kind, config), tree or checkout())


def code_digest(kind: str, config: Any) -> str:
    """Returns the digest of the code that this process would make a step with [hex]."""
    return _code_digest(kind, *_code_of_config(kind, config))


def user_modules(kind: str, config: Any) -> tuple[str, ...]:
    """Returns the modules of the functions that a step's config names; most name none."""
    return KINDS[kind].user_modules(config)


_Entries = tuple[tuple[str, str], ...]
"""Registries, each with the JSON of what decides bytes in its entry for what a config names."""


def _code_of_config(kind: str, config: Any) -> tuple[tuple[str, ...], _Entries]:
    """Returns the modules that a step's config names, and the entries of registries."""
    step_kind = KINDS[kind]
    values = json.loads(settings_json(config)) if step_kind.also or step_kind.entries else None
    modules = tuple(step_kind.also(values)) if step_kind.also else ()
    entries = step_kind.entries(values).items() if step_kind.entries else ()
    return (
        (*modules, *user_modules(kind, config)),
        tuple((registry, canonical_json(entry)) for registry, entry in entries if entry),
    )


def _reached_code(
    kind: str, also: tuple[str, ...], entries: _Entries, tree: Tree
) -> dict[str, str]:
    # A step's code stops at a registry, which knows all of a family, and goes on with the one that
    # the config names:
    #
    #   model.train.step ─▶ … ─▶ registry      not entered; of it counts what decides bytes, as
    #                                          values: the routing of "mqt", and not its FLOPs
    #   the config says "mqt" ─▶ model.connector.mqt ─▶ …
    #
    # The values are those of this process. A tree with another registry has its whole text instead.
    step_kind = KINDS[kind]
    modules = reach(tree, [step_kind.make.__module__, *also], stop=step_kind.stop)
    for registry, values in entries:
        if registry in tree and registry not in modules:
            text = read_module(tree.text(registry)).digest
            is_ours = text == read_module(checkout().text(registry)).digest
            modules[registry] = value_sha256(values) if is_ours else text
    return dict(sorted(modules.items()))


@functools.cache
def _code_digest(kind: str, also: tuple[str, ...], entries: _Entries) -> str:
    return code_sha256(_reached_code(kind, also, entries, checkout()))


def libraries_of(kind: str, config: Any, *, all_of_kind: bool = False) -> dict[str, str]:
    """Returns name -> installed version of the libraries that decide the bytes of a step.

    Args:
      kind: name of the kind.
      config: config of the step, typed or as plain values.
      all_of_kind: whether to add those that decide the bytes of other steps of the kind only.
    """
    versions, unused_libraries = dict(_libraries(kind)), KINDS[kind].unused_libraries
    if unused_libraries and not all_of_kind:
        for name in unused_libraries(json.loads(settings_json(config))):
            versions.pop(name, None)
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
