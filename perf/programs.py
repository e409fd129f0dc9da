"""Programs that several measurements time, and their forms for chips that are not here."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from infra.chips.topology import Topology
from model import vlm
from model.chips.programs import LoweredProgram, mesh_of_one_chip, traced_for
from model.config import ModelConfig
from model.connector import budgets
from model.decode.generate import generate, prefill


def prefill_program(cfg: ModelConfig) -> Any:
    """Returns the jitted prefill, whose arguments are parameters, a prompt and slots."""

    @jax.jit
    def run(params, prompt, slots):
        return prefill(vlm.merge(vlm.structure(cfg), params), prompt, slots)

    return run


def exact_slots(cfg: ModelConfig, budget: int) -> vlm.Slots:
    """Returns the slots of a budget with none masked, as evaluation has them."""
    return vlm.Slots(budgets.exact_bucket(cfg, budget).size, budget)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptProgram:
    """What `perf.accelerator` times of prompts, on one chip: a prefill, or a prefill and tokens.

    Attributes:
      model: config of the model; all parameters have its dtype.
      budget: soft tokens per image.
      rows: number of prompts.
      num_images: images per prompt.
      text_len: length of the text [tokens].
      new_tokens: tokens that are decoded; 0 for a prefill alone.
    """

    model: ModelConfig
    budget: int
    rows: int
    num_images: int = 1
    text_len: int
    new_tokens: int = 0

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for one of the chips."""
        cfg, mesh = self.model, mesh_of_one_chip(topology)
        sharding = NamedSharding(mesh, P())

        def shape(dtype: Any, *sides: int) -> Any:
            return jax.ShapeDtypeStruct(sides, dtype, sharding=sharding)

        side = cfg.vision.image_px
        images = shape(np.uint8, self.rows, self.num_images, side, side, 3)
        text = shape(np.int32, self.rows, self.text_len)
        prompt = vlm.Prompt(images, text, text, text)
        params = jax.tree.map(lambda leaf: shape(cfg.dtype, *leaf.shape), vlm.abstract_params(cfg))
        slots = exact_slots(cfg, self.budget)
        with traced_for(mesh):
            if not self.new_tokens:
                lowered = prefill_program(cfg).lower(params, prompt, slots)
            else:
                structure, new = vlm.structure(cfg), self.new_tokens
                lowered = generate.lower(
                    structure, params, prompt, slots, max_new_tokens=new, stop=None
                )
        return LoweredProgram(lowered, topology.one_chip, max(1, self.new_tokens), {})
