"""A Ray cluster, started on demand, that runs generator functions and streams what they yield."""

import contextlib
import importlib.util
import itertools
import math
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from infra.processes.signals import is_stopping
from infra.ray.driver import connect_pair
from infra.store.sources import lay_out

_START_TIMEOUT = 180.0
"""For the driver to come up; a loaded two-core machine takes 20 s [s]."""
_STOP_TIMEOUT = 5.0
"""For the driver to end its cluster politely; then it is killed, and the cluster with it [s]."""
_PLACE_WITHIN = 60.0
"""For a node that is large enough for a task to come up, say from an autoscaler [s]."""
_GPU_MEMORY = 0.9
"""Of a GPU's memory, shared by the tasks on it; the rest is for CUDA itself [fraction]."""


class WorkerLost(RuntimeError):
    """The process running a task died; its work is not committed and can be tried again."""


class Cluster:
    """Where steps with JAX run: a cluster already there, or one started here on first use.

    If a cluster started here is damaged (its head or raylet dies), everything that runs on it is
    lost, and the next task starts a fresh one.

    To a cluster already there the code travels with the first task: its nodes need the libraries,
    and no checkout. What a worker reads of its node's environment (where its state folder is, how
    it reaches the store) is that node's own.

    Args:
      address: a running cluster's address, "host:port" or "auto"; None starts one on this machine.
      num_cpus: cores of a cluster started here; None takes all.
      num_gpus: GPUs of a cluster started here; None takes all that JAX here can use.
      code: path -> bytes of the sources that workers of a cluster already there run.
      place_within: how long a task may wait for a node that is large enough for it [s].
    """

    def __init__(
        self,
        *,
        address: str | None,
        num_cpus: int | None,
        num_gpus: int | None = None,
        code: Mapping[str, bytes] | None = None,
        place_within: float = _PLACE_WITHIN,
    ) -> None:
        self.address = address
        self.num_cpus = num_cpus or len(os.sched_getaffinity(0))
        self._num_gpus = num_gpus
        self._code = code or {}
        self._place_within = place_within
        self._starting = threading.Lock()
        self._driver: _Driver | None = None
        self._stopped = False

    def start(self) -> "_Driver":
        """Returns the driver of a cluster that runs, started if need be; safe from many threads.

        Raises:
          RuntimeError: if there is no cluster to be had, or a signal or `stop` came.
        """
        with self._starting:
            if self._stopped or is_stopping():
                raise RuntimeError("the run is being stopped; nothing starts on Ray any more.")
            if self._driver is None or not self._driver.is_alive():
                with tempfile.TemporaryDirectory(prefix="parcel-code-") as folder:
                    self._driver = _Driver(self._connection(Path(folder)))
            return self._driver

    def cores(self) -> int:
        """Returns the cores of all nodes together; of a cluster started here without starting it.

        Raises:
          RuntimeError: as `start` does.
        """
        if self.address is None:
            return self.num_cpus
        return sum(node.get("CPU", 0) for node in self.start().nodes)

    def stop(self) -> None:
        """Ends a cluster that was started here, or leaves it; safe to call twice, at any time."""
        self._stopped = True
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop()

    def stream(
        self,
        function: Callable[..., Iterator[Any]],
        *args: Any,
        num_cpus: int,
        name: str,
        num_gpus: float = 0.0,
    ) -> Iterator[Any]:
        """Runs a generator function on a worker and yields what it yields, as it comes.

        The worker's XLA uses as many threads as the task has cores, so that results do not depend
        on what else runs. Nothing is retried here: the caller decides, and commits are fenced.

        A cluster started here gives a task what there is. On one already there a task gets what
        it asks for, or does not run.

        Args:
          function: what to run, with `args`.
          args: its arguments, pickled.
          num_cpus: cores.
          name: as Ray and errors show it.
          num_gpus: GPUs, where the cluster has any; below 1 several tasks share one, infinity
            takes all of one machine. Where it has TPUs instead, a task that wants GPUs takes all
            chips of one host.

        Raises:
          WorkerLost: if the worker's process died, or the cluster under it.
          RuntimeError: if no node is large enough.
        """
        driver = self.start()
        most = {name: max(node.get(name, 0) for node in driver.nodes) for name in ("GPU", "TPU")}
        tpus = most["TPU"] if num_gpus and not most["GPU"] else 0
        if self.address is None:
            num_cpus = min(num_cpus, self.num_cpus)
        if self.address is None or not most["GPU"] or math.isinf(num_gpus):
            num_gpus = min(num_gpus, most["GPU"])
        options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": {"TPU": tpus} if tpus else {},
            "name": name,
            "runtime_env": {"env_vars": self._environment(num_cpus, num_gpus, tpus)},
        }
        payload = cloudpickle.dumps((function, args))
        yield from driver.stream(payload, options, name, self._place_within)

    def _connection(self, folder: Path) -> dict[str, Any]:
        """Returns how to reach or start the cluster; `folder` is for the code to send."""
        if self.address is not None:
            # These bytes, not what lies in the checkout by now: the keys of the run's steps name
            # them. And as the working folder, which workers look in before anything of their node.
            lay_out(self._code, folder)
            return {"address": self.address, "runtime_env": {"working_dir": str(folder)}}
        return {
            "address": "local",
            "num_cpus": self.num_cpus,
            "num_gpus": usable_gpus(self._num_gpus),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "object_store_memory": 100 * 1024**2,  # Only progress and keys pass.
        }

    def _environment(self, num_cpus: int, num_gpus: float, tpus: int) -> dict[str, str]:
        multi = f"--xla_cpu_multi_thread_eigen={'true' if num_cpus > 1 else 'false'}"
        return {
            "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), multi]).strip(),
            "NPROC": str(num_cpus),
            "OMP_NUM_THREADS": str(num_cpus),
            # Every step takes its buffers from the system anew: in pages of 4 kB that was 43,000
            # page faults and half of the time of a small step, in huge pages it is 600.
            "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            # What is set on this machine says nothing about the devices of others.
            **devices(num_gpus, tpus, os.environ if self.address is None else {}),
        }


def devices(num_gpus: float, tpus: int, own: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that keeps JAX to a task's devices; the user's own settings win.

    Which of them a task sees is Ray's to say (CUDA_VISIBLE_DEVICES, TPU_VISIBLE_CHIPS).

    Args:
      num_gpus: GPUs of the task; below 1 it shares one.
      tpus: TPU chips of the task.
      own: the environment of the user.
    """
    found = {"JAX_PLATFORMS": "cuda,cpu" if num_gpus else "tpu,cpu" if tpus else "cpu"}
    if num_gpus:
        share = math.floor(100 * _GPU_MEMORY * min(num_gpus, 1)) / 100
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.2f}"
    return {name: own.get(name, value) for name, value in found.items()}


def usable_gpus(asked: int | None) -> int | None:
    """Returns how many GPUs a cluster here has: as asked, or None, all that Ray finds.

    Where nothing was asked for and JAX has no CUDA, or the user keeps it off GPUs, there are none.
    """
    if asked is not None:
        return asked
    platforms = os.environ.get("JAX_PLATFORMS", "cuda")
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    has_cuda = any(importlib.util.find_spec(name) for name in plugins)
    return None if has_cuda and {"cuda", "gpu"} & set(platforms.split(",")) else 0


class _Driver:
    """The process that talks to Ray, see `infra.ray.driver`; it lives as long as its cluster."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self._link, theirs = connect_pair()
        self._sending = threading.Lock()
        self._streams: dict[int, queue.SimpleQueue[tuple]] = {}
        self._registering = threading.Lock()
        self._alive = True
        self._numbers = itertools.count()
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            # A task without GPUs sees none.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
        }
        if connection["address"] == "local":
            # Ray thinks of a machine alone only on Windows and macOS. There it listens on
            # loopback; elsewhere on every interface, unless it is told so.
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            environment["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE", "disabled")
        try:
            # A session of its own: Ctrl-C at the terminal is for the command.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "infra.ray.driver", str(theirs)],
                pass_fds=[theirs],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self.nodes: list[dict[str, int]] = []
        try:
            self._link.send(connection)
            if not self._link.poll(_START_TIMEOUT):
                raise RuntimeError(f"Ray did not start within {_START_TIMEOUT:.0f} s.")
            what, answer = self._link.recv()
        except (EOFError, OSError) as error:
            self.stop()
            raise WorkerLost("the Ray cluster ended while it started.") from error
        except BaseException:
            self.stop()
            raise
        if what == "failed":
            self.stop()
            raise RuntimeError(f"Ray did not start: {answer}")
        self.nodes = answer
        threading.Thread(target=self._receive, daemon=True).start()

    def is_alive(self) -> bool:
        """Returns whether the driver lives, and so its cluster."""
        return self._alive

    def stop(self) -> None:
        """Ends the driver, politely first."""
        try:
            self._send("stop")
            self._process.wait(_STOP_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._lose_all()

    def stream(
        self, payload: bytes, options: dict[str, Any], name: str, place_within: float
    ) -> Iterator[Any]:
        """Passes on the items of a task; see `Cluster.stream`."""
        number, items = next(self._numbers), queue.SimpleQueue[tuple]()
        with self._registering:
            if not self._alive:
                raise WorkerLost(f"the worker of {name!r} died with its cluster.")
            self._streams[number] = items
        ended = False
        try:
            self._send("run", number, payload, options, place_within)
            while True:
                what, *rest = items.get()
                if what == "item":
                    kind, value, *more = pickle.loads(rest[0])
                    if kind == "error":
                        ended = True
                        value.add_note(more[0])
                        raise value
                    yield value
                    continue
                ended = True
                if what == "end":
                    return
                if what == "lost":
                    raise WorkerLost(f"the worker of {name!r} {rest[0]}")
                raise RuntimeError(f"{name!r} could not run: {rest[0]}")
        except OSError as error:
            if self._alive:
                raise
            raise WorkerLost(f"the worker of {name!r} died with its cluster.") from error
        finally:
            self._streams.pop(number, None)
            if not ended and self._alive:  # Whoever reads gave up: so does the worker.
                with contextlib.suppress(OSError):
                    self._send("cancel", number)

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._link.send(message)

    def _receive(self) -> None:
        """Hands what the driver says to the stream it is about, until the driver is gone."""
        while True:
            try:
                what, number, *rest = self._link.recv()
            except (EOFError, OSError):
                break
            if (items := self._streams.get(number)) is not None:
                items.put((what, *rest))
        self._lose_all()

    def _lose_all(self) -> None:
        with self._registering:
            self._alive = False
            for items in self._streams.values():
                items.put(("lost", "died with its cluster."))
        self._process.poll()
