"""The memory and the time of decoding, by formula: what it holds, reads and launches."""

import jax.numpy as jnp

from infra.chips.topology import Chip
from model.analysis.flops import kv_bytes_per_token
from model.config import ModelConfig
from model.sharding import is_vector
from model.train.step import param_shapes

LAYER_LAUNCH_S = 185e-6
"""Time in which a GPU launches the kernels of one layer, one after another [s].

Fitted to the 3B model on an H200 with 8 rows and 16, 64 and 256 soft tokens (`docs/measured.md`):
reading takes 1.1 of the 6.2, 6.3 and 5.3 ms that a token took, and a 26th of the rest is this, on
average. It is some dozens of kernels of a few microseconds each. `docs/howto/plan.md` says how far
the formula is from the measurements with 32 rows, which it was not fitted to.
"""


def param_bytes(model: ModelConfig) -> float:
    """Returns the size of the parameters that a chip holds while it decodes [bytes].

    Each has the type that `model.decode.rows.decoding_params` gives it.
    """
    return _part_bytes(model, "")


def token_seconds(model: ModelConfig, chip: Chip, *, rows: int, length: int) -> float:
    """Returns the time in which a chip adds one token to every row of a batch [s].

    Args:
      model: config of the model.
      chip: the chip.
      rows: rows of the batch.
      length: places in the cache of a row: soft tokens, text, and the answer's, of each beam.
    """
    # A token reads the decoder once, and every row's cache. Tower and connector run once an answer.
    read = _part_bytes(model, "text/")
    if "text/head" in param_shapes(model):  # Of a table that only embeds, each row reads one line.
        read -= _part_bytes(model, "text/embedding")
    read += rows * length * kv_bytes_per_token(model, scalar_bytes=_scalar_bytes(model))
    # A GPU launches a layer's kernels one after another, and each waits for the one before. For few
    # rows that takes longer than their work. A TPU runs the whole token as one program.
    launches = LAYER_LAUNCH_S * model.text.depth if chip.is_gpu else 0.0
    return read / chip.memory_bandwidth + launches


def _part_bytes(model: ModelConfig, prefix: str) -> float:
    """Returns the size of the parameters below a path, as decoding holds them [bytes]."""
    total = 0
    for path, leaf in param_shapes(model).items():
        if path.startswith(prefix):
            keeps = is_vector(path) or path.startswith("connector/")
            total += leaf.size * (leaf.dtype.itemsize if keeps else _scalar_bytes(model))
    return float(total)


def _scalar_bytes(model: ModelConfig) -> int:
    return jnp.dtype(model.dtype).itemsize
