"""Worker processes of a local run: their errors, their deaths, and who uses them."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipelines.prepare import steps
from pipelines.prepare.graph import runner_options
from pipelines.prepare.job import PrepareJob, WorkFolder, parse_receipt, plan_job
from pipelines.prepare.run import PrepareConfig
from pipelines.prepare.worker_pool import (
    WorkerLostError,
    WorkerPool,
    local_workers,
    pool_of,
    uses_processes,
)
from pipelines.records.dataset import Dataset

CONFIG = PrepareConfig(image_px=16, num_shards=2, num_workers=2)


@pytest.fixture
def job(tmp_path: Path, encoded) -> PrepareJob:
    (tmp_path / "root/images").mkdir(parents=True)
    for i in range(3):
        (tmp_path / f"root/images/{i}.jpg").write_bytes(encoded(40, 30, seed=i))
    root, work = str(tmp_path / "root"), str(tmp_path / "work")
    return plan_job(CONFIG, source="images", split="train", data_root=root, work=work)[0]


def processes_of(pool: WorkerPool) -> list[psutil.Process]:
    return psutil.Process(pool.pid).children()


def test_the_steps_run_in_other_processes_until_the_end(job: PrepareJob):
    with local_workers(job):
        pool = pool_of(job.work)
        assert pool is not None
        (totals,) = pool.submit(steps.list_step, (0, [""])).result()
        assert totals.num_items == 3
        assert pool.submit(steps.cut_step, 0, 1, totals).result() == [(0, 0)]
        workers = processes_of(pool)
        assert len(workers) == 2
    assert pool_of(job.work) is None
    assert not any(process.is_running() for process in workers)
    assert (Path(job.work) / "lists/00000.json").exists()


def test_an_error_of_a_step_comes_back_in_one_line_and_is_noted(job: PrepareJob):
    with contextlib.closing(WorkerPool(job, 1)) as pool:
        with pytest.raises(RuntimeError, match=r"^\[Errno 2\] No such file .*todo/00007-00000"):
            pool.submit(steps.write_step, (7, 0)).result()
        note = parse_receipt(WorkFolder(job).receipt("error.json"))
        assert "FileNotFoundError" in note["kinds"]
        assert pool.submit(steps.list_step, (0, [""])).result()[0].num_items == 3


def test_a_worker_with_other_code_refuses(job: PrepareJob):
    other = dataclasses.replace(job, code="other")
    refusal = pytest.raises(RuntimeError, match="different version of the pipelines' code")
    with contextlib.closing(WorkerPool(other, 1)) as pool, refusal:
        pool.submit(steps.list_step, (0, [""])).result()
    assert "different version" in parse_receipt(WorkFolder(job).receipt("error.json"))["text"]


def test_a_worker_with_another_decoder_refuses(job: PrepareJob):
    other = dataclasses.replace(
        job, decoder="decord"
    )  # Where the run began; here PyAV is asked for.
    refusal = pytest.raises(RuntimeError, match="pyav, not with decord")
    with contextlib.closing(WorkerPool(other, 1)) as pool, refusal:
        pool.submit(steps.list_step, (0, [""])).result()


def test_a_worker_that_is_killed_is_reported_at_once(job: PrepareJob):
    with contextlib.closing(WorkerPool(job, 1)) as pool:
        pool.submit(steps.list_step, (0, [""])).result()
        (worker,) = processes_of(pool)
        worker.kill()
        for _ in range(2):  # Nor does the next request wait for it.
            with pytest.raises(WorkerLostError, match="in the middle of its work"):
                pool.submit(steps.list_step, (0, [""])).result(timeout=60)


def test_what_a_killed_worker_had_another_one_does(job: PrepareJob):
    with contextlib.closing(WorkerPool(job, 2)) as pool:
        pool.submit(steps.list_step, (0, [""])).result()
        first, second = processes_of(pool)
        first.kill()
        # Of many requests none fails: the lost worker is not asked a second time.
        waiting = [pool.submit(steps.list_step, (0, [""])) for _ in range(8)]
        assert len({repr(each.result(timeout=60)) for each in waiting}) == 1
        second.kill()
        with pytest.raises(WorkerLostError):
            pool.submit(steps.list_step, (0, [""])).result(timeout=60)


def test_only_local_runs_without_workers_of_beam_use_processes(job: PrepareJob):
    def options(**changes) -> tuple[bool, int, str]:
        changed = dataclasses.replace(job, config=dataclasses.replace(CONFIG, **changes))
        given = runner_options(changed).get_all_options()
        mode = given["direct_running_mode"]
        return uses_processes(changed.config), given["direct_num_workers"], mode

    assert options() == (True, 1, "in_memory")
    assert options(num_workers=1) == (False, 1, "in_memory")
    threads = ("--direct_running_mode=multi_threading",)
    assert options(runner_options=threads) == (False, 2, "multi_threading")
    assert not uses_processes(dataclasses.replace(CONFIG, runner="FlinkRunner"))


@pytest.fixture
def large(tmp_path: Path, encoded) -> list[str]:
    """The command that prepares pictures that take some seconds."""
    (tmp_path / "root/images").mkdir(parents=True)
    (tmp_path / "root/images/0.jpg").write_bytes(encoded(3000, 3000))
    for i in range(1, 30):
        os.link(tmp_path / "root/images/0.jpg", tmp_path / f"root/images/{i}.jpg")
    words = [sys.executable, "-m", "pipelines.prepare", "images", "train", "--image-px", "16"]
    return [*words, "--data-root", str(tmp_path / "root"), "--out", str(tmp_path / "out")]


def writing_workers(process: subprocess.Popen, out: Path) -> list[psutil.Process]:
    """Waits until records are written; returns the processes below a command."""
    while process.poll() is None and not any(out.glob(".work/pieces/*.partial")):
        time.sleep(0.01)
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_piece_and_no_record(large: list[str], tmp_path: Path):
    process = subprocess.Popen(large, stderr=subprocess.PIPE, text=True)
    workers = writing_workers(process, tmp_path / "out")
    next(worker for worker in workers if worker.ppid() != process.pid).kill()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert Dataset(tmp_path / "out").info.num_records == 30
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_no_process(
    large: list[str], tmp_path: Path, number: signal.Signals
):
    process = subprocess.Popen(large, stderr=subprocess.DEVNULL)
    workers = writing_workers(process, tmp_path / "out")
    assert len(workers) == 3
    process.send_signal(number)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
