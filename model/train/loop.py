"""One training stage, from its inputs to a checkpoint folder."""

import functools
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from infra.progress import Progress
from model import vlm
from model.checkpoint.digest import flatten, unflatten
from model.checkpoint.folder import load_params, save_checkpoint
from model.checkpoint.resume import ResumePoints
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Loader
from model.files import METRICS
from model.masks.codec import MaskCodec
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.optimizer import schedule
from model.train.resolution import fit_resolution
from model.train.step import (
    Rates,
    State,
    dropout_key,
    make_state,
    params_of,
    step_programs,
)

_FRESH = "connector/"
"""Parameters that a checkpoint to start from may lack."""


def fit(
    model: ModelConfig,
    train: TrainConfig,
    *,
    data: str | Sequence[str],
    init: str | None,
    tokenizer: str,
    mask_codec: str | None,
    scratch: str,
    out: str,
    seed: int,
) -> Iterator[Progress]:
    """Trains a stage; when exhausted, `out` holds a checkpoint (see `checkpoint.folder`).

    Started again with the same arguments after a kill, it goes on from its last resumable
    checkpoint and ends with the same bytes as a run that was never stopped.

    Args:
      model: what to train.
      train: how.
      data: prepared dataset folders; parts of the same name are joined [paths].
      init: checkpoint folder to start from; None starts from random parameters [path].
      tokenizer: SentencePiece file [path].
      mask_codec: `.npz` of the mask codec; needed where records have masks [path].
      scratch: folder for resumable checkpoints, this stage's alone [path].
      out: an existing folder [path].
      seed: of initial parameters, order of the examples, budgets and dropout.

    Raises:
      ValueError: if the inputs do not fit together.
    """
    started = time.monotonic()
    pieces = Tokenizer(tokenizer)
    if pieces.vocab_size > model.text.vocab_size:
        raise ValueError(
            f"text.vocab_size must be at least {pieces.vocab_size} (the tokenizer's), got "
            f"{model.text.vocab_size}."
        )
    programs = step_programs(model, train)
    state = make_state(starting_params(model, init, seed), train, programs.mesh)
    points = ResumePoints(scratch)
    start, state = points.restore(state) or (0, state)
    log = _Log(Path(scratch) / METRICS, start)
    loader = Loader(
        data,
        train,
        tokenizer=pieces,
        mask_codec=MaskCodec.load(mask_codec) if mask_codec else None,
        image_px=model.vision.image_px,
        seed=seed,
    )
    train = train.in_steps(len(loader.examples))
    compiled_before = programs.compile_seconds
    for step, batch in enumerate(loader.batches(start, train.total_steps), start=start):
        factor = schedule(train, step)
        rates = Rates(
            learning=train.peak_lr * factor,
            decay=train.weight_decay * factor,
            dropout_key=dropout_key(train, seed, step),
        )
        budget = budgets.draw_budget(model, seed, step, train.budgets)
        state, loss = programs(state, batch, budget, rates)
        done = step + 1
        if done % train.log_steps == 0 or done == train.total_steps or step == start:
            value = float(loss)
            log.write(
                step=done,
                loss=round(value, 5),
                learning_rate=rates.learning,
                budget=budget,
                seconds=round(time.monotonic() - started, 2),
                compile_seconds=round(programs.compile_seconds - compiled_before, 2),
            )
            yield Progress(done=done, total=train.total_steps, loss=value, note=f"loss {value:.3f}")
        if done % train.save_steps == 0 and done < train.total_steps:
            points.save(done, state)
    loader.close()
    _finish(state, model, out, tokenizer, mask_codec, log.path)
    points.close()


def starting_params(model: ModelConfig, init: str | None, seed: int) -> dict[str, Any]:
    """Returns fresh parameters, or a checkpoint's with a fresh connector where it has none.

    A checkpoint of another resolution is fitted to the model's (see `resolution`).

    Raises:
      ValueError: if the checkpoint's parameters do not fit the model, with their names.
    """
    if init is None:
        return vlm.init_params(model, seed)

    @functools.cache
    def fresh() -> dict[str, Any]:
        return dict(flatten(vlm.init_params(model, seed)))

    wanted = dict(flatten(vlm.abstract_params(model)))
    loaded = fit_resolution(dict(flatten(load_params(init))), wanted, fresh)
    # A connector is all the checkpoint's or all fresh, never a mixture of two methods.
    has_connector = any(p.startswith(_FRESH) for p in loaded)
    optional = () if has_connector else _FRESH
    missing = [p for p in wanted if p not in loaded and not p.startswith(optional)]
    extra = [p for p in loaded if p not in wanted]
    shapes = [
        f"{p}: {loaded[p].shape} for {wanted[p].shape}"
        for p in loaded
        if p in wanted and loaded[p].shape != wanted[p].shape
    ]
    if missing or extra or shapes:
        raise ValueError(
            f"init does not fit the model: missing {missing or 'none'}, unknown {extra or 'none'},"
            f" of another shape {shapes or 'none'}. Start from a checkpoint with the connector of "
            f"this model ({model.connector.kind}) or with none, and of at most its resolution."
        )
    if loaded.keys() == wanted.keys():
        return unflatten(loaded)
    return unflatten({path: loaded.get(path, value) for path, value in fresh().items()})


def _finish(
    state: State, model: ModelConfig, out: str, tokenizer: str, codec: str | None, log: Path
) -> None:
    params = jax.tree.map(np.asarray, params_of(state))
    shutil.copyfile(log, Path(out) / METRICS)
    save_checkpoint(out, model=model, params=params, tokenizer=tokenizer, mask_codec=codec)


class _Log:
    """Losses by step, one JSON line each; a resumed run goes on where its checkpoint was."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        kept = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in kept if line.endswith("}") and json.loads(line)["step"] <= start]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in kept))

    def write(self, **row: float) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
