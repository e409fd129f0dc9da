"""One training stage, from its inputs to a checkpoint folder."""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float

from infra.progress import Progress
from model.checkpoint.digest import unflatten
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.params_files import Put
from model.checkpoint.resume import ResumePoints, own_parts
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Examples, Loader
from model.files import METRICS, PROFILE, WATCH
from model.masks.codec import MaskCodec
from model.seeds import Seeds
from model.sharding import on_host
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.finite import Losses
from model.train.log import Clock, Lines, Speed, note_of, row_of
from model.train.optimizer import Flat, schedules
from model.train.start import starting_params
from model.train.step import Rates, State, dropout_key, make_state, step_programs


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
      scratch: folder for what is noted meanwhile, this stage's alone [path].
      out: an existing folder, which becomes a checkpoint's (see `checkpoint.folder`) [path].
      put: stores the checkpoint's parameters elsewhere than in `out`; None stores them there.
      points: folder for resumable checkpoints, or a place in a bucket; "" is one in `scratch`.
    """

    data: str | tuple[str, ...]
    init: str | None = None
    tokenizer: str
    mask_codec: str | None = None
    scratch: str
    out: str
    put: Put | None = None
    points: str = ""


class Preempted(RuntimeError):
    """The machine is about to be taken away; the state is saved, and can be gone on from."""


class Watch(Protocol):
    """Who looks at the parameters of a stage every so often; see `model.watch`."""

    @property
    def every(self) -> int:
        """Distance of the looks; there is one after the last step as well [steps]."""
        ...

    def look(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields findings on parameters, by path and on their devices; they stay as they are.

        A pure function of them, so that a resumed stage finds the same.
        """
        ...


def fit(
    model: ModelConfig,
    train: TrainConfig,
    paths: StagePaths,
    seeds: Seeds,
    watch: Watch | None = None,
    profile: tuple[int, int] = (0, 0),
    must_leave: Callable[[int], bool] = lambda done: False,
) -> Iterator[Progress]:
    """Trains a stage; when exhausted, `paths.out` holds a checkpoint (see `checkpoint.folder`).

    Started again with the same arguments after a kill, it goes on from its last resumable
    checkpoint and ends with the same bytes as a run that was never stopped.

    Several processes (`jax.distributed`) train one stage if each calls this with the same
    arguments: each reads its rows of every batch, and the first writes what is not sharded. They
    share `paths.points`, and what they read. The first tells of points to go on from.

    Args:
      model: what to train.
      train: how.
      paths: what to read, and where to write.
      seeds: of initial parameters, order and texts of the examples, budgets and dropout.
      watch: who looks at the parameters meanwhile; None for nobody. They come out the same.
      profile: first and last step, from 1, of those that JAX's profiler traces into `paths.out`.
      must_leave: asked after each update, with how many there were; where it says so the state is
        saved and the stage ends, to be gone on with elsewhere. All processes get the same answer.

    Raises:
      ValueError: if the inputs do not fit together.
      NotFiniteError: if a loss or a parameter is not finite; the last state that was saved is good.
      Preempted: if it must leave.
    """
    began = time.monotonic()
    loader = _open_loader(model, train, paths, seeds)
    train = train.in_steps(len(loader.examples))
    programs = step_programs(model, train, loader.examples.num_images)
    state = make_state(starting_params(model, paths.init, seeds.init), train, programs.mesh)
    points = ResumePoints(paths.points or Path(paths.scratch) / "resume")
    with contextlib.closing(loader), contextlib.closing(points), contextlib.ExitStack() as traced:
        # A state without a whole checkpoint before it is that of step 0.
        start, state, notes = points.restore(state) or (0, state, {})
        losses = Losses(loader.examples)
        log = Lines(Path(paths.scratch) / METRICS, start, notes.get(METRICS, ""))
        looks = Lines(Path(paths.scratch) / WATCH, start, notes.get(WATCH, ""))
        noted = {lines.path.name: lines.path for lines in (log, looks)}
        for damage in points.damaged:
            yield Progress(done=start, total=train.total_steps, note=damage, happened=True)
        clock, factors = Clock(log, began), schedules(train)
        speed = Speed(model, train, programs.mesh.devices.ravel().tolist())
        remaining = range(start, train.total_steps)
        drawn = draws_of(model, train, seeds, loader.examples, remaining)
        clock.lost["start"] += time.monotonic() - began
        with clock.losing("compile"):
            programs.compile_ahead(state, drawn.values())
        row: dict[str, Any] = {}
        read = math.nan
        batches = clock.waiting(loader.batches(start, train.total_steps))
        for step, batch in zip(remaining, batches, strict=True):
            if step + 1 == profile[0] and jax.process_index() == 0:
                traced.enter_context(jax.profiler.trace(f"{paths.out}/{PROFILE}"))
            rates = rates_of(train, factors[:, step], seeds, step)
            budget, _ = drawn[step]
            state, told = programs(state, batch, budget, rates)
            speed.add(*drawn[step])
            losses.add(step, told.loss)
            done = step + 1
            leaves = must_leave(done) and done < train.total_steps
            # The device works on while the host goes on to the next batch: only reading the loss
            # waits for it, so that is done at some steps alone.
            is_told = done % train.log_steps == 0 or done == train.total_steps or step == start
            is_saved = (done % train.save_steps == 0 and done < train.total_steps) or leaves
            is_watched = watch and (done % watch.every == 0 or done == train.total_steps)
            waits = is_told or is_saved or is_watched or done == profile[1]
            read = losses.read() if waits else read
            if done == profile[1]:
                traced.close()
            if is_told:
                rate = train.peak_lr * float(factors[-1, step])
                row = row_of(done, told, rate, budget, clock, speed)
                log.add(row)
            if watch and is_watched:
                # Before the state is saved: what a kill cuts off here is told again after it.
                with clock.losing("watch"):
                    for found in watch.look({**state.trained, **state.frozen}):
                        looks.add({"step": done, **found})
            if is_saved:
                with clock.losing("save"):
                    _save(points, done, state, losses, noted)
            if leaves:
                points.wait()
                # Only the first process waits for all: who leaves before has the others ended.
                multihost_utils.sync_global_devices("all have saved")
                raise Preempted(f"saved after step {done} of {train.total_steps}, to go on from.")
            is_new = points.news()
            if is_told or is_new:
                yield Progress(
                    done=done,
                    total=train.total_steps,
                    loss=read,
                    note=note_of(row),
                    resumable=is_new,
                )
        shards = (shard for leaf in state.trained.values() for shard in leaf.addressable_shards)
        losses.check(train.total_steps - 1, (np.asarray(shard.data) for shard in shards))
        _finish(state, model, paths, (log, looks) if watch else (log,))


def _save(
    points: ResumePoints, done: int, state: State, losses: Losses, noted: Mapping[str, Path]
) -> None:
    """Begins to write a point to go on from, if the parameters are finite."""
    points.wait()  # The host has room for one copy of the state, not for two.
    parts = own_parts(state)
    losses.check(done - 1, (p.data for p in parts if p.path.startswith("trained/")))
    points.save(done, parts, noted)


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
        host=jax.process_index(),
        num_hosts=jax.process_count(),
    )


def draws_of(
    model: ModelConfig, train: TrainConfig, seeds: Seeds, examples: Examples, steps: range
) -> dict[int, tuple[int, int]]:
    """Returns (budget, images per example) of steps, by step: all that tells their programs apart.

    Args:
      model: what is trained.
      train: how; its budgets.
      seeds: of the budgets.
      examples: that are trained on.
      steps: updates.
    """
    return {
        step: (
            budgets.draw_budget(model, seeds.budget, step, train.budgets),
            examples.images_of(step),
        )
        for step in steps
    }


def rates_of(
    train: TrainConfig, factors: Float[np.ndarray, " groups"], seeds: Seeds, step: int
) -> Rates:
    """Returns the numbers of one step.

    Args:
      train: rates, groups and dropout.
      factors: of the schedules at this step; see `schedules`.
      seeds: of dropout.
      step: the update.
    """
    key = dropout_key(train, seeds.dropout, step)
    learning = [train.peak_lr * float(factor) for factor in factors]
    decay = tuple(train.weight_decay * float(factor) for factor in factors)
    if not train.groups:
        return Rates(learning=learning[0], decay=decay[0], dropout_key=key)
    mults = [*(group.lr for group in train.groups), 1.0]
    scaled = tuple(rate * mult for rate, mult in zip(learning, mults, strict=True))
    return Rates(learning=scaled, decay=decay, dropout_key=key)


def _finish(state: State, model: ModelConfig, paths: StagePaths, logs: Sequence[Lines]) -> None:
    params: dict[str, Any] = {}
    is_first = jax.process_index() == 0
    for path, leaf in {**state.trained, **state.frozen}.items():
        array = on_host(leaf)  # One at a time, and all processes together.
        if is_first:
            params[path] = array
    if not is_first:
        return
    for log in logs:
        shutil.copyfile(log.path, Path(paths.out) / log.path.name)
    save_checkpoint(
        paths.out,
        model=model,
        params=unflatten(params),
        tokenizer=paths.tokenizer,
        mask_codec=paths.mask_codec,
        put=paths.put,
    )
