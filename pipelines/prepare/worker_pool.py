"""Worker processes of this machine, which do the work of a graph that runs in this process.

Beam's own workers are threads, which share one interpreter, or processes that import Beam each and
hang when one of them is killed. Here Beam hands out the work, and processes without Beam do it:

    Beam ─▶ step, element ─▶ queue ─▶ whichever process is free ─▶ results ─▶ Beam
"""

import contextlib
import os
import pickle
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from infra.processes.module import module_command
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import PrepareJob
from pipelines.video.client import child_environment

LOCAL = "FnApiRunner"
"""Beam's runner on this machine."""

_WORKERS = ("environment_type", "direct_running_mode", "direct_num_workers")
"""Beam options by which a user chooses Beam's own workers."""

_pools: "dict[str, WorkerPool]" = {}
"""Work folder -> the pool of its run. The steps look here: Beam makes them from copies."""


class WorkerLostError(RuntimeError):
    """The runner failed or stalled, or a worker ended, and no worker reported a reason."""


def uses_processes(config: PrepareConfig) -> bool:
    """Returns whether a run's work is done by a `WorkerPool`."""
    has_own = any(name in option for option in config.runner_options for name in _WORKERS)
    return config.runner == LOCAL and config.num_workers > 1 and not has_own


def pool_of(work: str) -> "WorkerPool | None":
    """Returns the pool of the run in a work folder; None if this process has none."""
    return _pools.get(work)


@contextlib.contextmanager
def local_workers(job: PrepareJob) -> Iterator[None]:
    """Keeps a pool for a run, if it uses one; its processes end with the block."""
    if not uses_processes(job.config):
        yield
        return
    with contextlib.closing(WorkerPool(job, job.config.num_workers)) as pool:
        _pools[job.work] = pool
        try:
            yield
        finally:
            del _pools[job.work]


class WorkerPool:
    """Processes that do the steps of one run.

    Args:
      job: the run.
      num_workers: number of processes that work.
    """

    def __init__(self, job: PrepareJob, num_workers: int) -> None:
        from pipelines.prepare import worker_process  # Imports the decoders; only named here.

        pickled = pickle.dumps(job)
        pairs = [socket.socketpair() for _ in range(num_workers)]
        sockets = [theirs.fileno() for _, theirs in pairs]
        # A program with a clean start, not a fork of this process, whose threads may hold locks.
        self._process = subprocess.Popen(
            module_command(worker_process.__name__, *map(str, sockets)),
            stdin=subprocess.PIPE,
            env=child_environment(),
            pass_fds=sockets,
        )
        self._connections = [Connection(ours.detach()) for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()
        self._num_alive, self._lock = num_workers, threading.Lock()
        self._free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        for connection in self._connections:
            self._free.put(connection)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="worker")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # The first request shows that it has ended.
            self._process.stdin.write(pickled)
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Id of the process whose children are the workers."""
        return self._process.pid

    def submit(self, step: Any, *arguments: Any) -> Future[list[Any]]:
        """Returns the results of a step to come, as soon as a worker has made them.

        A worker that ends in the middle of it is not used again, and another tries once more. The
        future raises RuntimeError if the step fails, in one line, and WorkerLostError if both
        workers ended, or there is none left.
        """
        return self._threads.submit(self._exchange, step, arguments)

    def close(self) -> None:
        """Ends the processes, also in the middle of their work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        # A worker that outlived the process which ends it would keep its thread waiting.
        for connection in self._connections:
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(connection.fileno())) as s,
            ):
                s.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def _exchange(self, step: Any, arguments: tuple[Any, ...]) -> list[Any]:
        for is_last in (False, True):
            connection = self._free.get()
            try:
                connection.send((step, arguments))
                error, results = connection.recv()
            except (EOFError, OSError):
                if self._is_last_lost(connection) or is_last:
                    break
                continue
            self._free.put(connection)
            if error:
                raise RuntimeError(error)
            return results
        raise WorkerLostError("a worker process ended in the middle of its work") from None

    def _is_last_lost(self, connection: Connection) -> bool:
        """Notes that a worker is lost; returns whether no other is left."""
        with self._lock:
            self._num_alive -= 1
            if self._num_alive > 0:
                return False
            # Put back, so that later requests fail as well, where they would wait without end.
            self._free.put(connection)
            return True
