"""How long a run takes to find out that it is finished, in a bucket of many artifacts.

    python -m perf.lookup --seeds 100 --latency-ms 20

The study is the demo with that many seeds and 21 budgets, in a store that has an artifact of four
files for every step. The time is that of `parcel run` before its first step: one listing, reading
the manifests, and the verdict on every step; then the same with the manifests cached.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flows.config.load import load
from flows.steps.kind import Step
from flows.steps.lookup import look_up
from flows.study.explain import Explanation
from flows.study.graph import Graph, graph_of
from infra.store.digest import value_sha256
from infra.store.manifest import File, Manifest
from infra.store.store import Artifact, Store, manifest_name
from perf.store import HERE
from perf.timing import table
from tests.gcs.objects import Content
from tests.gcs.server import GCS, environment

BUCKET = "testing"
FILES = {f"{i}": b"data" for i in range(4)}


def graph_with(seeds: int) -> Graph:
    """Returns the demo's graph, with that many seeds and 21 budgets."""
    return graph_of(load(overrides=[f"num_seeds={seeds}", f"budgets={[*range(16, 257, 12)]}"]))


def objects(graph: Graph, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yields name and bytes of every file of a store in which all steps are made."""
    empty = Store(folder)
    found: dict[Step, Artifact] = {}
    yield "store.json", (folder / "store.json").read_bytes()
    for step in graph.steps:
        inputs = {role: found[read] for role, read in step.inputs.items()}
        recipe = look_up(empty, step, inputs, set()).recipe
        attempt = f"20261122T000000-{len(found):08x}"
        manifest = Manifest(
            kind=step.kind,
            name=step.name,
            key=recipe.key,
            inputs=dict(recipe.inputs),
            config=recipe.config,
            seed=recipe.seed,
            libraries=dict(recipe.libraries),
            code=recipe.code,
            source="",
            content=value_sha256(recipe.key),
            folder=f"attempts/{attempt}",
            files={n: File(sha256=value_sha256(n), size=len(d)) for n, d in FILES.items()},
            counts={},
            attempts=[],
            environment={},
            started="2026-11-22T00:00:00+00:00",
            seconds=1.0,
        )
        found[step] = Artifact(empty.files, manifest)
        yield manifest_name(recipe.key), manifest.to_json().encode()
        for name, data in FILES.items():
            yield f"artifacts/{recipe.key}/attempts/{attempt}/{name}", data


def serve(seeds: int, latency_s: float) -> None:
    """Serves such a bucket until the input ends; prints its address once it is ready."""
    with tempfile.TemporaryDirectory() as folder, GCS() as gcs:
        gcs.bucket(BUCKET)
        for name, data in objects(graph_with(seeds), Path(folder)):
            gcs.store.put(BUCKET, name, Content.of(data))
        gcs.latency_s = latency_s
        print(gcs.url, flush=True)
        sys.stdin.read()


def measure(seeds: int, latency_ms: float, folder: Path) -> Iterator[list[str]]:
    """Yields a row per look: with an empty cache of manifests, then with a filled one.

    Args:
      seeds: number of seeds of the demo.
      latency_ms: latency of every request [ms].
      folder: folder for this machine's state.
    """
    words = ["--serve", "--seeds", str(seeds), "--latency-ms", str(latency_ms)]
    server = subprocess.Popen(
        [sys.executable, "-m", "perf.lookup", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE,
    )
    assert server.stdout is not None
    try:
        os.environ |= environment(server.stdout.readline().strip())
        os.environ["PARCEL_STATE"] = str(folder)
        graph = graph_with(seeds)
        for what in ("first", "again"):
            wall, cpu = time.perf_counter(), time.process_time()
            explained = Explanation(Store(f"gs://{BUCKET}").at_once(), graph)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            states = {verdict.state for verdict in explained.steps.values()}
            assert states == {"reused"}, states
            yield [what, str(len(graph.steps)), f"{wall:.1f}", f"{cpu:.1f}"]
    finally:
        server.communicate()


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        with contextlib.suppress(KeyboardInterrupt):
            serve(asked.seeds, asked.latency_ms / 1000)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(asked.seeds, asked.latency_ms, Path(folder)))
    print(table(["look", "artifacts", "wall [s]", "processor [s]"], rows))


if __name__ == "__main__":
    main()
