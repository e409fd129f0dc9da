"""The programs of a stage, whose updates run on all devices or shard by shard."""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from model.config import ModelConfig
from model.train.config import ProgramConfig, TrainConfig
from model.train.exact import ExactPrograms
from model.train.step import StepPrograms, mesh_of


def step_programs(
    model: ModelConfig,
    train: TrainConfig,
    num_images: Sequence[int] = (1,),
    *,
    deterministic: bool = True,
) -> StepPrograms:
    """Returns the programs of a stage; stages that differ only in rates and steps share them."""
    devices = tuple(jax.devices())
    return _cached_programs(model, train.program, devices, tuple(num_images), deterministic)


@functools.lru_cache(maxsize=4)
def _cached_programs(
    model: ModelConfig,
    train: ProgramConfig,
    devices: Any,
    num_images: tuple[int, ...],
    deterministic: bool,
) -> StepPrograms:
    mesh = mesh_of(model, train, devices)
    if train.exact_shards is None:
        return StepPrograms(model, train, mesh, num_images, deterministic=deterministic)
    return ExactPrograms(model, train, mesh, num_images, deterministic=deterministic)
