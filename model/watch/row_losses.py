"""Losses of the single examples of an update, which tell the broken ones from the others."""

import contextlib
from collections.abc import Generator
from typing import NamedTuple

import jax

from infra.progress import Progress
from model import vlm
from model.checkpoint.resume import ResumePoints
from model.config import ModelConfig
from model.connector import budgets
from model.seeds import Seeds
from model.sharding import make_mesh, shard_batch
from model.train.config import TrainConfig
from model.train.loop import StagePaths, draws_of, first_state, open_loader, rates_of
from model.train.memory import with_microbatch
from model.train.optimizer import lr_schedules
from model.train.packing import packed_batches, with_packing
from model.train.programs import step_programs
from model.watch.gather import gather_whole_weights
from model.watch.held_out import held_out_program


class RowLoss(NamedTuple):
    """The loss of one example of a batch, with its record and its texts."""

    record: str
    prefix: str
    suffix: str
    loss: float


def losses_of_rows(
    model: ModelConfig,
    train: TrainConfig,
    paths: StagePaths,
    seeds: Seeds,
    step: int,
    *,
    deterministic: bool = True,
) -> Generator[Progress | RowLoss, None, None]:
    """Trains a stage again up to an update, and yields the loss of each of its examples before it.

    Losses are those of the update's budget, without dropout and label smoothing. The arguments are
    those of `train.loop.fit`; of the paths, inputs and `points` are read, and nothing is written.

    Args:
      model: config of the model.
      train: the training recipe.
      paths: inputs of the stage; the newest of `points` before the update is where it begins.
      seeds: seeds of the stage.
      step: number of the update, from 1.
      deterministic: whether programs of a GPU give the same bits each time.

    Raises:
      ValueError: if the stage has no such update.
    """
    model = model.with_prompt(train.prompt)
    loader = open_loader(model, train, paths, seeds)
    train = train.in_steps(len(loader.examples))
    if not 1 <= step <= train.total_steps:
        loader.close()
        raise ValueError(f"step must be in 1..{train.total_steps}, the updates, got {step}.")
    train = with_microbatch(model, train, max(loader.examples.num_images))
    train = with_packing(train, loader)
    programs = step_programs(model, train, loader.examples.num_images, deterministic=deterministic)
    points = ResumePoints(paths.points, newest=step - 1)
    with contextlib.closing(loader), contextlib.closing(points):
        start, state, _ = first_state(points, model, train, paths, seeds, programs.mesh)
        factors = lr_schedules(train)
        draws = draws_of(model, train, seeds, loader.examples, range(start, step))
        batches = packed_batches(loader, train, programs.mesh, start, step - 1)
        for number, batch in enumerate(batches, start):
            yield Progress(done=number, total=step - 1)
            rates = rates_of(train, factors[:, number], seeds, number)
            state, _ = programs(state, batch, draws[number][0], rates)
        # The program of held-out losses, on one row at a time: a row's loss is the batch's then.
        whole = gather_whole_weights(train.lora, state.trained, state.frozen)
        mesh = make_mesh(jax.local_devices()[:1])
        program = held_out_program(model, None, mesh)
        budget, _ = draws[step - 1]
        slots = vlm.Slots(budgets.bucket_of(model, budget).size, budget)
        batch = loader.batch(step - 1)
        for row, draw in enumerate(loader.examples.draws(step - 1)):
            one = {name: array[row : row + 1] for name, array in batch.items()}
            loss = float(program(whole, shard_batch(one, mesh), slots))
            record = loader.examples.record(draw)
            prefix, number = loader.examples.texts(draw, record)
            yield RowLoss(record.id, prefix, record.suffixes[number], loss)
