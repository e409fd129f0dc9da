"""Finds trainings for their pages: finished ones in the store, others by their progress."""

import functools
import json
from collections.abc import Mapping
from typing import NamedTuple

from flows.pages.curves import Log, json_lines, logged_rows
from flows.steps.registry import KINDS
from infra.store.manifest import kind_of_key
from infra.store.scratch import RECIPE, Scratch
from infra.store.store import Store


class Training(NamedTuple):
    """A training, whatever became of it.

    Attributes:
      key: key of its checkpoint.
      name: name of its step.
      is_finished: whether there is a checkpoint.
      inputs: role -> key of an artifact that it reads.
      log: its logs.
    """

    key: str
    name: str
    is_finished: bool
    inputs: Mapping[str, str]
    log: Log


def find_training(store: Store, key: str) -> Training | None:
    """Returns a training; None if the store knows none of that key.

    One without a checkpoint is under way or failed, and known by its progress: on this machine, or
    as it was when it was last saved.

    Raises:
      ValueError: if the key has not the form of one.
    """
    kind = KINDS.get(kind_of_key(key))
    if kind is None or not kind.draws_batches:
        return None
    if (artifact := store.find(key) or store.find_pruned(key)) is not None:
        inputs = {role: entry.key for role, entry in artifact.manifest.inputs.items()}
        log = functools.partial(logged_rows, artifact)
        return Training(key, artifact.manifest.name, True, inputs, log)
    progress = Scratch(store.files, key, "reader")
    try:
        recipe = json.loads(progress.read(RECIPE))
    except FileNotFoundError:  # It never began, or ends just now.
        return None

    def read_log(name: str) -> list[Mapping[str, object]]:
        try:
            return [*json_lines(progress.read(name))]
        except FileNotFoundError:
            return []

    inputs = {role: entry["key"] for role, entry in recipe["inputs"].items()}
    return Training(key, recipe["name"], False, inputs, read_log)
