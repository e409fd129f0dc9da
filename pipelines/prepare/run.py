"""Raw corpus -> TFRecord dataset; `python -m pipelines.prepare --help`."""

import collections
import json
import operator
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.listing import Listed, list_work
from pipelines.prepare.shards import Job, ShardReport, read_report, rejects_file, watch
from pipelines.records.dataset import REJECTS, DatasetInfo, PartInfo
from pipelines.records.lines import sorted_lines
from pipelines.sources.corpus import Corpus, Spool
from pipelines.sources.registry import get

__all__ = ["PrepareConfig", "RejectRateError", "prepare"]

_ATTEMPTS = 2
"""Runs of the pipeline before a shard that never finished is an error."""

_WORK = ".work"
"""Folder of what is known so far, within the dataset's; gone when that is whole."""

_PROGRESS_INTERVAL = 0.2
"""Least time between two calls of `on_progress` [s]."""


class RejectRateError(RuntimeError):
    """More inputs were rejected than the config allows; `rejects.jsonl` says which and why."""


def prepare(
    config: PrepareConfig,
    *,
    source: str,
    split: str,
    data_root: str,
    out: str,
    path: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> DatasetInfo:
    """Writes the dataset of one split of one source into the empty folder `out`.

    The same inputs and config give the same bytes, whatever the runner and the workers.

    Args:
      config: how.
      source: name of the corpus layout.
      split: such as "train", or "train+val".
      data_root: the folder that holds the source's own.
      out: absent or empty; `dataset.json` appears last.
      path: the source's folder below `data_root`; None takes the usual one.
      on_progress: called with items done and items in all, from any thread.

    Raises:
      ValueError: if the source, the split or `out` is wrong.
      FileNotFoundError: if the corpus or an annotation file is missing, naming it.
      RejectRateError: if more than `config.max_reject_rate` of the inputs is rejected.
      RuntimeError: if inputs were lost.
    """
    get(source).parse(split)
    _claim(out)
    work = Path(out) / _WORK
    listed = _list(config, source, split, data_root, path or get(source).folder, work)
    job = Job(
        config=config,
        decode=config.decode_config(get(source), split),
        parts=listed.parts,
        data_root=os.path.abspath(data_root),
        out=os.path.abspath(out),
        work=os.path.abspath(work),
    )
    reports = _run_shards(job, listed.num_items, on_progress)
    info = _finish(job, f"{source}/{split}", reports, listed)
    shutil.rmtree(work)
    return info


def _list(
    config: PrepareConfig, source: str, split: str, data_root: str, path: str, work: Path
) -> Listed:
    """Lists the source into the folder `work`, which does not stay if that fails."""
    work.mkdir()
    try:
        spool = Spool(work / "unpacked")
        corpus = Corpus(
            data_root, path, spool, per_task=config.examples_per_task, tasks=config.tasks
        )
        return list_work(
            get(source), corpus, split, work, num_shards=config.num_shards, limit=config.limit
        )
    except (OSError, ValueError):
        shutil.rmtree(work)
        raise


def _claim(out: str) -> None:
    Path(out).mkdir(parents=True, exist_ok=True)
    if any(Path(out).iterdir()):
        left = ", which a run left unfinished" if (Path(out) / _WORK).is_dir() else ""
        raise ValueError(
            f"out must be an empty or a new folder, got {out}{left}; remove it, or choose another."
        )


def _run_shards(
    job: Job, num_items: int, on_progress: Callable[[int, int], None] | None
) -> list[ShardReport]:
    """Runs all shards, again those that a lost worker took with it, and returns their reports."""
    from pipelines.prepare.graph import run  # Beam takes two seconds to import.

    deadline = time.monotonic() + job.config.timeout_s
    missing = list(range(job.config.num_shards))
    watch(job.work, _counter(num_items, on_progress) if on_progress else None)
    try:
        for _ in range(_ATTEMPTS):
            run(job, missing, timeout_s=deadline - time.monotonic())
            missing = [shard for shard in missing if read_report(job.work, shard) is None]
            if not missing:
                break
    finally:
        watch(job.work, None)
    if missing:
        raise RuntimeError(f"{job.config.runner} never finished shards {missing}.")
    if on_progress:
        on_progress(num_items, num_items)
    reports = [read_report(job.work, shard) for shard in range(job.config.num_shards)]
    return [report for report in reports if report is not None]


def _counter(total: int, on_progress: Callable[[int, int], None]) -> Callable[[int], None]:
    """Returns a function that adds to a count, from any thread, and tells it now and then."""
    lock = threading.Lock()
    done, told = 0, 0.0

    def count(items: int) -> None:
        nonlocal done, told
        with lock:
            done = min(done + items, total)
            if time.monotonic() - told >= _PROGRESS_INTERVAL:
                told = time.monotonic()
                on_progress(done, total)

    return count


def _finish(job: Job, name: str, reports: list[ShardReport], listed: Listed) -> DatasetInfo:
    """Reconciles the counts, writes the rejects and, last, `dataset.json`."""
    accounted = sum(report.num_items for report in reports)
    if accounted != listed.num_items:
        raise RuntimeError(
            f"{name} lost inputs: {listed.num_items} listed, {accounted} accounted for."
        )
    shards = range(job.config.num_shards)
    files = [Path(job.work) / REJECTS, *(rejects_file(job.work, shard) for shard in shards)]
    with (Path(job.out) / REJECTS).open("w", encoding="utf-8") as file:
        order = operator.itemgetter("id", "stage", "reason")
        file.writelines(sorted_lines(files, order, job.work))
    num_inputs = listed.num_items + listed.num_rejects
    num_rejected = listed.num_rejects + sum(report.num_rejects for report in reports)
    _check_rejects(name, num_rejected, num_inputs, job)
    info = DatasetInfo(
        name=name,
        parts={
            part: PartInfo(
                shards=tuple(job.shard_name(part, shard) for shard in shards),
                num_records=tuple(reports[shard].num_records[part] for shard in shards),
            )
            for part in job.parts
        },
        num_inputs=num_inputs,
        num_rejected=num_rejected,
        image_px=job.config.image_px,
    )
    for abandoned in Path(job.out).glob("*partial"):
        abandoned.unlink()
    info.write(job.out)
    return info


def _check_rejects(name: str, num_rejected: int, num_inputs: int, job: Job) -> None:
    if not num_inputs:
        raise RejectRateError(f"{name} has no inputs.")
    rate = num_rejected / num_inputs
    if rate > job.config.max_reject_rate:
        path = os.path.join(job.out, REJECTS)
        with open(path, encoding="utf-8") as lines:
            rows = (json.loads(line) for line in lines)
            counts = collections.Counter((row["stage"], row["reason"]) for row in rows)
        (stage, reason), times = counts.most_common(1)[0]
        raise RejectRateError(
            f"{name}: {num_rejected} of {num_inputs} inputs were rejected ({rate:.1%}), "
            f"max_reject_rate is {job.config.max_reject_rate:.1%}; most often ({times} times) at "
            f"{stage}: {reason}. All are in {path}."
        )
