"""Cost of preparing a dataset: the estimate from a sample, against the real cost.

    python -m perf.sampling [--count 50 200]

Three corpora are written to a temporary folder: archives of pictures of 320 to 640 px, drawn charts
with their questions, and clips of 1280x720. Each is sampled, then prepared completely in the same
process; only Beam's import is left out, which a study pays once. Both costs are processor time,
which other load on the machine affects least.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from perf.images import encodings, write_corpora
from perf.timing import table
from perf.video import write_clip
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare
from pipelines.prepare.sample import Estimate, sample
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus

SOURCES = ("web", "chartqa", "videos")

HEADER = [
    "source",
    "inputs",
    "count",
    "sampled in core-s",
    "inputs said",
    "GB said",
    "GB",
    "core-s said",
    "core-s",
    "wall s",
]


def write_sources(root: Path, *, images: int, charts: int, clips: int, seconds: int) -> None:
    """Writes the three corpora into the folder `root`.

    Args:
      root: folder to create.
      images: number of images, in archives of 500.
      charts: number of charts, with about three questions each.
      clips: number of clips: ten different ones under many names.
      seconds: length of each clip [s].
    """
    root.mkdir()
    drawn = CorpusConfig(num_web=0, num_charts=charts, num_scenes=0, num_videos=0, num_defects=0)
    render_corpus(drawn, str(root / "drawn"))
    (root / "drawn/chartqa").rename(root / "chartqa")
    (corpus,) = write_corpora(root, [images], encodings(20, 5))
    (corpus / "web").rename(root / "web")
    (root / "videos").mkdir()
    for number in range(clips):
        path = root / f"videos/{number:05d}.mp4"
        if number < 10:
            key_frames = (250, 60)[number % 2]
            write_clip(path, seconds=seconds, key_frames=key_frames, width=1280, height=720)
        else:
            os.link(root / f"videos/{number % 10:05d}.mp4", path)


def measure(root: Path, source: str, counts: Sequence[int], config: PrepareConfig) -> list[list]:
    """Returns a row per sample of a source: its estimate, and the real cost."""
    from pipelines.prepare import graph  # noqa: F401  Its import is not what is measured.

    found = []
    for count in counts:
        began = _core_s()
        said = sample(
            config,
            source=source,
            split="train",
            data_root=str(root),
            scratch=str(root),
            count=count,
        )
        found.append((count, _core_s() - began, said))
    with tempfile.TemporaryDirectory(dir=root) as out:
        began, wall = _core_s(), time.monotonic()
        info = prepare(config, source=source, split="train", data_root=str(root), out=f"{out}/new")
        took, wall = _core_s() - began, time.monotonic() - wall
        suffixes = (".tfrecord", ".idx")
        size = sum(p.stat().st_size for p in Path(out, "new").iterdir() if p.suffix in suffixes)
    return [
        [
            source,
            info.num_inputs,
            count,
            f"{spent:.1f}",
            _ends(said.num_inputs, 1, 0),
            _ends(said.num_bytes, 1e9, 3),
            f"{size / 1e9:.3f}",
            _ends(said.core_s, 1, 1),
            f"{took:.1f}",
            f"{wall:.1f}",
        ]
        for count, spent, said in found
    ]


def _ends(ends: Estimate, unit: float, digits: int) -> str:
    first, last = (f"{end / unit:.{digits}f}" for end in ends)
    return first if first == last else f"{first}-{last}"


def _core_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--count", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--charts", type=int, default=1000)
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--seconds", type=int, default=10, help="length of a clip")
    parser.add_argument("--workers", type=int, default=2, help="threads")
    args = parser.parse_args(words)
    rows: list[list] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "corpora")
        sizes = {name: getattr(args, name) for name in ("images", "charts", "clips", "seconds")}
        write_sources(root, **sizes)
        for source in SOURCES:
            rows += measure(root, source, args.count, PrepareConfig(num_workers=args.workers))
            print(table(HEADER, rows), flush=True)


if __name__ == "__main__":
    main()
