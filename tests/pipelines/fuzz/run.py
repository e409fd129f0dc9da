"""Fuzzes data preparation: each broken file must become a record or a reject, no crash, no hang.

    python -m tests.pipelines.fuzz.run [--images 5000] [--videos 500] [--containers 300] [--seed 0]

Mutants are made from valid files, always the same ones, and prepared with the command that users
type. Images and videos share folders; each broken shard or table has a data root to itself, since
it may fail the whole command with a one-line error that names it. `lost` counts files that are
neither a record nor a reject, or are both; `failed` counts those one-line errors, and `crash` any
other failure but a hang.
"""

import argparse
import collections
import contextlib
import dataclasses
import io
import multiprocessing
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tests.pipelines.fuzz import mutants

TIMEOUT_S = 300.0
"""After this, preparing one folder hangs [s]; a clip has ten."""

PER_FOLDER = 250


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """Outcome of preparing the mutants of one kind of file.

    Attributes:
      files: number of mutants.
      records: number of records made from them.
      reasons: number of rejects by class of reason.
      failed: folders refused with one line that names the file.
      lost: files that are neither a record nor a reject, or are both.
      crashes: folders that failed in any other way.
      hangs: folders that took longer than `TIMEOUT_S`.
      wall: time for all folders [s].
      memory: peak of the process so far, plus that of its largest child [MiB].
      told: folder and error message of every crash.
    """

    files: int = 0
    records: int = 0
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failed: int = 0
    lost: int = 0
    crashes: int = 0
    hangs: int = 0
    wall: float = 0.0
    memory: float = 0.0
    told: list[str] = dataclasses.field(default_factory=list)

    def row(self, kind: str) -> list[object]:
        """Returns the row of the table."""
        return [
            kind, self.files, self.records, self.reasons.total(), self.failed, self.lost,
            self.crashes, self.hangs, f"{self.wall:.0f}", f"{self.memory:.0f}",
        ]  # fmt: skip


HEADER = [
    "kind", "files", "records", "rejects", "failed", "lost", "crash", "hang", "s", "MiB",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Told:
    """Result of the command for one folder: exit code, errors, peak memory [MiB]."""

    code: int
    error: str
    memory: float


def _prepare(source: str, root: str, out: str) -> _Told:
    """Runs the command, in a process that may be killed."""
    from pipelines.prepare.__main__ import main

    words = [source, "train", "--data-root", root, "--out", out, "--image-px", "32"]
    words += ["--max-reject-rate", "1", "--num-frames", "2", "--clip-cpu-s", "10"]
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    told = [line for line in error.getvalue().splitlines() if not line.endswith(" items")]
    usage = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    memory = sum(one.ru_maxrss for one in usage) / 1024
    return _Told(code=code, error="\n".join(told), memory=memory)


class _Worker:
    """A process that prepares, a fresh one after every death."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def prepare(self, source: str, root: Path) -> _Told:
        """Prepares `root` and returns the result.

        Raises:
          TimeoutError: if it hangs.
          BrokenProcessPool: if its process dies; exceptions of the command pass through.
        """
        self._pool = self._pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            told = self._pool.submit(_prepare, source, str(root), str(root / "out"))
            return told.result(TIMEOUT_S)
        except (TimeoutError, BrokenProcessPool):
            self.close()
            raise

    def close(self) -> None:
        """Ends the process, whatever it does."""
        pool, self._pool = self._pool, None
        for process in list(pool._processes.values()) if pool else ():
            process.kill()
        if pool:
            pool.shutdown()


def run(worker: _Worker, source: str, roots: Sequence[Path], *, named: bool) -> Outcome:
    """Prepares every data root, and returns what became of what lies in them.

    Args:
      worker: prepares them.
      source: "images", "videos" or "web".
      roots: of mutants below a folder named as the source.
      named: whether every file is one input, whose id ends in its name.
    """
    outcome, started = Outcome(), time.monotonic()
    for root in roots:
        files = [p.name for p in (root / source).iterdir() if p.name.startswith("m-")]
        outcome.files += len(files)
        try:
            told = worker.prepare(source, root)
        except TimeoutError:
            outcome.hangs += 1
        except Exception as error:
            outcome.crashes += 1
            outcome.told.append(f"{root}: {type(error).__name__}: {str(error)[-200:]}")
        else:
            outcome.memory = max(outcome.memory, told.memory)
            _count(outcome, root, source, files, told, named=named)
    outcome.wall = time.monotonic() - started
    return outcome


def _count(
    outcome: Outcome, root: Path, source: str, files: list[str], told: _Told, *, named: bool
) -> None:
    from pipelines.records.dataset import Dataset

    if told.code:
        one_line = "\n" not in told.error and told.error.startswith("error: ")
        if one_line and (not named and (files[0] in told.error or "no inputs" in told.error)):
            outcome.failed += 1
        else:
            outcome.crashes += 1
            outcome.told.append(f"{root}: {told.error[-300:]}")
        return
    dataset = Dataset(root / "out")
    rejects = list(dataset.rejects())
    ids = [r.id for r in dataset.records()] + [r.id for r in rejects]
    outcome.records += dataset.info.num_records
    outcome.reasons.update(_class(reject.reason) for reject in rejects)
    if named:
        found = collections.Counter(identity.rpartition("/")[2] for identity in ids)
        outcome.lost += sum(found[name] != 1 for name in files)
    else:
        outcome.lost += len(ids) - len(set(ids))


def _class(reason: str) -> str:
    """Returns the reason without what is one file's own."""
    head, _, rest = re.sub(r"0x\w+|\d+", "N", reason).partition(": ")
    return f"{head}: {rest.partition(':')[0]}" if head == "undecodable" else head[:40]


def fuzz(
    folder: Path, *, num_images: int, num_videos: int, num_containers: int, seed: int
) -> Iterator[tuple[str, Outcome]]:
    """Yields every kind of file and what became of its mutants."""
    shown, clips, packed = mutants.images(), mutants.videos(), mutants.containers()
    groups = (
        ("images", shown, num_images, PER_FOLDER),
        ("videos", clips, num_videos, PER_FOLDER),
        ("web", packed, num_containers, 1),
    )
    everything = [data for _, kinds, _, _ in groups for seeds in kinds.values() for data in seeds]
    for source, kinds, num, per_folder in groups:
        worker = _Worker()
        for kind, seeds in kinds.items():
            roots: list[Path] = []
            made = mutants.mutants(seeds, everything, -(-num // len(kinds)), seed)
            for number, (name, data) in enumerate(made):
                if number % per_folder == 0:
                    roots.append(folder / f"{kind}-{len(roots):04d}")
                    (roots[-1] / source).mkdir(parents=True)
                    if source == "web":
                        mutants.write_named(roots[-1] / source)
                (roots[-1] / source / f"m-{number:05d}-{name}.{kind}").write_bytes(data)
            yield kind, run(worker, source, roots, named=source != "web")
        worker.close()


def main(words: Sequence[str] | None = None) -> None:
    """Prints what became of the mutants, and why they were rejected."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    for name, default in (("images", 5000), ("videos", 500), ("containers", 300)):
        parser.add_argument(f"--{name}", type=int, default=default, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="other mutants")
    args = parser.parse_args(words)
    from perf.timing import aligned_table

    rows, reasons, told = [], [], []
    nums = {f"num_{name}": getattr(args, name) for name in ("images", "videos", "containers")}
    with tempfile.TemporaryDirectory() as folder:
        for kind, outcome in fuzz(Path(folder), **nums, seed=args.seed):
            rows.append(outcome.row(kind))
            reasons += [[kind, count, why] for why, count in outcome.reasons.most_common()]
            told += outcome.told
    print(aligned_table(HEADER, rows), "", sep="\n")
    for kind, count, why in reasons:
        print(f"{kind:8}{count:6}  {why}")
    print(*told, sep="\n")


if __name__ == "__main__":
    main()
