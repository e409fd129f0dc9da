"""Formulas for the memory of a training step, for use where no compiler is at hand."""

import dataclasses
import functools
import math

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh

from model.config import ModelConfig
from model.sharding import AXES, param_dtype, splits_weights
from model.train.config import TrainConfig
from model.train.lora import adapter_shapes
from model.train.optimizer import split_frozen
from model.train.step import declared_buckets, param_shapes

_FLOAT32, _BFLOAT16 = 4, 2
"""Bytes of a number: float32 for trained parameters, moments and gradients, bfloat16 for
activations and gathered weights."""


FORMULA_SHARE = 0.85
"""Share of a device's memory that the formula may fill where it chooses a microbatch; the rest is
for what it does not count."""


def step_bytes(
    model: ModelConfig, train: TrainConfig, tokens: int, *, num_images: int = 1, devices: int
) -> float:
    """Returns the most memory that one device holds during an update [bytes].

    Parameters, two moments and gradients are split over the devices that share a copy of the
    weights. Each device also holds the whole weights of two layers, the whole vocabulary table, and
    the table's gradient in float32, if it is trained; likewise the output matrix, where it is not
    the table. Activations counted are those kept for the backward pass (`model.remat`), those that
    one layer's backward pass recomputes, and a chunk of logits. Not counted are a compiler's other
    temporaries and memory that is unused between allocations.

    Args:
      model: config of the model that is trained.
      train: the training recipe.
      tokens: slots for soft tokens, per image.
      num_images: images per example.
      devices: number of devices that share the batch.
    """
    trained, frozen = _split_sizes(model, train)
    parts = _num_parts(model, math.gcd(train.num_replicas, devices), devices)
    # Four float32 numbers per trained parameter: itself, its gradient and two moments; and a sum of
    # gradients, where a batch is computed in parts.
    rows_of_part = train.rows_of_part(devices)
    passes = train.num_passes(rows_of_part)
    numbers = 4 if passes == 1 else 5
    if train.exact_shards is not None:
        # Sums of earlier shards, one for each level of the tree below a device.
        parts = 1
        numbers += max(1, train.exact_shards // devices).bit_length() - 1
    state = numbers * _FLOAT32 * sum(trained.values())
    shapes = param_shapes(model)
    state += sum(
        size * param_dtype(path, shapes[path], model.dtype).itemsize
        for path, size in frozen.items()
    )
    state /= parts
    text, vision = model.text, model.vision
    blocks = {"text/blocks/": text.depth, "vision/blocks/": vision.depth}
    # The mean size of a block: a tower holds each parameter of all its blocks in one array.
    layers = [
        sum(
            size
            for path, size in _parameter_element_counts(model).items()
            if path.startswith(prefix)
        )
        / depth
        for prefix, depth in blocks.items()
    ]
    gathered_weights = _BFLOAT16 * 2 * max(layers)
    for table in ("text/embedding", "text/head"):
        gathered_weights += _BFLOAT16 * _parameter_element_counts(model).get(table, 0)
        gathered_weights += _FLOAT32 * trained.get(table, 0)
    rows = rows_of_part / passes
    tower_tokens = vision.num_tokens * num_images
    sequence_len = tokens * num_images + train.text_len
    # The backward pass ends before a frozen tower, so nothing of it is kept.
    saved_bytes = _text_bytes(model, sequence_len) * text.depth
    if any(path.startswith("vision/") for path in trained):
        saved_bytes += _vision_bytes(model, tower_tokens) * vision.depth
    # The towers' backward passes come one after the other, so only the larger of both counts.
    recomputed_bytes = max(
        _recomputed_bytes(
            vision.width, vision.mlp_dim, vision.num_heads, tower_tokens, vision.num_tokens
        ),
        _recomputed_bytes(text.width, 2 * text.mlp_dim, text.num_heads, sequence_len, sequence_len),
    )
    # Logits in float32, and their gradient in half of that.
    logits = (_FLOAT32 + _BFLOAT16) * min(model.loss_chunk, train.text_len) * text.vocab_size
    return state + gathered_weights + rows * (saved_bytes + recomputed_bytes + logits)


def fitting_microbatch(
    model: ModelConfig,
    train: TrainConfig,
    memory_bytes: float,
    *,
    num_images: int = 1,
    devices: int,
) -> int | None:
    """Returns the most rows that a device can compute at a time; None if not even one fits.

    Rows are computed in equal parts (`TrainConfig.num_passes`), and the largest program counts.

    Args:
      model: config of the model that is trained.
      train: the training recipe; its `microbatch` is not read.
      memory_bytes: memory of a device [bytes].
      num_images: images per example.
      devices: number of devices that share the batch.
    """
    rows, tokens = train.rows_of_part(devices), max(declared_buckets(model, train))
    for size in (rows // parts for parts in range(1, rows + 1) if rows % parts == 0):
        limited = dataclasses.replace(train, microbatch=size)
        needed = step_bytes(model, limited, tokens, num_images=num_images, devices=devices)
        if needed <= FORMULA_SHARE * memory_bytes:
            return size
    return None


def with_microbatch(
    model: ModelConfig, train: TrainConfig, num_images: int, *, beside: float = 0.0
) -> TrainConfig:
    """Returns the recipe with a number in place of `microbatch: auto`, for this process's devices.

    All processes that train together get the same number. Devices that do not tell their memory,
    such as a CPU, compute all rows at once.

    Args:
      model: config of the model that is trained.
      train: the training recipe.
      num_images: most images per example.
      beside: memory of a device that something else takes [bytes].
    """
    if train.microbatch != "auto":
        return train
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [float(each.get("bytes_limit", math.inf)) for each in stats]
    memory_bytes = min(limits)
    if jax.process_count() > 1:
        memory_bytes = float(multihost_utils.process_allgather(np.float32(memory_bytes)).min())
    rows = fitting_microbatch(
        model, train, memory_bytes - beside, num_images=num_images, devices=jax.device_count()
    )
    # Where the formula lets nothing fit, one row at a time is tried: it is only an estimate.
    return dataclasses.replace(train, microbatch=rows or 1)


def gathered_bytes(model: ModelConfig) -> float:
    """Returns the traffic over a device's links in an update with split weights [bytes].

    The weights are gathered twice, forward and backward, and their gradients scattered in float32.
    """
    return float((2 * _BFLOAT16 + _FLOAT32) * num_params(model))


def num_params(model: ModelConfig) -> int:
    """Returns the number of a model's parameters."""
    return sum(_parameter_element_counts(model).values())


def trained_parts(model: ModelConfig, train: TrainConfig) -> set[str]:
    """Returns the parts of a model (see `flops.PARTS`) that have parameters which are trained."""
    return {path.partition("/")[0] for path in _split_sizes(model, train)[0]}


def parameter_paths(model: ModelConfig, train: TrainConfig) -> tuple[str, ...]:
    """Returns the paths of a stage's parameters and adapters."""
    trained, frozen = _split_sizes(model, train)
    return (*trained, *frozen)


@functools.cache
def _num_parts(model: ModelConfig, least_replicas: int, devices: int) -> int:
    """Returns over how many devices a copy of the weights is split; see `sharding.mesh_for`."""
    for copies in range(least_replicas, devices + 1, least_replicas):
        if devices % copies == 0:
            mesh = AbstractMesh((copies, devices // copies), AXES)
            if splits_weights(param_shapes(model), mesh):
                return devices // copies
    return devices // least_replicas


def _split_sizes(model: ModelConfig, train: TrainConfig) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the numbers of elements of trained parameters and adapters, and of frozen ones."""
    shapes = param_shapes(model)
    sizes = {path: leaf.size for path, leaf in shapes.items()}
    if train.lora is not None:
        adapters = adapter_shapes(train.lora, shapes)
        sizes |= {path: math.prod(shape) for path, shape in adapters.items()}
    return split_frozen(sizes, train)  # type: ignore[arg-type]


def _parameter_element_counts(model: ModelConfig) -> dict[str, int]:
    """Returns the number of elements of each parameter, by path."""
    return {path: leaf.size for path, leaf in param_shapes(model).items()}


def _vision_bytes(model: ModelConfig, num_tokens: int) -> float:
    """Returns the bytes that one tower block keeps for the backward pass, for one example."""
    width, mlp = model.vision.width, model.vision.mlp_dim
    saved_channels = {"full": width, "minimal": 2 * width, "none": 8 * width + 2 * mlp}[model.remat]
    return _BFLOAT16 * num_tokens * saved_channels


def _text_bytes(model: ModelConfig, sequence_len: int) -> float:
    """Returns the bytes that one decoder block keeps for the backward pass, for one example."""
    text = model.text
    heads = (text.num_heads + 2 * text.num_kv_heads) * text.head_dim
    products = heads + text.num_heads * text.head_dim + 2 * text.mlp_dim + 2 * text.width
    saved_channels = {
        "full": text.width,
        "minimal": text.width + products,
        "none": 6 * text.width + products + 2 * text.mlp_dim,
    }[model.remat]
    return _BFLOAT16 * sequence_len * saved_channels


def _recomputed_bytes(
    width: int, hidden: int, num_heads: int, query_len: int, key_len: int
) -> float:
    """Returns the bytes that one block's backward pass recomputes and holds, for one example."""
    scores = _FLOAT32 * num_heads * query_len * key_len
    return _BFLOAT16 * query_len * (8 * width + 2 * hidden) + scores
