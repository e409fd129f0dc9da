"""Time from a worker's start to its first update: a machine's first worker, and later ones.

    python -m perf.first_step [CONFIG] [key=value …]

A study is made up to its intermediaries (`parcel train`), and its compiled programs are deleted.
Then two worker processes, one after the other, train transfers that differ in their seeds only: one
in the first process, two in the second, since a worker makes several steps. The first time of a
process includes its imports; "backend" is XLA's compilation, or reading a program from the cache.
"""

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.config.load import load
from flows.steps.kind import Step
from flows.steps.lookup import look_up
from flows.steps.worker import Made, make_apart
from flows.study.graph import Node, graph_of
from infra.ray.devices import worker_environment
from infra.store.manifest import Recipe
from infra.store.programs import share_programs
from infra.store.store import Artifact, Store

_HITS, _MISSES = (f"/jax/compilation_cache/cache_{what}" for what in ("hits", "misses"))
_BACKEND = "/jax/core/compile/backend_compile_duration"
_TRACED = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)


def transfers(store: Store, words: Sequence[str]) -> tuple[str, list[Recipe]]:
    """Returns the name of a study's first transfer, without its seed, and its recipes by seed.

    Args:
      store: store that has all inputs of the transfers.
      words: arguments as for `parcel run`.
    """
    config = load(*_split(words))
    graph = graph_of(config, "transfer")
    found: dict[Step, Artifact] = {}
    made: dict[str, list[Recipe]] = {}
    for node in graph.nodes:
        for step in node.steps:
            inputs = {role: found[read] for role, read in step.inputs.items()}
            looked = look_up(store, step, inputs, set())
            if looked.artifact is not None:
                found[step] = looked.artifact
            elif _is_transfer(node):
                made.setdefault(node.name.rpartition(" ")[0], []).append(looked.recipe)
            else:
                raise RuntimeError(f"{node.name} was not made")
    return next(iter(made.items()))


def _is_transfer(node: Node) -> bool:
    return node.name.startswith("transfer ")


def _split(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the config, if one is named, and the overrides."""
    overrides = [word for word in words if "=" in word]
    return next((word for word in words if "=" not in word), None), overrides


def worker() -> None:
    """Makes the steps whose recipes the parent process sends; prints a JSON line per step."""
    born, uri, recipes = pickle.load(sys.stdin.buffer)  # Trusted: the parent process wrote it.
    if "jax" in sys.modules:
        raise RuntimeError("JAX was imported before it could be told where programs are.")
    share_programs(Store(uri).cache("jax"))
    import jax.monitoring

    spent: dict[str, float] = {}

    def note(event: str, duration_secs: float, **_: Any) -> None:
        spent[event] = spent.get(event, 0.0) + duration_secs

    def count(event: str, **_: Any) -> None:
        spent[event] = spent.get(event, 0.0) + 1

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.monitoring.register_event_listener(count)
    for recipe in recipes:
        spent.clear()
        first = None
        for item in make_apart(uri, [recipe], {}):
            if isinstance(item, Made):
                if item.error:
                    raise RuntimeError(item.error)
            elif first is None:
                first = {
                    "wall": time.monotonic() - born,
                    "cpu": time.process_time() if recipe is recipes[0] else 0.0,
                    "backend": spent.get(_BACKEND, 0.0),
                    "compiled": spent.get(_MISSES, 0.0),
                    "read": spent.get(_HITS, 0.0),
                    "traced": sum(spent.get(event, 0.0) for event in _TRACED),
                }
        print(json.dumps(first), flush=True)
        born = time.monotonic()
    sys.stdout.flush()
    os._exit(0)


def run_worker(uri: str, recipes: Sequence[Recipe]) -> list[dict[str, float]]:
    """Returns the times of steps that one worker makes, one after the other."""
    done = subprocess.run(
        [sys.executable, "-m", "perf.first_step", "--worker"],
        input=pickle.dumps((time.monotonic(), uri, list(recipes))),
        env={**os.environ, **worker_environment(1, 0, 0, {})},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def measure(words: Sequence[str], folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Returns the times of the first worker, of the second, and of the second's next step."""
    # It imports JAX, which must not happen in a worker before its time is taken.
    from perf.store import PARCEL, place

    with place("disk", folder) as (env, _), (folder / "log").open("w") as log:
        command = [PARCEL, "train", *words]
        subprocess.run(command, env=env, stdout=log, stderr=log, check=True)
    store = Store(folder / "store")
    _, recipes = transfers(store, words)
    if len(recipes) < 3:
        raise ValueError("num_seeds must be at least 3, for as many transfers.")
    shutil.rmtree(store.cache("jax"))
    (first,) = run_worker(store.uri, recipes[:1])
    second, third = run_worker(store.uri, recipes[1:3])
    return [
        ("the first worker", first),
        ("the second", second),
        ("its second transfer", third),
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="*", help="as `parcel run` takes it; none is the demo")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return worker()
    from perf.timing import table

    with tempfile.TemporaryDirectory() as folder:
        times = measure(asked.config, Path(folder))
    rows = []
    base = times[0][1]
    for name, of in times:
        parts = [f"{of[part]:.0f}" for part in ("compiled", "read")]
        parts += [f"{of[part]:.2f}" for part in ("backend", "traced", "wall", "cpu")]
        ratios = [f"{of[part] / base[part]:.2f}" for part in ("backend", "wall")]
        rows.append([name, *parts, *ratios])
    header = [
        "",
        "compiled",
        "read",
        "backend [s]",
        "traced [s]",
        "first step [s]",
        "processor [s]",
    ]
    print(table([*header, "backend / first", "first step / first"], rows))


if __name__ == "__main__":
    main()
