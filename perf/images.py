"""Cost of preparing images, against a bare pool of processes that does nothing else.

    python -m perf.images [--num 20000] [--rounds 3]

All take turns on a web corpus in img2dataset's layout, written first to a temporary folder:

    prepare   `python -m pipelines.prepare web train`, all of it: start, listing, Beam, finishing
    bucket    the same from and to a bucket on the loopback, `--latency-ms` a request, if asked for;
              its server runs on the same cores, and its processor time is not counted
    pool      decode, squash, encode and write by as many processes as `prepare` has threads
    one       the same in one process; on the smallest corpus only

`of pool` is the pool's time over the run's time in the same round, the median over the rounds; the
second one is for processor time. Memory is the most that the tree of processes held resident.
"""

import argparse
import dataclasses
import hashlib
import io
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from pipelines.records import example
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard

IMAGE_PX = 224
PER_TAR = 500
"""Images in one archive: few, so that the pool's processes end together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run: its wall time [s], processor time [s] and peak memory [MiB]."""

    wall: float
    cpu: float
    memory: float


def picture(rng: np.random.Generator, side: int = 640) -> Image.Image:
    """Returns a picture as hard to decode as a photograph: 1/f noise in colours, with edges."""
    pixels = np.zeros((side, side, 3), np.float32)
    for octave in range(2, 9):
        coarse = rng.normal(size=(2**octave, 2**octave, 3)) * 90 / 1.5**octave
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel].astype(np.float32))
            pixels[..., channel] += np.asarray(layer.resize((side, side), Image.Resampling.BICUBIC))
    for _ in range(12):
        (top, left), (height, width) = rng.integers(0, side, 2), rng.integers(20, side // 2, 2)
        pixels[top : top + height, left : left + width] += rng.normal(size=3) * 30
    return Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8))


def encodings(num_pictures: int, num_cuts: int) -> list[bytes]:
    """Returns JPEGs of 320 to 640 pixels a side, of qualities 80 to 94."""
    rng, made = np.random.default_rng(0), []
    for _ in range(num_pictures):
        whole = picture(rng)
        for _ in range(num_cuts):
            width, height = (int(v) for v in rng.integers(320, 641, 2))
            left, top = int(rng.integers(0, 641 - width)), int(rng.integers(0, 641 - height))
            buffer = io.BytesIO()
            cut = whole.crop((left, top, left + width, top + height))
            cut.save(buffer, "JPEG", quality=int(rng.integers(80, 95)))
            made.append(buffer.getvalue())
    return made


def write_tar(path: Path, images: Sequence[bytes], first: int) -> None:
    """Writes one archive of images, captions and metadata; keys count on from `first`."""
    with tarfile.open(path, "w") as archive:
        for number, image in enumerate(images, start=first):
            key = f"{number:09d}"
            metadata = f'{{"key": "{key}", "status": "success", "url": "https://a.org/{key}.jpg"}}'
            caption = f"picture {number} of a corpus from the web, told in a sentence"
            for name, data in (
                (f"{key}.jpg", image),
                (f"{key}.json", metadata.encode()),
                (f"{key}.txt", caption.encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_corpora(folder: Path, sizes: Sequence[int], images: Sequence[bytes]) -> list[Path]:
    """Writes one corpus, and returns a data root per size, which links to its first archives."""
    (folder / "tars").mkdir()
    tars = []
    for first in range(0, max(sizes), PER_TAR):
        tars.append(folder / f"tars/{first // PER_TAR:05d}.tar")
        numbers = range(first, min(first + PER_TAR, max(sizes)))
        write_tar(tars[-1], [images[n % len(images)] for n in numbers], first)
    roots = []
    for size in sizes:
        roots.append(folder / f"corpus-{size}")
        (roots[-1] / "web").mkdir(parents=True)
        for tar in tars[: -(-size // PER_TAR)]:
            os.link(tar, roots[-1] / "web" / tar.name)
    return roots


def bare_records(tar: Path) -> Iterator[bytes]:
    """Yields the record of every image of an archive, equal to those of `prepare`."""
    with tarfile.open(tar) as archive:
        content = {member.name: archive.extractfile(member) for member in archive}
        for name, file in content.items():
            caption = content[name.replace(".jpg", ".txt")]
            if file is None or caption is None or not name.endswith(".jpg"):
                continue
            data, small = file.read(), io.BytesIO()
            image = Image.open(io.BytesIO(data)).convert("RGB")
            image = image.resize((IMAGE_PX, IMAGE_PX), Image.Resampling.BILINEAR)
            image.save(small, "JPEG", quality=95, subsampling=0)
            record = Record(
                id=f"web/{tar.stem}/{name.removesuffix('.jpg')}#caption.en",
                images=(small.getvalue(),),
                prefix="caption en",
                suffixes=(caption.read().decode(),),
                task="caption",
                source=f"web/{tar.name}/{name}",
                source_sha256=hashlib.sha256(data).hexdigest(),
            )
            yield example.encode(record)


def write_bare(tar: Path, out: Path) -> int:
    """Writes the records of one archive, and returns how many there are."""
    return write_shard(out / f"{tar.stem}.tfrecord", bare_records(tar))


def bare(root: Path, out: Path, workers: int) -> None:
    """Writes a shard of records per archive."""
    out.mkdir()
    tasks = [(tar, out) for tar in sorted((root / "web").iterdir())]
    if workers == 1:
        for task in tasks:
            write_bare(*task)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.starmap(write_bare, tasks, chunksize=1)


def commands(workers: int, shard_by: str) -> dict[str, Callable[[Path, Path], list[str]]]:
    """Returns the commands that take turns, each given a data root and a folder to write to."""

    def command(*words: object) -> list[str]:
        return [sys.executable, *map(str, words)]

    def alone(root: Path, out: Path, workers: int) -> list[str]:
        return command("-m", "perf.images", "--bare", root, out, workers)

    def prepare(root: object, out: object) -> list[str]:
        return command(
            *("-m", "pipelines.prepare", "web", "train", "--data-root", root, "--out", out),
            *("--image-px", IMAGE_PX, "--num-workers", workers, "--shard-by", shard_by),
        )

    def in_bucket(root: Path, out: Path) -> list[str]:
        from perf.bucket import BUCKET  # Imported here, as `--bare` must not wait for it.

        return prepare(f"{BUCKET}/{root.name}", f"{BUCKET}/{out.parent.name}")

    return {
        "prepare": prepare,
        "bucket": in_bucket,
        "pool": lambda root, out: alone(root, out, workers),
        "one": lambda root, out: alone(root, out, 1),
    }


def timed(command: Sequence[str]) -> Run:
    """Runs a command to its end.

    Raises:
      RuntimeError: if it fails.
    """
    before, started = _cpu_of_children(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak, ended = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
    watcher.start()
    _, told = process.communicate()
    wall = time.perf_counter() - started
    ended.set()
    watcher.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {told.decode()[-500:]}")
    return Run(wall=wall, cpu=_cpu_of_children() - before, memory=peak[0] / 2**20)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _watch(pid: int, peak: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.1):
        try:
            root = psutil.Process(pid)
            total = 0
            for process in (root, *root.children(recursive=True)):
                total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        peak[0] = max(peak[0], total)


def measure(
    folder: Path,
    sizes: Sequence[int],
    images: Sequence[bytes],
    *,
    rounds: int,
    workers: int,
    latency_ms: float | None = None,
    shard_by: str = "id",
) -> list[list[str]]:
    """Returns the rows of the table.

    Args:
      folder: holds the corpora and what is made of them; removed by the caller.
      sizes: sizes of the corpora, ascending [images].
      images: encoded images, each used many times.
      rounds: runs of each, in turns that alternate in order.
      workers: threads of `prepare`, processes of the pool.
      latency_ms: latency of the bucket's answers; None measures no bucket [ms].
      shard_by: rule by which `prepare` assigns records to shards; see `PrepareConfig`.
    """
    roots = write_corpora(folder, sizes, images)
    if latency_ms is None:
        return _measure(folder, sizes, roots, {"bucket"}, rounds, commands(workers, shard_by))
    from infra.store.places import open_files
    from perf.bucket import BUCKET, bucket

    with bucket(latency_ms, folder / "state"):
        files = open_files(BUCKET)
        for root in roots:
            for tar in sorted((root / "web").iterdir()):
                files.put(f"{root.name}/web/{tar.name}", tar.read_bytes())
        return _measure(folder, sizes, roots, set(), rounds, commands(workers, shard_by))


def _measure(
    folder: Path,
    sizes: Sequence[int],
    roots: Sequence[Path],
    left_out: Set[str],
    rounds: int,
    made_by: dict[str, Callable[[Path, Path], list[str]]],
) -> list[list[str]]:
    rows = []
    for number, root in enumerate(roots):
        out_of_turn = left_out if number == 0 else left_out | {"one"}
        contenders = {k: v for k, v in made_by.items() if k not in out_of_turn}
        runs: dict[str, list[Run]] = {name: [] for name in contenders}
        for turn in range(rounds):
            for name in sorted(contenders, reverse=turn % 2 == 1):
                with tempfile.TemporaryDirectory(dir=folder) as out:
                    runs[name].append(timed(contenders[name](root, Path(out) / "out")))
        rows += [_row(sizes[number], name, own, runs["pool"]) for name, own in runs.items()]
    return rows


def _row(size: int, name: str, own: Sequence[Run], pool: Sequence[Run]) -> list[str]:
    pairs, middle = list(zip(own, pool, strict=True)), statistics.median
    wall = middle(run.wall for run in own)
    return [
        str(size),
        name,
        f"{wall:.1f}",
        f"{size / wall:.0f}",
        f"{middle(other.wall / run.wall for run, other in pairs):.2f}",
        f"{middle(run.cpu for run in own):.1f}",
        f"{middle(other.cpu / run.cpu for run, other in pairs):.2f}",
        f"{max(run.memory for run in own):.0f}",
    ]


HEADER = ["images", "what", "s", "images/s", "of pool", "CPU s", "of pool", "MiB"]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table, or runs the bare form of one corpus."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--num", type=int, default=20_000, help="images; also a quarter and twice")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--workers", type=int, default=2, help="threads, or processes")
    parser.add_argument("--sizes", type=int, nargs="+", help="images, instead of those three")
    parser.add_argument("--shard-by", default="id", help="how `prepare` shards: id or archive")
    parser.add_argument("--latency-ms", type=float, help="measures a bucket, too, such as 20")
    parser.add_argument("--bare", nargs=3, metavar=("ROOT", "OUT", "WORKERS"), help="run only that")
    args = parser.parse_args(words)
    if args.bare:
        root, out, workers = args.bare
        bare(Path(root), Path(out), int(workers))
        return
    from perf.timing import table  # It imports JAX, which `--bare` must not wait for.

    images = encodings(min(400, max(args.sizes or [args.num])), 5)
    sizes = sorted(args.sizes or [args.num // 4, args.num, 2 * args.num])
    how = {"rounds": args.rounds, "workers": args.workers, "latency_ms": args.latency_ms}
    how["shard_by"] = args.shard_by
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), sizes, images, **how)
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
