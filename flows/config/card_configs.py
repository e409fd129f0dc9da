"""The shipped studies of PaliGemma 2 3B for one GPU, by the memory that they need."""

from infra.chips.topology import CHIPS

_SMALLEST_CARDS = {"configs/pali3b_1gpu.yaml": "h100", "configs/pali3b_24gb.yaml": "l4"}
"""Study -> the GPU that it is planned for, which has the least memory of those that it is for;
from the most memory to the least."""


def config_for_card(memory_bytes: float) -> str | None:
    """Returns the shipped study for one GPU with so much memory; None where none fits."""
    fitting = (
        config for config, kind in _SMALLEST_CARDS.items() if CHIPS[kind].hbm_bytes <= memory_bytes
    )
    return next(fitting, None)
