"""Programs that several benchmarks time."""

from typing import Any

import jax

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from model.decode.generate import prefill


def prefill_program(cfg: ModelConfig, budget: int) -> Any:
    """Returns the jitted prefill at a budget; its arguments: parameters, prompts, the budget."""
    bucket = budgets.exact_bucket(cfg, budget).size

    @jax.jit
    def run(params, images, text, mask_ar, mask_input, budget):
        model = vlm.merge(vlm.structure(cfg), params)
        return prefill(model, images, text, mask_ar, mask_input, bucket, budget)

    return run
