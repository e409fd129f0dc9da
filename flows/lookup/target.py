"""Looks up artifacts, tables and cells by the names that people type.

demo                            the table of the newest run of that name
demo/chartqa/parcel/64          a cell of it: the scores of every seed
demo/chartqa/parcel/64/56703    those of one seed
results-3f9a                    an artifact, by the beginning of its key
"""

import dataclasses

from flows.lookup.runs import results_artifact
from flows.report.cells import CellKey
from flows.steps.registry import KINDS, kind_of
from infra.errors import ConfigError, did_you_mean
from infra.store.store import Artifact, Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupTarget:
    """A name that was given, and the artifacts that it stands for.

    Attributes:
      name: the name as it was given.
      artifacts: the artifacts; for a cell, the scores of each seed.
      seeds: transfer seeds of a cell's artifacts, in the same order; empty if it is no cell.
    """

    name: str
    artifacts: tuple[Artifact, ...]
    seeds: tuple[int, ...] = ()


def find_target(store: Store, name: str) -> LookupTarget:
    """Returns the artifacts that a name stands for.

    Raises:
      ConfigError: if nothing has that name; the message lists the names that exist.
    """
    run, _, cell = name.partition("/")
    if cell:
        return _cell_target(store, results_artifact(store, run), cell, name)
    try:
        return LookupTarget(name=name, artifacts=(results_artifact(store, name),))
    except ConfigError as no_run:
        try:
            return LookupTarget(name=name, artifacts=(store.resolve(name),))
        except KeyError as no_artifact:
            raise ConfigError(f"{no_run} As an {no_artifact.args[0]}") from None


def find_training_target(store: Store, name: str) -> LookupTarget:
    """Finds a lineage target by name, or the newest checkpoint of a training step of that name.

    Raises:
      ConfigError: if nothing has that name.
    """
    try:
        return find_target(store, name)
    except ConfigError as unknown:
        kinds = [kind.name for kind in KINDS.values() if kind.draws_batches]
        view = store.snapshot()
        of_step = [a for kind in kinds for a in view.artifacts(kind) if a.manifest.name == name]
        if not of_step:
            raise ConfigError(f"{unknown} No training step has that name, either.") from None
    newest = max(of_step, key=lambda artifact: artifact.manifest.started)
    return LookupTarget(name=name, artifacts=(newest,))


def checkpoint_of_target(store: Store, target: LookupTarget) -> str:
    """Returns the key of the one checkpoint that a cell, its answers or a checkpoint stands for.

    Raises:
      ConfigError: if it stands for none, or for one of each seed; the message then names them.
    """
    # A cell stands for scores, one per seed: each names its predictions, and these a checkpoint.
    name = target.name
    keys = dict.fromkeys(_checkpoint_of(store, artifact, name) for artifact in target.artifacts)
    if len(keys) > 1:
        raise ConfigError(
            f"one checkpoint is wanted, got {name} with one for each of {len(keys)} seeds; name "
            f"one: {', '.join(f'{name}/{seed}' for seed in target.seeds)}."
        )
    return next(iter(keys))


def _checkpoint_of(store: Store, artifact: Artifact, name: str) -> str:
    manifest = artifact.manifest
    if kind_of(manifest).holds == "checkpoint":
        return artifact.key
    if kind_of(manifest).holds == "scores":
        manifest = store.get_cached(manifest.inputs["predictions"].key).manifest
    if kind_of(manifest).holds == "answers":
        return manifest.inputs["checkpoint"].key
    raise ConfigError(
        f"CELL|CHECKPOINT must be a cell of a table or a checkpoint, got {name}: {manifest.kind}."
    )


def _cell_target(store: Store, results: Artifact, cell: str, name: str) -> LookupTarget:
    inputs = results.manifest.inputs
    #   role of an input                        named by
    #   chartqa:test_human/parcel/64/48213      …/64: all seeds of the cell, …/64/48213: this one
    #   chance/chartqa:test_human               nothing: it is no cell
    keys_by_cell = {
        key: inputs[role].key for role in sorted(inputs) if (key := CellKey.of_role(role))
    }
    wanted_keys = {
        cell_key: key
        for cell_key, key in keys_by_cell.items()
        if cell in (cell_key.cell, str(cell_key))
    }
    if not wanted_keys:
        cells = sorted({key.cell for key in keys_by_cell})
        if not cells:
            raise ConfigError(
                f"the table of {name.partition('/')[0]} has no cell yet, got {cell!r}."
            )
        known, _, seed = cell.rpartition("/")
        if seeds := sorted(key.seed for key in keys_by_cell if key.cell == known):
            raise ConfigError(
                f"the cell {known} has the seeds {', '.join(map(str, seeds))}, got {seed!r}; "
                f"without one all of them are meant."
            )
        raise ConfigError(
            f"a cell must be benchmark/method/budget of the table, or one seed of it, got "
            f"{cell!r}{did_you_mean(cell, cells, 0.8) or '.'} Accepted: {', '.join(cells)}."
        )
    return LookupTarget(
        name=name,
        artifacts=tuple(map(store.get_cached, wanted_keys.values())),
        seeds=tuple(key.seed for key in wanted_keys),
    )
