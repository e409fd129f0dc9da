"""Losses on records that training never sees, by task and budget, while a stage runs."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Loader
from model.data.parts import open_parts
from model.masks.codec import MaskCodec
from model.seeds import Seeds
from model.sharding import partition_specs, shard_batch
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.lora_config import LoraConfig
from model.train.optimizer import Flat
from model.train.step import loss_of_rows
from model.watch.config import WatchConfig
from pipelines.records.shapes import part_without_images

_SEEDS = Seeds.of(0)
"""Seeds that choose the examples: the same ones at every step, in every stage and every study."""


class HeldOut:
    """Held-out losses of a stage's parameters, by task and budget.

    The loss is the stage's own, with the same texts and shapes, but without dropout and label
    smoothing.

    Args:
      data: datasets, as in `StagePaths`; each of their parts is a task.
      config: number of examples, and the budgets.
      model: config of the model that the stage trains.
      train: training recipe of the stage; evaluation batches are at most as large as its batches.
      mesh: mesh that holds the stage's parameters.
      tokenizer: tokenizer of the texts.
      mask_codec: codec of the masks; None if there are no masks.

    Raises:
      ValueError: if the connector does not serve a budget.
    """

    def __init__(
        self,
        data: Sequence[str],
        config: WatchConfig,
        *,
        model: ModelConfig,
        train: TrainConfig,
        mesh: Mesh,
        tokenizer: Tokenizer,
        mask_codec: MaskCodec | None,
    ) -> None:
        for budget in config.budgets:
            budgets.check_budget(model, budget)
        self._config, self._model, self._mesh = config, model, mesh
        # Examples rounded up to whole rows for every device, but not beyond the batch that the
        # stage is known to have memory for.
        num_rows = -(-config.examples // mesh.size) * mesh.size
        self._size = min(train.batch_size, num_rows)
        # A loader for each task: its losses are apart, and each has the same batches at every look.
        self._loaders = {
            task: Loader(
                data,
                train.batches_of(task, self._size),
                tokenizer=tokenizer,
                mask_codec=mask_codec,
                image_px=model.vision.image_px,
                seeds=_SEEDS,
                prompt=model.prompt,
                host=jax.process_index(),
                num_hosts=jax.process_count(),
            )
            for task in sorted({part_without_images(part) for part in open_parts(data)})
        }
        self._program = held_out_program(model, train.lora, mesh)

    def observe(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields the mean loss of each task at each budget; see `train.loop.ParamsObserver`."""
        for task, loader in self._loaders.items():
            # Whole batches; no record comes twice if there are enough for one batch.
            num = max(1, min(self._config.examples, len(loader.examples)) // self._size)
            sums = dict.fromkeys(self._config.budgets, 0.0)
            for number in range(num):
                batch = shard_batch(loader.batch(number), self._mesh)
                for budget in sums:
                    bucket = budgets.bucket_of(self._model, budget).size
                    slots = vlm.Slots(bucket, budget)
                    sums[budget] += float(self._program(params, batch, slots))
            for budget, total in sums.items():
                loss, examples = round(total / num, 5), num * self._size
                yield {"task": task, "budget": budget, "loss": loss, "examples": examples}

    def close(self) -> None:
        """Stops the loaders' threads."""
        for loader in self._loaders.values():
            loader.close()


def held_out_program(model: ModelConfig, lora: LoraConfig | None, mesh: Mesh) -> Any:
    """Returns the jitted loss, whose arguments are parameters by path, a batch and slots.

    Adapters stay beside their matrices, as in training: whole weights would be a second copy.
    """
    return jax.jit(functools.partial(_held_out_loss, model=model, lora=lora, mesh=mesh))


def _held_out_loss(
    params: Flat,
    batch: Mapping[str, jax.Array],
    slots: vlm.Slots,
    *,
    model: ModelConfig,
    lora: LoraConfig | None,
    mesh: Mesh,
) -> jax.Array:
    loss = functools.partial(loss_of_rows, model=model, lora=lora)
    if mesh.size > 1:
        parts = (partition_specs(params, mesh), P(mesh.axis_names), P())
        loss = jax.shard_map(loss, mesh=mesh, in_specs=parts, out_specs=P())
    return loss(params, batch, slots)
