"""Cost of writing resume points while a stage trains.

    python -m perf.saving [CONFIG] [--every 100]

Some steps with one save among them take turns with as many steps without; each turn ends when all
is written. The time that a save adds is compared with that of `--every` steps. "blocked" is the
time in which training itself waits, for the copy of its state. The bucket is on the loopback, with
20 ms a request.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from flows.config.load import load
from model import vlm
from model.checkpoint.resume import ResumePoints, own_parts
from model.sharding import make_mesh
from model.train.step import Rates, StepPrograms, make_state
from perf.batches import train_batch
from perf.bucket import BUCKET, bucket
from perf.timing import table

_HEAD = ["to", "state [MiB]", "step [s]", "save [s]", "blocked [s]", "of the steps", "of their CPU"]


def measure(config: str, place: str, method: str, steps: int, rounds: int, every: int) -> list[str]:
    """Returns the row of the table for a place.

    Args:
      config: config of the study whose Stage 1 is trained.
      place: folder or bucket for the points.
      method: method to train.
      steps: steps of each turn.
      rounds: turns of each kind.
      every: steps between two saves.
    """
    study = load(config)
    model, train, mesh = study.model_of(method), study.stage1, make_mesh()
    batch = train_batch(model, train.batch_size, train.text_len)
    programs = StepPrograms(model, train, mesh)
    state = make_state(vlm.init_params(model, 0), train, mesh)
    budget = max(train.budgets) if train.budgets else 256
    points, blocked, saved = ResumePoints(place), [], 0

    def run(saves: bool) -> tuple[float, float]:
        nonlocal state, saved
        wall, cpu = time.perf_counter(), time.process_time()
        for step in range(steps):
            state, told = programs(state, batch, budget, Rates(learning=1e-4, decay=0.0))
            if saves and step == 0:
                jax.block_until_ready(told)
                began = time.perf_counter()
                saved += 1
                points.save(saved, own_parts(state), {})
                blocked.append(time.perf_counter() - began)
        jax.block_until_ready(state)
        points.wait()
        return time.perf_counter() - wall, time.process_time() - cpu

    run(True)
    size = sum(part.data.nbytes for part in own_parts(state)) / 2**20
    pairs = []
    for turn in range(rounds):
        order = (True, False) if turn % 2 else (False, True)
        found = {saves: run(saves) for saves in order}
        pairs.append((*found[False], *found[True]))
    points.close()
    step = statistics.median(pair[0] for pair in pairs) / steps
    cpu = statistics.median(pair[1] for pair in pairs) / steps
    more, more_cpu = (statistics.median(p[i + 2] - p[i] for p in pairs) for i in (0, 1))
    return [
        place.partition("/")[0] or "disk",
        f"{size:.0f}",
        f"{step:.3f}",
        f"{more:.3f}",
        f"{statistics.median(blocked):.3f}",
        f"{more / (every * step):.2%}",
        f"{more_cpu / (every * cpu):.2%}",
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("config", nargs="?", default="configs/small.yaml")
    parser.add_argument("--method", default="parcel")
    parser.add_argument("--steps", type=int, default=6, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind")
    parser.add_argument("--every", type=int, default=100, help="steps between two saves")
    args = parser.parse_args(words)
    how = args.method, args.steps, args.rounds, args.every
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(args.config, f"{folder}/points", *how)]
        with bucket(20, Path(folder, "state")):
            rows.append(measure(args.config, f"{BUCKET}/points", *how))
    print(table(_HEAD, rows))


if __name__ == "__main__":
    main()
