"""Decoding on all devices of a process: each has the parameters, and its own rows of a batch.

A device decodes its rows to their end without a word to the others: no sum, and no wait for a
token. What it computes for a batch is the same program as on a machine with one device.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int32

from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.config import ModelConfig
from model.decode.config import Decoding
from model.decode.decoding import decode_tokens, draw_key
from model.sharding import param_dtype

_ROWS = "rows"


def local_mesh() -> Mesh:
    """Returns the devices of this process as one axis, along which rows are divided."""
    return Mesh(np.array(jax.local_devices()), (_ROWS,))


def decoding_params(
    model: ModelConfig, params: vlm.Params, mesh: Mesh | None = None
) -> dict[str, Any]:
    """Returns parameters as decoding reads them: matrices in the dtype of the activations.

    The decoder reads every matrix at each token, and would convert it each time.
    `sharding.param_dtype` says what stays in float32.

    Args:
      model: config of the model.
      params: nested dict of arrays, on the host or on a device.
      mesh: devices that each get a copy; None leaves a copy on the default device.
    """

    def placed(path: str, leaf: Any) -> jax.Array:
        array = jax.numpy.asarray(leaf)
        array = array.astype(param_dtype(path, array, model.dtype))
        return array if mesh is None else jax.device_put(array, NamedSharding(mesh, P()))

    # One at a time: beside the copy that stays, there is only one array in float32.
    return unflatten_params({path: placed(path, leaf) for path, leaf in flatten_params(params)})


def encode_rows(
    structure: vlm.Structure, params: vlm.Params, images: vlm.Images, mesh: Mesh
) -> vlm.EncodedImages:
    """Returns images encoded by the vision tower, each device's rows by that device."""
    if mesh.size == 1:
        return vlm.encode_images(structure, params, images)
    images = jax.device_put(images, NamedSharding(mesh, P(_ROWS)))
    return _encode_rows_on_mesh(structure, params, images, mesh=mesh)


def decode_rows(
    structure: vlm.Structure,
    params: vlm.Params,
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    *,
    mesh: Mesh,
    max_new_tokens: int,
    stop: int,
    decoding: Decoding,
    numbers: Sequence[int],
) -> Int32[Array, "B M"]:
    """Returns the tokens of the answer to each prompt, as `decode_tokens` of each device's rows.

    Args:
      structure: see `decode_tokens`.
      params: see `decode_tokens`; a copy on each device.
      prompt: rows of all devices, those of the first device first.
      slots: see `decode_tokens`.
      mesh: the devices.
      max_new_tokens: see `decode_tokens`.
      stop: see `decode_tokens`.
      decoding: see `decode_tokens`.
      numbers: number of each device's batch.
    """
    static = {"max_new_tokens": max_new_tokens, "stop": stop, "decoding": decoding}
    # Draws, if there are any, have a key for each batch, so they are those of one device.
    keys = [draw_key(decoding, number) for number in numbers]
    if mesh.size == 1:
        return decode_tokens(structure, params, prompt, slots, keys[0], **static)
    drawn = [jax.random.key_data(key) for key in keys if key is not None]
    data = jax.numpy.stack(drawn) if drawn else None
    return _decode_rows_on_mesh(structure, params, prompt, slots, data, mesh=mesh, **static)


@functools.partial(jax.jit, static_argnames=("structure", "mesh"))
def _encode_rows_on_mesh(
    structure: vlm.Structure, params: vlm.Params, images: vlm.Images, *, mesh: Mesh
) -> vlm.EncodedImages:
    return jax.shard_map(
        functools.partial(vlm.encode_images, structure),
        mesh=mesh,
        in_specs=(P(), P(_ROWS)),
        out_specs=P(_ROWS),
        check_vma=False,
    )(params, images)


@functools.partial(
    jax.jit, static_argnames=("structure", "mesh", "max_new_tokens", "stop", "decoding")
)
def _decode_rows_on_mesh(
    structure: vlm.Structure,
    params: vlm.Params,
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    key_data: Array | None,
    *,
    mesh: Mesh,
    max_new_tokens: int,
    stop: int,
    decoding: Decoding,
) -> Int32[Array, "B M"]:
    def decode(
        params: vlm.Params, prompt: vlm.Prompt, slots: vlm.Slots, key_data: Array | None
    ) -> Array:
        return decode_tokens(
            structure,
            params,
            prompt,
            slots,
            None if key_data is None else jax.random.wrap_key_data(key_data[0]),
            max_new_tokens=max_new_tokens,
            stop=stop,
            decoding=decoding,
        )

    return jax.shard_map(
        decode,
        mesh=mesh,
        in_specs=(P(), P(_ROWS), P(), P(_ROWS)),
        out_specs=P(_ROWS),
        check_vma=False,
    )(params, prompt, slots, key_data)
