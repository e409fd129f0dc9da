"""Pace of preparing on this machine, beside a bare pool of processes that does the same work.

    python -m perf.prepare --pictures 2500
    python -m perf.prepare --pictures 2500 10000 20000 --rounds 3

Distinct JPEG pictures of 640 x 480 are drawn into tar archives, or into a folder with a list of
rows (`--layout rows`). Then two programs take turns, each in a fresh process with an empty work
folder:

    graph   what a study does: the Beam graph on the local runner
    pool    `multiprocessing.Pool`, forked, which maps the graph's own functions over the same units

Both must give the same digests. A row of the table has the least wall time, the median of the
processor time (of all processes, from their start to their end) and of the peak of memory (the sum
of the processes' proportional set sizes). A ratio is pool / graph for times, so that 1 is the
pool's pace, and graph / pool for memory.
"""

import argparse
import dataclasses
import gc
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from infra.store.digest import value_sha256
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import PrepareJob, WorkFolder, group_units, plan_job
from pipelines.prepare.listing import cut_shard, list_units
from pipelines.prepare.run import make_dataset
from pipelines.prepare.shards import join_shard, write_piece
from pipelines.video.client import VideoChild

PREPARE_PROGRAMS = ("graph", "pool")
_SIZE = (640, 480)
_QUALITY = 90
_PER_ARCHIVE = 500
_SAMPLE_EVERY = 0.1
"""Time between two looks at the memory [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCost:
    """Cost of one run of a program.

    Attributes:
      wall: time from the start of its process to the end [s].
      cpu: processor time of all its processes [s].
      memory: largest sum of the processes' proportional set sizes [bytes].
      digest: digest of the files of the dataset that it made [hex].
    """

    wall: float
    cpu: float
    memory: int
    digest: str


def draw_corpus(folder: Path, num_pictures: int, layout: str, size: tuple[int, int] = _SIZE) -> str:
    """Draws a corpus of distinct captioned pictures; returns the name of its source."""
    if layout == "archives":
        (folder / "web").mkdir(parents=True)
        for first in range(0, num_pictures, _PER_ARCHIVE):
            with tarfile.open(folder / f"web/{first // _PER_ARCHIVE:05d}.tar", "w") as archive:
                for number in range(first, min(first + _PER_ARCHIVE, num_pictures)):
                    for extension, data in (
                        ("jpg", _draw_picture(number, size)),
                        ("txt", f"picture {number}".encode()),
                    ):
                        member = tarfile.TarInfo(f"{number:08d}.{extension}")
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))
        return "web"
    (folder / "web/pictures").mkdir(parents=True)
    with (folder / "web/rows.jsonl").open("w") as rows:
        for number in range(num_pictures):
            name = f"pictures/{number:08d}.jpg"
            (folder / "web" / name).write_bytes(_draw_picture(number, size))
            print(json.dumps({"image": name, "caption": f"picture {number}"}), file=rows)
    return "web"


def _draw_picture(number: int, size: tuple[int, int]) -> bytes:
    """Returns a JPEG of soft shapes with some grain, about as large as a photograph's."""
    rng = np.random.default_rng(number)
    shapes = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
    grain = Image.fromarray(rng.integers(0, 256, (size[1] // 2, size[0] // 2, 3), np.uint8))
    picture = Image.blend(shapes.resize(size, Image.Resampling.BICUBIC), grain.resize(size), 0.08)
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=_QUALITY)
    return encoded.getvalue()


def run_graph(config: PrepareConfig, source: str, data_root: str, work: str) -> str:
    """Prepares a corpus as a study does; returns the digest of the dataset's files [hex]."""
    dataset = make_dataset(config, source=source, split="train", data_root=data_root, work=work)
    return value_sha256({name: file.sha256 for name, (_, file) in dataset.files.items()})


def run_pool(config: PrepareConfig, source: str, data_root: str, work: str) -> str:
    """Does the same work, with the graph's functions, in a pool of `num_workers` processes."""
    job, units = plan_job(config, source=source, split="train", data_root=data_root, work=work)
    lists = list(enumerate(group_units(units)))
    shards = range(config.num_shards)
    context = multiprocessing.get_context("fork")
    with context.Pool(config.num_workers, _start_worker, (job,)) as pool:
        totals = pool.starmap(_list_units, lists, chunksize=1)
        parts = frozenset().union(*(total.parts for total in totals))
        cuts = pool.starmap(_cut_shard, [(shard, len(lists)) for shard in shards], chunksize=1)
        pieces = [(shard, piece) for shard in shards for piece in range(cuts[shard])]
        reports = pool.starmap(_write_piece, pieces, chunksize=1)
        parts = frozenset().union(*(report.parts for report in reports))
        pool.starmap(_join_shard, [(s, cuts[s], parts) for s in shards], chunksize=1)
        pool.close()
        pool.join()
    # All shards are there, marked as `make_dataset` marks the work of its code, so that only the
    # balance and the description are left to make.
    WorkFolder(job).files.put("code", f"{job.code} {job.decoder}".encode())
    return run_graph(config, source, data_root, work)


_worker: tuple[WorkFolder, VideoChild]
"""What a process of the pool holds while it lives."""


def _start_worker(job: PrepareJob) -> None:
    global _worker
    _worker = WorkFolder(job), VideoChild(job.config.video_limits())


def _list_units(number: int, units: list[str]):
    return list_units(_worker[0], number, units)


def _cut_shard(shard: int, num_lists: int) -> int:
    return cut_shard(_worker[0], shard, num_lists)


def _write_piece(shard: int, piece: int):
    return write_piece(_worker[0], shard, piece, _worker[1])


def _join_shard(shard: int, num_pieces: int, parts: frozenset[str]) -> None:
    join_shard(_worker[0], shard, num_pieces, parts)


def run_counted(program: str, config: PrepareConfig, source: str, data_root: Path) -> RunCost:
    """Runs a program in a fresh process with an empty work folder, and returns its cost.

    Raises:
      RuntimeError: if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
        request = json.dumps([program, dataclasses.asdict(config), source, str(data_root), folder])
        began = os.times().elapsed
        process = subprocess.Popen(
            [sys.executable, "-m", "perf.prepare", "--request", request],
            stdout=subprocess.PIPE,
            text=True,
        )
        ended, peak = threading.Event(), [0]

        def watch_memory() -> None:
            while not ended.wait(_SAMPLE_EVERY):
                peak[0] = max(peak[0], _proportional_set(process.pid))

        watcher = threading.Thread(target=watch_memory)
        watcher.start()
        assert process.stdout is not None
        digest = process.stdout.read().strip()
        # `wait4` counts the process and all descendants that were waited for.
        _, status, usage = os.wait4(process.pid, 0)
        wall = os.times().elapsed - began
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"{program} ended with code {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return RunCost(wall=wall, cpu=cpu, memory=peak[0], digest=digest)


def _proportional_set(pid: int) -> int:
    """Returns the proportional set size of a process and its descendants [bytes]."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:  # It ended meanwhile.
                continue
    except psutil.Error:
        pass
    return total


def measure_prepare(
    sizes: Sequence[int],
    layout: str,
    rounds: int,
    config: PrepareConfig,
    folder: Path,
    picture: tuple[int, int] = _SIZE,
) -> Iterator[str]:
    """Yields a line per run, then the table.

    Raises:
      RuntimeError: if the programs give different bytes.
    """
    from perf.timing import aligned_table  # Imports JAX, which would count as the programs' own.

    rows = []
    for num_pictures in sizes:
        data_root = folder / f"{layout}-{num_pictures}"
        if not data_root.exists():
            draw_corpus(data_root, num_pictures, layout, picture)
        costs: dict[str, list[RunCost]] = {program: [] for program in PREPARE_PROGRAMS}
        for _ in range(rounds):
            for program in PREPARE_PROGRAMS:
                cost = run_counted(program, config, "web", data_root)
                costs[program].append(cost)
                yield (
                    f"{num_pictures} {program}: {cost.wall:.1f} s, processor {cost.cpu:.1f} s, "
                    f"memory {cost.memory / 2**20:.0f} MiB, {cost.digest[:12]}"
                )
        if len({cost.digest for runs in costs.values() for cost in runs}) != 1:
            raise RuntimeError(f"{num_pictures} pictures gave different bytes in different runs")
        graph, pool = (_summarize_prepare_runs(costs[program]) for program in PREPARE_PROGRAMS)
        figures = [f"{graph.wall:.1f}", f"{pool.wall:.1f}", f"{pool.wall / graph.wall:.2f}"]
        figures += [f"{graph.cpu:.1f}", f"{pool.cpu:.1f}", f"{pool.cpu / graph.cpu:.2f}"]
        figures += [f"{cost.memory / 2**20:.0f}" for cost in (graph, pool)]
        rows.append([num_pictures, *figures, f"{graph.memory / pool.memory:.2f}"])
    header = ["pictures", "wall [s]", "pool's", "pace"]
    header += ["processor [s]", "pool's", "pace", "memory [MiB]", "pool's", "ratio"]
    yield aligned_table(header, rows)


def _summarize_prepare_runs(costs: Sequence[RunCost]) -> RunCost:
    return RunCost(
        wall=min(cost.wall for cost in costs),
        cpu=statistics.median(cost.cpu for cost in costs),
        memory=round(statistics.median(cost.memory for cost in costs)),
        digest=costs[0].digest,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=int, nargs="+", default=[2500])
    parser.add_argument("--layout", choices=("archives", "rows"), default="archives")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="keeps the drawn pictures for another run")
    parser.add_argument("--request", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.request:
        program, config, *places = json.loads(options.request)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in config.items()
        }
        config = PrepareConfig(**fields)
        print({"graph": run_graph, "pool": run_pool}[program](config, *places))
        gc.freeze()  # As the command `python -m pipelines.prepare` does at its end.
        return
    config = PrepareConfig(num_workers=options.workers)
    with tempfile.TemporaryDirectory(prefix="parcel-") as temporary:
        folder = options.folder or Path(temporary)
        for line in measure_prepare(
            options.pictures, options.layout, options.rounds, config, folder
        ):
            print(line, flush=True)


if __name__ == "__main__":
    main()
