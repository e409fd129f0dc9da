"""The losses of the single examples of one update of a training, computed on demand."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from typing import Any

from flows.lookup.target import find_training_target
from flows.steps.kinds.checkpoint import CHECKPOINT, FitSpec, stage_of, stage_paths
from flows.steps.registry import code_digest, typed_config, user_modules
from flows.steps.user_code import install_user_code
from infra.errors import ConfigError
from infra.progress import Progress
from infra.store.lease import LeaseHeldError
from infra.store.manifest import KEY
from infra.store.scratch import RECIPE, Scratch
from infra.store.store import Store
from model.files import METRICS
from model.seeds import Seeds
from model.watch.row_losses import RowLoss, losses_of_rows


def step_losses(store: Store, name: str, step: int) -> Iterator[Progress | RowLoss]:
    """Yields how far the computation is, and then the loss of each example of an update.

    Args:
      store: the store of the training.
      name: a training: key of its checkpoint, finished or not, or name of its step.
      step: number of the update, from 1.

    Raises:
      ConfigError: if there is no such training or update.
    """
    #   finished               recipe of the manifest           from the start of the training
    #   stopped or failed      recipe beside its progress       from its last point before `step`
    #   under way              the same                         from the start: the points change
    plain, recorded = _training_recipe(store, name)
    config = plain["config"]
    if user_modules(CHECKPOINT.name, config):
        install_user_code(store.open_source(plain["source"]))
    spec: FitSpec = typed_config(CHECKPOINT.name, config).as_recorded(recorded)
    if plain["code"] != code_digest(CHECKPOINT.name, spec):
        note = "the code has changed since it was trained: losses may be others"
        yield Progress(done=0, total=0, note=note, happened=True)
    with contextlib.ExitStack() as stack:
        points = stack.enter_context(tempfile.TemporaryDirectory(prefix="parcel-"))
        if store.find(plain["key"]) is None:
            with contextlib.suppress(LeaseHeldError):
                scratch = stack.enter_context(store.lock(plain["key"], wait=False))
                points = f"{store.uri}/{scratch.shared}/points"
        try:
            places = {role: store.get(entry["key"]).uri for role, entry in plain["inputs"].items()}
            stage = stage_of(spec, plain["seed"] or 0, places, points=points)
            yield from losses_of_rows(
                spec.model,
                spec.train,
                stage_paths(stage),
                Seeds.of(stage.seed),
                step,
                deterministic=spec.deterministic,
            )
        except (KeyError, ValueError) as error:  # An input is gone, or there is no such update.
            raise ConfigError(error.args[0]) from error


def _training_recipe(store: Store, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the recipe of a training as plain values, with its key, and what it recorded."""
    if KEY.fullmatch(name) and store.find(name) is None:
        progress = Scratch(store.files, name, "reader")
        with contextlib.suppress(FileNotFoundError):
            rows = progress.read(METRICS).splitlines() or [b"{}"]
            return {**json.loads(progress.read(RECIPE)), "key": name}, json.loads(rows[0])
    manifest = find_training_target(store, name).artifacts[0].manifest
    if manifest.kind != CHECKPOINT.name:
        raise ConfigError(f"NAME must be a training, got {name!r}, which is a {manifest.kind}.")
    return json.loads(manifest.to_json()), dict(manifest.counts)
