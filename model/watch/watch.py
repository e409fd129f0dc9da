"""Who looks at a stage while it trains: losses by task and budget, and a small transfer."""

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
from model.train.step import mesh_of
from model.watch.config import WatchConfig
from model.watch.held_out import HeldOut
from model.watch.probe import Probe


class Watcher:
    """Looks at the parameters of one stage; a `train.loop.Watch`.

    Args:
      config: how often, and how closely.
      model: what is trained.
      train: how.
      paths: of the stage: its tokenizer and codec.
      held_out: prepared datasets whose losses are told; none where there are none.
      probe: prepared training and scored records of the probe; None where it has none.
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
        self._looks: list[HeldOut | Probe] = []
        if held_out:
            losses = HeldOut(
                held_out,
                config,
                model=model,
                train=train,
                mesh=mesh_of(train, jax.devices()),
                tokenizer=tokenizer,
                mask_codec=codec,
            )
            self._looks.append(self._open.enter_context(contextlib.closing(losses)))
        if config.probe is not None and probe is not None:
            data, scored = probe
            # On the stage's own mesh: its parameters are there.
            copies = train.num_replicas
            as_stage = dataclasses.replace(config.probe.train, num_replicas=copies)
            self._looks.append(
                Probe(
                    dataclasses.replace(config.probe, train=as_stage),
                    config.budgets,
                    data=data,
                    held_out=scored,
                    tokenizer=tokenizer,
                    mask_codec=codec,
                )
            )

    def look(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields the loss of each task at each budget, then the probe's scores."""
        for one in self._looks:
            yield from one.look(params)

    def close(self) -> None:
        """Stops the threads."""
        self._open.close()
