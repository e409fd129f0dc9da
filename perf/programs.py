"""Programs that several measurements time."""

from typing import Any

import jax

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from model.decode.generate import prefill


def prefill_program(cfg: ModelConfig) -> Any:
    """Returns the jitted prefill, whose arguments are parameters, a prompt and slots."""

    @jax.jit
    def run(params, prompt, slots):
        return prefill(vlm.merge(vlm.structure(cfg), params), prompt, slots)

    return run


def exact_slots(cfg: ModelConfig, budget: int) -> vlm.Slots:
    """Returns the slots of a budget with none masked, as evaluation has them."""
    return vlm.Slots(budgets.exact_bucket(cfg, budget).size, budget)
