"""Gathers the weights of a stage on one device, to decode with them."""

import jax

from model.sharding import on_host
from model.train.lora import whole_weights
from model.train.lora_config import LoraConfig
from model.train.optimizer import Flat


def gather_whole_weights(lora: LoraConfig | None, trained: Flat, frozen: Flat) -> Flat | None:
    """Returns whole weights by path on the first device; None in all processes but the first.

    Args:
      lora: settings of the adapters among the trained weights; None if there are none.
      trained: trained weights and adapters.
      frozen: the other weights.
    """
    is_first, device, whole = jax.process_index() == 0, jax.local_devices()[0], {}
    for path, leaf in whole_weights(lora, trained, frozen):
        # Gathered one at a time, to save memory; all processes must call `on_host` together.
        array = leaf if leaf.is_fully_addressable else on_host(leaf)
        if is_first:
            whole[path] = jax.device_put(array, device)
    return whole if is_first else None
