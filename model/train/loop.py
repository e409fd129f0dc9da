"""One training stage, from its inputs to a checkpoint folder."""

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from infra.progress import Progress
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.params_files import Put
from model.checkpoint.resume import ResumePoints
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Loader
from model.files import METRICS
from model.masks.codec import MaskCodec
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.optimizer import schedule
from model.train.start import starting_params
from model.train.step import Rates, State, dropout_key, make_state, params_of, step_programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePaths:
    """Files that a stage reads, and folders it writes to.

    Attributes:
      data: prepared datasets, folders or places in a bucket (see `infra.store.places`); parts of
        the same name are joined.
      init: checkpoint to start from, a folder or a place in a bucket; None starts from random
        parameters.
      tokenizer: SentencePiece file [path].
      mask_codec: `.npz` of the mask codec; needed where records have masks [path].
      scratch: folder for resumable checkpoints, this stage's alone [path].
      out: an existing folder, which becomes a checkpoint's (see `checkpoint.folder`) [path].
      put: stores the checkpoint's parameters elsewhere than in `out`; None stores them there.
    """

    data: str | tuple[str, ...]
    init: str | None = None
    tokenizer: str
    mask_codec: str | None = None
    scratch: str
    out: str
    put: Put | None = None


def fit(
    model: ModelConfig, train: TrainConfig, paths: StagePaths, seeds: Seeds
) -> Iterator[Progress]:
    """Trains a stage; when exhausted, `paths.out` holds a checkpoint (see `checkpoint.folder`).

    Started again with the same arguments after a kill, it goes on from its last resumable
    checkpoint and ends with the same bytes as a run that was never stopped.

    Args:
      model: what to train.
      train: how.
      paths: what to read, and where to write.
      seeds: of initial parameters, order and texts of the examples, budgets and dropout.

    Raises:
      ValueError: if the inputs do not fit together.
    """
    loader = _open_loader(model, train, paths, seeds)
    train = train.in_steps(len(loader.examples))
    programs = step_programs(model, train, loader.examples.num_images)
    state = make_state(starting_params(model, paths.init, seeds.init), train, programs.mesh)
    points = ResumePoints(paths.scratch)
    with contextlib.closing(loader), contextlib.closing(points):
        # A state without a whole checkpoint before it is that of step 0.
        start, state = points.restore(state) or (0, state)
        log = _Log(Path(paths.scratch) / METRICS, start)
        factors, compiled_before = schedule(train), programs.compile_seconds
        for step, batch in enumerate(loader.batches(start, train.total_steps), start=start):
            budget = budgets.draw_budget(model, seeds.budget, step, train.budgets)
            rates = _rates(train, float(factors[step]), seeds, step)
            state, loss = programs(state, batch, budget, rates)
            done = step + 1
            # The device works on while the host goes on to the next batch: only reading the loss
            # waits for it, so that is done at some steps alone.
            is_told = done % train.log_steps == 0 or done == train.total_steps or step == start
            is_saved = done % train.save_steps == 0 and done < train.total_steps
            if is_told:
                compiled = programs.compile_seconds - compiled_before
                log.write(done, float(loss), rates.learning, budget, compiled)
            if is_saved:
                points.save(done, state)
            if is_told or is_saved:
                yield _progress(done, train.total_steps, float(loss), resumable=is_saved)
        _finish(state, model, paths, log.path)


def _open_loader(model: ModelConfig, train: TrainConfig, paths: StagePaths, seeds: Seeds) -> Loader:
    tokenizer = Tokenizer(paths.tokenizer)
    if tokenizer.vocab_size > model.text.vocab_size:
        raise ValueError(
            f"text.vocab_size must be at least {tokenizer.vocab_size} (the tokenizer's), got "
            f"{model.text.vocab_size}."
        )
    return Loader(
        paths.data,
        train.batches,
        tokenizer=tokenizer,
        mask_codec=MaskCodec.load(paths.mask_codec) if paths.mask_codec else None,
        image_px=model.vision.image_px,
        seeds=seeds,
    )


def _rates(train: TrainConfig, factor: float, seeds: Seeds, step: int) -> Rates:
    return Rates(
        learning=train.peak_lr * factor,
        decay=train.weight_decay * factor,
        dropout_key=dropout_key(train, seeds.dropout, step),
    )


def _progress(done: int, total: int, loss: float, *, resumable: bool) -> Progress:
    note = f"loss {loss:.3f}"
    return Progress(done=done, total=total, loss=loss, note=note, resumable=resumable)


def _finish(state: State, model: ModelConfig, paths: StagePaths, log: Path) -> None:
    params = jax.tree.map(np.asarray, params_of(state))
    shutil.copyfile(log, Path(paths.out) / METRICS)
    save_checkpoint(
        paths.out,
        model=model,
        params=params,
        tokenizer=paths.tokenizer,
        mask_codec=paths.mask_codec,
        put=paths.put,
    )


class _Log:
    """Losses by step, one JSON line each; a resumed run goes on where its checkpoint was."""

    def __init__(self, path: Path, start: int) -> None:
        self.path, self._started = path, time.monotonic()
        kept = path.read_text().splitlines() if path.exists() else []
        # A kill may have cut the last line; lines after the checkpoint are written again.
        kept = [line for line in kept if line.endswith("}") and json.loads(line)["step"] <= start]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in kept))

    def write(
        self, step: int, loss: float, learning_rate: float, budget: int, compile_seconds: float
    ) -> None:
        row = {
            "step": step,
            "loss": round(loss, 5),
            "learning_rate": learning_rate,
            "budget": budget,
            "seconds": round(time.monotonic() - self._started, 2),
            "compile_seconds": round(compile_seconds, 2),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
