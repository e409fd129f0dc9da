"""Time of one train step of each method's programs, against vanilla's.

    python -m perf.train_step

The model is the demo's (`flows/config/demo.yaml`): 224 px, 256 patches, small in width and depth.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from model.connector.routing import Kind
from model.sharding import make_mesh
from model.train.config import TrainConfig
from model.train.step import Rates, State, StepPrograms, make_state
from perf.batches import train_batch
from perf.timing import table, take_turns

BUCKETS: dict[Kind, tuple[int, ...]] = {
    "vanilla": (256,),
    "m3": (16, 64, 256),
    "mqt": (64, 256),
    "parcel": (40, 62, 128, 256),
}


class _Runner:
    """Training state of one method, and a program per bucket."""

    def __init__(self, cfg: ModelConfig, train: TrainConfig, buckets: Sequence[int]) -> None:
        mesh = make_mesh()
        self._batch = train_batch(cfg, train.batch_size, train.text_len)
        self._state: State = make_state(vlm.init_params(cfg, 0), train, mesh)
        train = dataclasses.replace(train, budgets=tuple(buckets))
        self.programs = StepPrograms(cfg, train, mesh)
        self.compile_seconds: dict[int, float] = {}
        for bucket in buckets:
            before = self.programs.compile_seconds
            self.step(bucket)
            self.compile_seconds[bucket] = self.programs.compile_seconds - before

    def step(self, budget: int) -> object:
        rates = Rates(learning=1e-4, decay=0.0)
        self._state, told = self.programs(self._state, self._batch, budget, rates)
        return told.loss


def measure(
    models: Mapping[str, tuple[ModelConfig, Sequence[int]]], train: TrainConfig, rounds: int
) -> list[list[str]]:
    """Returns the rows of the table; all models are compared with the first one.

    Args:
      models: name -> configuration, and the buckets to time.
      train: batch size and text length.
      rounds: counted runs of each program.
    """
    runners = {name: _Runner(cfg, train, sizes) for name, (cfg, sizes) in models.items()}
    steps = {
        (name, size): (lambda name=name, size=size: runners[name].step(size))
        for name, (_, sizes) in models.items()
        for size in sizes
    }
    labels = {f"{i:02d}": key for i, key in enumerate(steps)}
    timings = take_turns({label: steps[key] for label, key in labels.items()}, rounds)
    base = timings["00"]
    rows = []
    for label, (name, size) in labels.items():
        one, cfg = timings[label], models[name][0]
        rows.append(
            [
                name,
                str(size),
                f"{1000 * one.wall:.0f}",
                f"{one.noise:.0%}",
                f"{one.wall / base.wall:.2f}",
                f"{one.cpu / base.cpu:.2f}",
                f"{runners[name].compile_seconds[size]:.1f}",
                str(len(budgets.buckets(cfg))),
            ]
        )
    return rows


HEADER = [
    "method",
    "bucket",
    "ms/step",
    "noise",
    "x vanilla",
    "x its CPU time",
    "compile s",
    "programs",
]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table; "programs" is the largest number that a whole stage compiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted runs of each program")
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args(words)
    from flows.config.load import load

    study = load()
    train = dataclasses.replace(study.stage1, batch_size=args.batch_size, mixture=())
    models: dict[str, tuple[ModelConfig, Sequence[int]]] = {}
    for method, sizes in BUCKETS.items():
        cfg = study.model_of(method)
        # The method's own buckets, not the demo's few.
        connector = dataclasses.replace(cfg.connector, buckets=())
        models[method] = dataclasses.replace(cfg, connector=connector), sizes
    print(table(HEADER, measure(models, train, args.rounds)))


if __name__ == "__main__":
    main()
