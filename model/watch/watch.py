"""Evaluation of a stage while it trains: losses by task and budget, and the probe."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from model.config import ModelConfig
from model.masks.codec import MaskCodec
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.loop import StagePaths
from model.train.optimizer import Flat
from model.train.step import check_devices, mesh_of
from model.watch.config import WatchConfig
from model.watch.held_out import HeldOut
from model.watch.probe import Probe


class Watcher:
    """Evaluates the parameters of one stage; a `train.loop.ParamsObserver`.

    Args:
      config: settings of the evaluations.
      model: config of the model that the stage trains.
      train: training recipe of the stage.
      paths: paths of the stage, for its tokenizer and mask codec.
      held_out: prepared datasets to compute losses on; empty for no losses.
      probe: prepared records that the probe trains on and is scored on; None for no probe.
    """

    def __init__(
        self,
        config: WatchConfig,
        model: ModelConfig,
        train: TrainConfig,
        paths: StagePaths,
        *,
        held_out: tuple[str, ...] = (),
        probe: tuple[str, str] | None = None,
    ) -> None:
        self.every = config.every
        tokenizer = Tokenizer(paths.tokenizer)
        codec = MaskCodec.load(paths.mask_codec) if paths.mask_codec else None
        self._open = contextlib.ExitStack()
        # At every look in this order: the losses, then the probe.
        self._evaluations: list[HeldOut | Probe] = []
        if held_out:
            losses = HeldOut(
                held_out,
                config,
                model=model,
                train=train,
                mesh=mesh_of(model, train, jax.devices()),
                tokenizer=tokenizer,
                mask_codec=codec,
            )
            self._evaluations.append(self._open.enter_context(contextlib.closing(losses)))
        if config.probe is not None and probe is not None:
            data, probe_set = probe
            # The probe needs the stage's own mesh, which holds the parameters.
            copies = train.num_replicas
            as_stage = dataclasses.replace(config.probe.train, num_replicas=copies)
            check_devices(as_stage.batch_size, "watch.probe.batch_size")
            self._evaluations.append(
                Probe(
                    dataclasses.replace(config.probe, train=as_stage),
                    config.budgets,
                    lora=train.lora,
                    data=data,
                    held_out=probe_set,
                    tokenizer=tokenizer,
                    mask_codec=codec,
                )
            )

    def observe(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields the loss of each task at each budget, then the probe's scores."""
        for evaluation in self._evaluations:
            yield from evaluation.observe(params)

    def close(self) -> None:
        """Stops the loaders' threads."""
        self._open.close()
