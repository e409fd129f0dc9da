"""The probe: a small transfer that starts from a stage's current parameters."""

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from model.checkpoint.digest import unflatten_params
from model.data.loader import Loader
from model.eval.run import Loaded, predict_loaded
from model.eval.score import score
from model.eval.score_json import read_score
from model.files import SCORE
from model.masks.codec import MaskCodec
from model.seeds import Seeds
from model.sharding import shardings
from model.text.tokenizer import Tokenizer
from model.train.loop import draws_of, rates_of
from model.train.lora import whole_weights
from model.train.lora_config import LoraConfig
from model.train.memory import with_microbatch
from model.train.optimizer import Flat, lr_schedules
from model.train.packing import packed_batches, with_packing
from model.train.programs import step_programs
from model.train.step import make_state
from model.watch.config import ProbeConfig
from model.watch.gather import gather_whole_weights

_SEEDS = Seeds.of(0)
"""Seeds of every probe: scores at two steps differ because of the parameters alone."""


class Probe:
    """Fine-tunes a copy of a stage's parameters for a few updates, and scores the result.

    While it runs, memory must hold a second training state beside the stage's own. Several
    processes fine-tune together, with the state sharded as the stage's own. Only the first process
    decodes, on its devices, each of which must hold all parameters; the others wait for its next
    step. What a stage freezes starts as the stage holds it (`sharding.param_dtype`).

    Args:
      config: settings of the probe.
      evaluated_budgets: budgets at which the result is scored.
      lora: settings of the stage's adapters; None where it has none.
      data: prepared training records, as in `StagePaths`.
      held_out: prepared records to score on.
      tokenizer: tokenizer of the texts.
      mask_codec: codec of the masks; None if there are no masks.
    """

    def __init__(
        self,
        config: ProbeConfig,
        evaluated_budgets: Sequence[int],
        *,
        lora: LoraConfig | None,
        data: str,
        held_out: str,
        tokenizer: Tokenizer,
        mask_codec: MaskCodec | None,
    ) -> None:
        self._config, self._budgets, self._lora = config, evaluated_budgets, lora
        self._data, self._held_out = data, held_out
        self._tokenizer, self._mask_codec = tokenizer, mask_codec

    def observe(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields the score at each budget, in the first process; as a `ParamsObserver`."""
        config = self._config
        # All processes train; those but the first get None here, as scoring is one process's work.
        tuned = self._tuned(params)
        if tuned is None:
            return
        loaded = Loaded.of(config.model, tuned, self._tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            out = {budget: Path(folder) / str(budget) for budget in self._budgets}
            for predictions_folder in out.values():
                predictions_folder.mkdir()
            places = {budget: str(predictions_folder) for budget, predictions_folder in out.items()}
            # The code of a real evaluation, which writes files. Only its scores are of use here.
            predicting = predict_loaded(
                loaded, data=self._held_out, config=config.decode, out=places, limit=config.examples
            )
            scoring = score(
                {predictions_folder: predictions_folder for predictions_folder in out.values()},
                data=self._held_out,
                metric=config.decode.metric,
                decode_mask=self._mask_codec.decode if self._mask_codec else None,
                limit=config.examples,
                with_items=False,  # An accelerator's machine may have no PyArrow.
            )
            for _ in itertools.chain(predicting, scoring):
                pass
            for budget, predictions_folder in out.items():
                result = read_score(predictions_folder / SCORE)
                fields = {name: result[name] for name in ("metric", "score", "num")}
                yield {"task": "probe", "budget": budget, **fields}

    def _tuned(self, params: Flat) -> dict[str, Any] | None:
        """Returns all parameters after the probe's updates, on one device; `params` do not change.

        All processes but the first get None.
        """
        model, train = self._config.model, self._config.train
        loader = Loader(
            self._data,
            train.batches,
            tokenizer=self._tokenizer,
            mask_codec=self._mask_codec,
            image_px=model.vision.image_px,
            seeds=_SEEDS,
            prompt=model.prompt,
            host=jax.process_index(),
            num_hosts=jax.process_count(),
        )
        with contextlib.closing(loader):
            # As in `fit`, without logs, resume points and looks.
            train = train.in_steps(len(loader.examples))
            # Beside it lies the stage's own state: of each parameter at most two moments as well.
            shards = (leaf.addressable_shards[0].data for leaf in params.values())
            beside = 3.0 * sum(shard.nbytes for shard in shards)
            images = max(loader.examples.num_images)
            train = with_microbatch(model, train, images, beside=beside)
            train = with_packing(train, loader)
            programs = step_programs(model, train, loader.examples.num_images)
            # A step overwrites its state (the buffers are donated), so the probe trains a copy. A
            # matrix with its adapter added is one already.
            whole = dict(whole_weights(self._lora, params, {}))
            own = {path: leaf for path, leaf in whole.items() if leaf is params[path]}
            copy = jax.jit(
                functools.partial(jax.tree.map, jnp.copy),
                out_shardings=shardings(own, programs.mesh),
            )
            whole |= copy(own)
            state = make_state(model, unflatten_params(whole), train, programs.mesh, _SEEDS.init)
            del whole, own
            factors = lr_schedules(train)
            draws = draws_of(model, train, _SEEDS, loader.examples, range(train.total_steps))
            programs.compile_ahead(state, draws.values())
            batches = packed_batches(loader, train, programs.mesh, 0, train.total_steps)
            for step, batch in enumerate(batches):
                rates = rates_of(train, factors[:, step], _SEEDS, step)
                state, _ = programs(state, batch, draws[step][0], rates)
        tuned = gather_whole_weights(train.lora, state.trained, state.frozen)
        return None if tuned is None else unflatten_params(tuned)
