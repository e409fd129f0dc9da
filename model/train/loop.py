"""One training stage, from its inputs to a checkpoint folder."""

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Float

from infra.progress import COMPILING, Progress
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.params_files import Put
from model.checkpoint.resume import ResumePoints, process_parts
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Examples, Loader
from model.files import METRICS, PROFILE
from model.masks.codec import MaskCodec
from model.seeds import Seeds
from model.sharding import on_host, shard_tree
from model.text.tokenizer import Tokenizer
from model.train.config import RECORDED, TrainConfig
from model.train.log import Clock, Lines, Speed, note_of, row_of
from model.train.lora import LORA, whole_weights
from model.train.losses import Losses
from model.train.memory import with_microbatch
from model.train.optimizer import Flat, lr_schedules
from model.train.packing import is_packed, packed_batches, with_packing
from model.train.programs import step_programs
from model.train.start import starting_params
from model.train.step import (
    Rates,
    State,
    StepMetrics,
    abstract_state,
    are_finite,
    check_devices,
    dropout_key,
    frozen_params,
    make_state,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePaths:
    """Files that a stage reads, and folders it writes to.

    Attributes:
      data: prepared datasets, folders or places in a bucket (see `infra.store.stored_folder`);
        parts of the same name are joined.
      init: checkpoint to start from, a folder or a place in a bucket; None starts from random
        parameters.
      tokenizer: SentencePiece file [path].
      mask_codec: `.npz` of the mask codec; needed where records have masks [path].
      scratch: folder for logs, used by this stage alone [path].
      out: existing folder that becomes the checkpoint's folder (see `checkpoint.folder`) [path].
      put: function that stores the checkpoint's parameters elsewhere; None stores them in `out`.
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


class PreemptedError(RuntimeError):
    """The machine is about to be taken away; the state is saved, so training can resume."""


class ParamsObserver(Protocol):
    """An observer that looks at a stage's parameters at intervals; see `model.watch`."""

    @property
    def every(self) -> int:
        """Interval between looks; there is one after the last step as well [steps]."""
        ...

    def observe(self, params: Flat) -> Iterator[Mapping[str, Any]]:
        """Yields findings on the parameters and adapters, given by path and on their devices.

        It does not change them and is a pure function of them: a resumed stage finds the same.
        """
        ...


class Update(NamedTuple):
    """An update that was just dispatched, as actions see it.

    Attributes:
      num_done: number of updates done, this one included.
      state: the state after it, until the next update consumes it.
      metrics: its measurements.
    """

    num_done: int
    state: State
    metrics: StepMetrics


@dataclasses.dataclass(frozen=True)
class PeriodicAction:
    """Something that a stage does at intervals, between two updates.

    Attributes:
      every: interval [steps].
      run: the action, given the update before it.
      after_first: whether it also follows the first update of an attempt.
      after_last: whether it follows the last update of the stage, whatever the interval.
    """

    every: int
    run: Callable[[Update], None]
    after_first: bool = False
    after_last: bool = True

    def is_due(self, num_done: int, start: int, total: int) -> bool:
        """Returns whether the action follows an update.

        Args:
          num_done: number of updates done.
          start: number of them done in earlier attempts.
          total: number of updates of the stage.
        """
        if num_done == total:
            return self.after_last
        return num_done % self.every == 0 or (self.after_first and num_done == start + 1)


def fit(
    model: ModelConfig,
    train: TrainConfig,
    paths: StagePaths,
    seeds: Seeds,
    observers: Mapping[str, ParamsObserver] = MappingProxyType({}),
    profile: tuple[int, int] = (0, 0),
    must_leave: Callable[[int], bool] = lambda num_done: False,
    *,
    deterministic: bool = True,
) -> Iterator[Progress]:
    """Trains a stage; when exhausted, `paths.out` holds a checkpoint (see `checkpoint.folder`).

    Started again with the same arguments after a kill, it resumes from its last resumable
    checkpoint and ends with the same bytes as a run that was never stopped.

    Several processes (`jax.distributed`) train one stage if each calls this with the same
    arguments: each reads its rows of every batch, and the first writes what is not sharded. They
    share `paths.points` and their inputs. Only the first reports resumable checkpoints.

    Args:
      model: config of the model to train.
      train: the training recipe.
      paths: files to read and folders to write to.
      seeds: seeds of initial parameters, order and texts of the examples, budgets and dropout.
      observers: name of a log -> observer of the parameters, whose findings it has. They do not
        change the result.
      profile: first and last step, counted from 1, that JAX's profiler traces into `paths.out`.
      must_leave: called after each update with the number of updates done. If it returns True, the
        state is saved and the stage ends, to be resumed elsewhere. All processes get the same
        answer.
      deterministic: whether programs of a GPU give the same bits each time, which costs time.

    Raises:
      ValueError: if the inputs do not fit together.
      NotFiniteError: if a loss or a parameter is not finite; the last state that was saved is good.
      PreemptedError: if `must_leave` returned True.
    """
    began = time.monotonic()
    check_devices(train.batch_size, exact_shards=train.exact_shards)
    model = model.with_prompt(train.prompt)
    # The loader comes first: by its number of records, epochs become updates, and the shapes of its
    # batches are the programs that may be needed.
    loader = open_loader(model, train, paths, seeds)
    train = train.in_steps(len(loader.examples))
    train = with_microbatch(model, train, max(loader.examples.num_images))
    train = with_packing(train, loader)
    programs = step_programs(model, train, loader.examples.num_images, deterministic=deterministic)
    points = ResumePoints(paths.points or Path(paths.scratch) / "resume")
    with contextlib.closing(loader), contextlib.closing(points), contextlib.ExitStack() as profiler:
        start, state, notes = first_state(points, model, train, paths, seeds, programs.mesh)
        losses = Losses(loader.examples)
        log = Lines(Path(paths.scratch) / METRICS, start, notes.get(METRICS, ""))
        finds = {
            name: Lines(Path(paths.scratch) / name, start, notes.get(name, ""))
            for name in observers
        }
        for damage in points.damaged:
            yield Progress(done=start, total=train.total_steps, note=damage, happened=True)
        clock, factors = Clock(log, began), lr_schedules(train)
        speed = Speed(model, train, programs.mesh.devices.ravel().tolist(), state.trained)
        remaining, num_padded = range(start, train.total_steps), 0
        draws = draws_of(model, train, seeds, loader.examples, remaining)
        clock.lost["start"] += time.monotonic() - began
        # Large programs take minutes, in which nothing else is heard of the stage.
        yield Progress(done=start, total=train.total_steps, note=COMPILING)
        with clock.losing("compile"):
            programs.compile_ahead(state, draws.values())

        def log_update(update: Update) -> None:
            step = update.num_done - 1
            rate = train.peak_lr * float(factors[-1, step])
            budget, _ = draws[step]
            row = row_of(update.num_done, update.metrics, rate, budget, clock, speed)
            # No part of the identity, but of what decides the last bits.
            for name in RECORDED:
                if (value := getattr(train, name)) is not None:
                    row[name] = value
            if num_padded:
                row["padded"] = num_padded
            if jumps := losses.take_jumps():
                row["jumps"] = jumps
            log.add(row)

        def watch(name: str, update: Update) -> None:
            with clock.losing("watch"):
                params = {**update.state.trained, **update.state.frozen}
                for row in observers[name].observe(params):
                    finds[name].add({"step": update.num_done, **row})

        def save(update: Update) -> None:
            with clock.losing("save"):
                finite = are_finite(update.state.trained, programs.mesh)
                losses.check(update.num_done - 1, finite)
                points.wait()  # The host has room for one copy of the state, not for two.
                log_paths = {lines.path.name: lines.path for lines in (log, *finds.values())}
                # Frozen parameters are those of the start, and are read from there.
                parts = process_parts(update.state._replace(frozen={}))
                points.save(update.num_done, parts, log_paths)

        # Done in this order where several are due. The state is saved last: findings and rows that
        # a kill cuts off are made again.
        logging = PeriodicAction(train.log_steps, log_update, after_first=True)
        saving = PeriodicAction(train.save_steps, save, after_last=False)
        looks = [
            PeriodicAction(observer.every, functools.partial(watch, name))
            for name, observer in observers.items()
        ]
        actions = [logging, *looks, saving]

        # The host runs ahead of the device; what it waits for is chosen with care:
        #
        #     host     batch 1 | call 1, batch 2 | call 2, batch 3 | …
        #     device             step 1 ──────────▶ step 2 ─────────▶
        batches = packed_batches(loader, train, programs.mesh, start, train.total_steps)
        batches = clock.waiting(batches)
        for step, batch in zip(remaining, batches, strict=True):
            num_done = step + 1
            if num_done == profile[0] and jax.process_index() == 0:
                profiler.enter_context(jax.profiler.trace(f"{paths.out}/{PROFILE}"))
            # The update is only dispatched: the device computes while the host goes on.
            budget, _ = draws[step]
            rates = rates_of(train, factors[:, step], seeds, step)
            state, metrics = programs(state, batch, budget, rates)
            packed = is_packed(batch)
            num_padded += train.pack is not None and not packed
            speed.add(*draws[step], packed=packed)
            losses.add(step, metrics.loss)
            # What is due now. Each action needs the device's results, so the host waits for them.
            leaves = must_leave(num_done) and num_done < train.total_steps
            due = [a for a in actions if a.is_due(num_done, start, train.total_steps)]
            if leaves and saving not in due:
                due.append(saving)
            if due or num_done == profile[1]:
                for jump in losses.read():
                    yield Progress(done=num_done, total=train.total_steps, note=jump, happened=True)
            if num_done == profile[1]:
                profiler.close()
            for action in due:
                action.run(Update(num_done, state, metrics))
            if leaves:
                _leave_preempted_stage(points, num_done, train.total_steps)
            # A point is completed in the background: news of it comes at some later step.
            is_new = points.has_new_point()
            if logging in due or is_new:
                yield Progress(
                    done=num_done,
                    total=train.total_steps,
                    loss=losses.last,
                    note=note_of(log.last_row),
                    resumable=is_new,
                )
        losses.check(train.total_steps - 1, are_finite(state.trained, programs.mesh))
        logs = (log, *finds.values())
        _write_checkpoint(state, model, train, paths, seeds, programs.mesh, logs)


def first_state(
    points: ResumePoints,
    model: ModelConfig,
    train: TrainConfig,
    paths: StagePaths,
    seeds: Seeds,
    mesh: Mesh,
) -> tuple[int, State, Mapping[str, str]]:
    """Returns (updates done, state, logs by name): of the newest point, or of a stage's start."""
    # Restored from shapes alone: a first state beside it would take its memory a second time.
    if points.may_restore:
        template = abstract_state(model, train, mesh)
        # Frozen parameters are in no point, but are those of the start. They come first: what else
        # is read there is gone before the rest comes.
        frozen: Flat = {}
        if template.frozen:
            start = starting_params(model, paths.init, seeds.init)
            frozen = frozen_params(model, start, train, mesh)
            del start
        restored = points.restore(template._replace(frozen={}))
        if restored is not None:
            start, state, notes = restored
            return start, state._replace(frozen=frozen), notes
        del frozen  # No point could be used; the start is read again, and would be there twice.
    params = starting_params(model, paths.init, seeds.init)
    return 0, make_state(model, params, train, mesh, seeds.init), {}


def _leave_preempted_stage(points: ResumePoints, num_done: int, total: int) -> NoReturn:
    """Raises `PreemptedError` once the state is stored."""
    points.wait()
    # Only the first process's `wait` covers all processes, and one that exits early makes JAX end
    # the others. So all meet here before any leaves.
    multihost_utils.sync_global_devices("all have saved")
    raise PreemptedError(
        f"state saved after step {num_done} of {total}; training can resume from it."
    )


def open_loader(model: ModelConfig, train: TrainConfig, paths: StagePaths, seeds: Seeds) -> Loader:
    """Returns the loader of a stage.

    Raises:
      ValueError: if the inputs do not fit together.
    """
    # A token beyond the embedding's rows would be looked up as the last row, without an error.
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
        prompt=model.prompt,
        host=jax.process_index(),
        num_hosts=jax.process_count(),
    )


def draws_of(
    model: ModelConfig, train: TrainConfig, seeds: Seeds, examples: Examples, steps: range
) -> dict[int, tuple[int, int]]:
    """Returns step -> (budget, images per example), which decide the program that a step runs.

    Args:
      model: config of the model that is trained.
      train: the training recipe, which lists the budgets.
      seeds: seeds of the stage; the budgets' one is used.
      examples: the examples that are trained on.
      steps: numbers of the updates.
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
    """Returns the rates and the dropout key of one step.

    Args:
      train: the training recipe: rates, groups and dropout.
      factors: value of each group's schedule at this step; see `lr_schedules`.
      seeds: seeds of the stage; dropout's one is used.
      step: number of the update.
    """
    key = dropout_key(train, seeds.dropout, step)
    learning = [train.peak_lr * float(factor) for factor in factors]
    decay = tuple(train.weight_decay * float(factor) for factor in factors)
    if not train.groups:
        return Rates(learning=learning[0], decay=decay[0], dropout_key=key)
    mults = [*(group.lr for group in train.groups), 1.0]
    scaled = tuple(rate * mult for rate, mult in zip(learning, mults, strict=True))
    return Rates(learning=scaled, decay=decay, dropout_key=key)


def _final_weights(
    state: State,
    model: ModelConfig,
    train: TrainConfig,
    paths: StagePaths,
    seeds: Seeds,
    mesh: Mesh,
) -> Iterator[tuple[str, jax.Array]]:
    """Yields path and value of every parameter that a stage ends with, one at a time.

    A frozen matrix that is held rounded is read from the start again: what a stage freezes comes
    out as it went in, and adapters are added to the weights themselves.
    """
    rounded = {path for path, leaf in state.frozen.items() if leaf.dtype != np.float32}
    exact = {path: leaf for path, leaf in state.frozen.items() if path not in rounded}
    yield from whole_weights(train.lora, state.trained, exact)
    if not rounded:
        return
    adapters = {path: leaf for path, leaf in state.trained.items() if path.startswith(LORA)}
    start = dict(flatten_params(starting_params(model, paths.init, seeds.init)))
    for path in sorted(rounded):  # Taken out, so that the host has each only once.
        placed = shard_tree({path: start.pop(path)}, mesh)
        yield from whole_weights(train.lora, adapters, placed)


def _write_checkpoint(
    state: State,
    model: ModelConfig,
    train: TrainConfig,
    paths: StagePaths,
    seeds: Seeds,
    mesh: Mesh,
    logs: Sequence[Lines],
) -> None:
    # Every process takes part in gathering, because each holds parts; only the first one keeps what
    # was gathered.
    params: dict[str, Any] = {}
    is_first = jax.process_index() == 0
    for path, leaf in _final_weights(state, model, train, paths, seeds, mesh):
        array = on_host(leaf)  # One at a time, to save memory; all processes must take part.
        if is_first:
            params[path] = array
    if not is_first:
        return
    # Logs first: the digest, which `save_checkpoint` writes last, says that the folder is complete.
    for log in logs:
        shutil.copyfile(log.path, Path(paths.out) / log.path.name)
    save_checkpoint(
        paths.out,
        model=model,
        params=unflatten_params(params),
        tokenizer=paths.tokenizer,
        mask_codec=paths.mask_codec,
        put=paths.put,
    )
