"""Peak speed of devices."""

from collections.abc import Sequence
from typing import Any

from infra.chips.topology import PEAK_FLOPS

_CHIPS = (
    ("H200", "h200"),
    ("H100", "h100"),
    ("A100", "a100"),
    ("A10 ", "a10"),  # The space keeps A10G out.
    ("L4 ", "l4"),  # And L40.
    ("RTX 4090", "rtx4090"),
    ("v6", "v6e"),
    ("v5p", "v5p"),
    ("v5 lite", "v5e"),
    ("v5e", "v5e"),
    ("v5", "v5p"),  # A v5p calls itself "TPU v5".
    ("v4", "v4"),
)
"""Part of the name that JAX gives a device, and the chip; the first match counts."""


def peak_tflops(devices: Sequence[Any]) -> float | None:
    """Returns the bfloat16 peak of devices of one kind together [TFLOP/s]; None if unknown."""
    kind = devices[0].device_kind
    chip = next((chip for name, chip in _CHIPS if name in f"{kind} "), None)
    return None if chip is None else PEAK_FLOPS[chip] / 1e12 * len(devices)
