"""Memory of the process that prepares a dataset, as a corpus grows.

    python -m perf.archives --archives 200 2000

`python -m pipelines.prepare` reads archives of 500 images of 64 px, twenty different ones under
many names. Its threads list, decode and write in the same process, so their memory is included. The
table has the most that it holds resident while it lists, writes pieces and joins shards.
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from perf.images import PER_TAR, write_tar
from perf.timing import table

_DIFFERENT = 20
_PX = 64
_LOOK_EVERY = 0.5
"""Time between two measurements of the memory [s]."""

PHASES = {"shards": "joining", "pieces": "writing", "lists": "listing"}
"""Folder of receipts -> phase that runs once the folder has a receipt; the last phase is first."""


def write_archives(root: Path, num: int, per_tar: int = PER_TAR) -> None:
    """Writes a web corpus of `num` archives."""
    rng = np.random.default_rng(0)
    (root / "web").mkdir(parents=True)
    for number in range(num):
        tar = root / f"web/{number:05d}.tar"
        if number >= _DIFFERENT:
            os.link(root / f"web/{number % _DIFFERENT:05d}.tar", tar)
            continue
        images = []
        for _ in range(per_tar):
            coarse = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
            out = io.BytesIO()
            Image.fromarray(coarse).resize((_PX, _PX)).save(out, "JPEG", quality=90)
            images.append(out.getvalue())
        write_tar(tar, images, first=0)


def measure(root: Path, out: Path, *, num_shards: int, workers: int) -> list[str]:
    """Returns the time of a run [s], and its peak memory in each phase and over all [MiB].

    Raises:
      RuntimeError: if the run fails.
    """
    words = ["--data-root", str(root), "--out", str(out), "--image-px", str(_PX)]
    words += ["--num-shards", str(num_shards), "--num-workers", str(workers)]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.prepare", "web", "train", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    most = dict.fromkeys(("start", *reversed(PHASES.values())), 0)
    while process.poll() is None:
        try:
            held = psutil.Process(process.pid).memory_info().rss
        except psutil.NoSuchProcess:
            break
        phase = _phase(out)
        most[phase] = max(most[phase], held)
        time.sleep(_LOOK_EVERY)
    if process.wait():
        raise RuntimeError(f"preparing {root} ended with code {process.returncode}.")
    told = [*most.values(), max(most.values())]
    return [f"{time.monotonic() - began:.0f}", *(f"{held / 2**20:.0f}" for held in told)]


def _phase(out: Path) -> str:
    for folder, phase in PHASES.items():
        if any((out / ".work" / folder).glob("*.json")):
            return phase
    return "start"


HEADER = ["archives", "s", "start", *reversed(PHASES.values()), "most MiB"]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--archives", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2, help="threads")
    args = parser.parse_args(words)
    rows = []
    for num in args.archives:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "corpus")
            write_archives(root, num)
            sizes = {"num_shards": args.shards, "workers": args.workers}
            rows.append([str(num), *measure(root, Path(folder, "out"), **sizes)])
            print(table(HEADER, rows), flush=True)


if __name__ == "__main__":
    main()
