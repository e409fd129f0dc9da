"""The parameters a stage starts from: fresh ones, or a checkpoint's."""

import functools
from typing import Any

import jax

from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.folder import load_params, params_of
from model.checkpoint.params_files import StoredArray
from model.config import ModelConfig
from model.train.resolution import fit_resolution

_FRESH = "connector/"
"""Prefix of the parameters that a checkpoint to start from may lack."""


def starting_params(model: ModelConfig, init: str | None, seed: int) -> dict[str, Any]:
    """Returns fresh parameters, or a checkpoint's with a fresh connector where it has none.

    A checkpoint of another resolution is fitted to the model's (see `resolution`). Where several
    processes train, arrays of a checkpoint are `StoredArray`s: each process reads only the parts
    for its own devices.

    Raises:
      ValueError: if the checkpoint's parameters do not fit the model, with their names.
    """
    if init is None:
        return _fresh_params(model, seed)

    @functools.cache
    def fresh() -> dict[str, Any]:
        return dict(flatten_params(_fresh_params(model, seed)))

    # Shapes alone: fresh values are drawn only if the checkpoint lacks some.
    abstract = dict(flatten_params(vlm.abstract_params(model)))
    loaded = fit_resolution(_load_initial_params(init), abstract, fresh)
    # A connector is all the checkpoint's or all fresh, never a mixture of two methods.
    has_connector = any(p.startswith(_FRESH) for p in loaded)
    optional = () if has_connector else _FRESH
    missing = [p for p in abstract if p not in loaded and not p.startswith(optional)]
    extra = [p for p in loaded if p not in abstract]
    shapes = [
        f"{p}: {loaded[p].shape} for {abstract[p].shape}"
        for p in loaded
        if p in abstract and loaded[p].shape != abstract[p].shape
    ]
    if missing or extra or shapes:
        raise ValueError(
            f"init does not fit the model: missing {missing or 'none'}, unknown {extra or 'none'},"
            f" of another shape {shapes or 'none'}. Start from a checkpoint with the connector of "
            f"this model ({model.connector.kind}) or with none, and of at most its resolution."
        )
    # Complete: nothing fresh is drawn.
    if loaded.keys() == abstract.keys():
        return unflatten_params(loaded)
    return unflatten_params({path: loaded.get(path, value) for path, value in fresh().items()})


def _load_initial_params(init: str) -> dict[str, Any]:
    """Returns a checkpoint's parameters by path."""
    if jax.process_count() == 1:
        return dict(flatten_params(load_params(init)))
    reader = params_of(init)
    return {path: StoredArray(reader, path) for path in reader.arrays}


def _fresh_params(model: ModelConfig, seed: int) -> dict[str, Any]:
    """Returns random initial parameters; with several processes, in each host's memory."""
    if jax.process_count() == 1:
        return vlm.init_params(model, seed)
    # A model that needs several hosts may not fit on a single device.
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return vlm.init_params(model, seed)
