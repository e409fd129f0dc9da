"""What the order of a training's examples depends on, as its manifest has it."""

import dataclasses

from infra.source_code import Tree, changed_definitions, checkout
from infra.store.manifest import Manifest
from infra.store.store import Store
from model.data.config import BatchConfig

_LOADER = ("model.data.loader", "model.data.mixing", "model.data.order", "model.data.parts")
"""Modules that decide which record a training step sees."""


def data_of_training(training: Manifest) -> tuple[str, ...]:
    """Returns the keys of the datasets that a training reads, in the loader's order."""
    # In the order of their roles: the draws depend on it.
    return tuple(e.key for role, e in sorted(training.inputs.items()) if role.startswith("data/"))


def batch_config(training: Manifest) -> BatchConfig:
    """Returns the loader's config of a training."""
    train = training.config["train"]
    settings = {f.name: train[f.name] for f in dataclasses.fields(BatchConfig) if f.name in train}
    settings["mixture"] = tuple((part, weight) for part, weight in train.get("mixture", ()))
    return BatchConfig(**settings)


def changed_since(store: Store, source: str) -> tuple[str, ...]:
    """Returns the functions of the loader that have changed since a kept source tree."""
    if not source:
        return ()
    return tuple(changed_definitions(Tree(store.open_source(source)), checkout(), _LOADER))
