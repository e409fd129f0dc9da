"""Answers to a few held-out questions while a stage trains, for its page; no score counts them."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from infra.errors import one_line_message
from model.checkpoint.digest import unflatten_params
from model.config import ModelConfig
from model.connector import budgets
from model.decode.config import DecodeConfig
from model.eval.predictions_file import read_predictions
from model.eval.run import Loaded, predict_loaded
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.optimizer import Flat
from model.watch.gather import gather_whole_weights

_NUM_QUESTIONS = 4
"""Number of records that are answered, the first by id, so that their answers are few and quick."""


class Samples:
    """Answers the first records of a benchmark; a `train.loop.ParamsObserver`.

    Memory must hold a copy of the weights in `model.dtype` meanwhile. If it does not, that is said
    once, and no more answers follow: a training does not fail for them.

    Args:
      model: config of the model that the stage trains.
      train: training recipe of the stage: answers are at the largest of its budgets.
      data: prepared records of a benchmark that the stage does not train on, as in `StagePaths`.
      tokenizer: tokenizer of the texts.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, *, data: str, tokenizer: Tokenizer
    ) -> None:
        self.every = train.sample_steps
        self._model, self._lora, self._data, self._tokenizer = model, train.lora, data, tokenizer
        self._budget = max(budgets.training_budgets(model, train.budgets))
        self._config = DecodeConfig(
            batch_size=_NUM_QUESTIONS, text_len=train.text_len, max_frames=train.max_frames
        )
        self._has_failed = False

    def observe(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields the answer to each record, in the first process; as a `ParamsObserver`."""
        # All processes gather, also after a failure, of which only the first one knows.
        whole = gather_whole_weights(self._lora, params, {})
        if whole is None or self._has_failed:
            return
        try:
            loaded = Loaded.of(self._model, unflatten_params(whole), self._tokenizer)
            del whole
            with tempfile.TemporaryDirectory() as folder:
                # The code of a real evaluation, which writes files.
                for _ in predict_loaded(
                    loaded,
                    data=self._data,
                    config=self._config,
                    out={self._budget: folder},
                    limit=_NUM_QUESTIONS,
                ):
                    pass
                answers = [*read_predictions(Path(folder))]
            for row in answers:
                yield {name: row[name] for name in ("id", "prediction")} | {"budget": self._budget}
        except jax.errors.JaxRuntimeError as error:  # The device has no room for them.
            self._has_failed = True
            yield {"error": one_line_message(error)}
