"""A Ray cluster on this machine that runs generator functions and streams what they yield."""

import contextlib
import itertools
import os
import pickle
import queue
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from infra.cores import machine_cores
from infra.processes.module import module_command, python_path
from infra.processes.signals import is_stopping
from infra.ray.devices import usable_gpus, worker_environment
from infra.ray.driver import driver_connection
from infra.ray.errors import RayWorkerLostError

_START_TIMEOUT = 180.0
"""Longest start of the driver; a loaded two-core machine takes 20 s [s]."""
_STOP_TIMEOUT = 5.0
"""Time for the driver to shut its cluster down, before both are killed [s]."""


_MAX_TMPDIR = 23
"""Longest folder of temporary files that leaves room for the names of Ray's sockets [bytes]."""


class Cluster:
    """A cluster on this machine, started when it is first used.

    If it is damaged (its head or raylet dies, or its folder of temporary files is deleted),
    everything that runs on it is lost, and the next task starts a fresh one.

    Args:
      num_cpus: number of its cores; None takes all of the machine.
      num_gpus: number of its GPUs; None takes all that JAX here can use.
    """

    def __init__(self, *, num_cpus: int | None, num_gpus: int | None = None) -> None:
        self.num_cpus = num_cpus or machine_cores()
        self._num_gpus = num_gpus
        self._starting = threading.Lock()
        self._driver: _DriverProcess | None = None
        self._stopped = False

    def start(self) -> "_DriverProcess":
        """Returns the driver of the running cluster, starting one if needed; thread-safe.

        Raises:
          RuntimeError: if no cluster starts, or a signal or `stop` came.
        """
        with self._starting:
            if self._stopped or is_stopping():
                raise RuntimeError("the run is being stopped; nothing starts on Ray any more.")
            if self._driver is None or not self._driver.is_alive():
                self._driver = _DriverProcess(
                    {
                        "address": "local",
                        "num_cpus": self.num_cpus,
                        "num_gpus": usable_gpus(self._num_gpus),
                        "include_dashboard": False,
                        "_node_ip_address": "127.0.0.1",
                        "object_store_memory": 100 * 1024**2,  # Only progress and keys pass.
                    }
                )
            return self._driver

    def share(self, num_cpus: int, num_gpus: float) -> tuple[int, float, int]:
        """Returns the cores, GPUs and TPU chips of a task that asks for some of the first two."""
        resources = self.start().resources
        tpus = int(resources["TPU"]) if num_gpus and not resources["GPU"] else 0
        # Never more than there is: Ray would wait for ever for a node that is large enough.
        return min(num_cpus, self.num_cpus), min(num_gpus, resources["GPU"]), tpus

    def stop(self) -> None:
        """Ends the cluster; safe to call twice, at any time."""
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

        Nothing is retried here: the caller decides, and commits are fenced. A task that asks for
        more than the cluster has gets all that it has.

        Args:
          function: generator function to run, with `args`.
          args: arguments of the function, which are pickled.
          num_cpus: number of cores.
          name: name that Ray and errors show.
          num_gpus: number of GPUs, if there are any; below 1 several tasks share one, infinity
            takes all. If there are TPUs instead, a task that wants GPUs takes all chips.

        Raises:
          RayWorkerLostError: if the worker's process died, or the cluster under it.
        """
        driver = self.start()
        num_cpus, num_gpus, tpus = self.share(num_cpus, num_gpus)
        options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": {"TPU": tpus} if tpus else {},
            "name": name,
            "runtime_env": {"env_vars": worker_environment(num_cpus, num_gpus, tpus, os.environ)},
        }
        payload = cloudpickle.dumps((function, args, os.getcwd()))
        # One socket serves all tasks at a time; each message has the number of its stream:
        #
        #   this thread              socket                   driver
        #   run 7              ->                       ->    starts the task on a worker
        #                            (item, 7, bytes)   <-    the task yielded something
        #                            (item, 8, bytes)   <-    of another thread's task
        #                            (end, 7)           <-    the generator is exhausted
        #
        # `_DriverProcess._receive_driver_messages` sorts them into one queue per stream.
        number, items = driver.open_stream(name)
        is_over = False
        try:
            driver.send("run", number, payload, options)
            while True:
                message, *details = items.get()
                if message == "item":
                    # The task's own exception is an item, too, so that it arrives as itself, with
                    # the worker's traceback as a note.
                    kind, value, *notes = pickle.loads(details[0])
                    if kind == "error":
                        is_over = True
                        value.add_note(notes[0])
                        raise value
                    yield value
                    continue
                is_over = True
                if message == "end":
                    return
                if message == "lost":
                    raise RayWorkerLostError(f"the worker of {name!r} {details[0]}")
                raise RuntimeError(f"{name!r} could not run: {details[0]}")
        except OSError as error:
            if driver.is_alive():
                raise
            raise RayWorkerLostError(f"the worker of {name!r} died with its cluster.") from error
        finally:
            driver.close_stream(number, is_over=is_over)


class _DriverProcess:
    """The process that talks to Ray, see `infra.ray.driver`; it lives as long as its cluster."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self._link, driver_socket = driver_connection()
        self._sending = threading.Lock()
        self._streams: dict[int, queue.SimpleQueue[tuple]] = {}
        self._registering = threading.Lock()
        self._alive = True
        self._numbers = itertools.count()
        self._folder = _private_folder()
        connection = {**connection, "_temp_dir": str(self._folder / "ray")}
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(),
            "PYTHONSAFEPATH": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            # A task without GPUs sees none.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
            # Makes Ray listen on loopback only, as it does by default on Windows and macOS, where
            # it assumes a single machine. Elsewhere it would listen on every interface.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            # Every process of the machine reaches its loopback: only this cluster's know its token.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            # Ray's pages of metrics ask for none, so there are none: neither a node's, nor those of
            # two processes of the head, which go on without a port that no machine has.
            "RAY_enable_metrics_collection": "0",
            "AUTOSCALER_METRIC_PORT": "-1",
            "DASHBOARD_METRIC_PORT": "-1",
        }
        try:
            # In its own session, so that Ctrl-C at the terminal does not reach it.
            self._process = subprocess.Popen(
                module_command("infra.ray.driver", str(driver_socket)),
                # Ray puts the driver's folder first on the path of its workers, and its own
                # processes begin in it: this one is empty.
                cwd=self._folder,
                pass_fds=[driver_socket],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(driver_socket)
        self.resources: dict[str, int] = {}
        try:
            self._link.send(connection)
            if not self._link.poll(_START_TIMEOUT):
                raise RuntimeError(f"Ray did not start within {_START_TIMEOUT:.0f} s.")
            message, answer = self._link.recv()
        except (EOFError, OSError) as error:
            self.stop()
            raise RayWorkerLostError("the Ray cluster ended while it started.") from error
        except BaseException:
            self.stop()
            raise
        if message == "failed":
            self.stop()
            # Ray gives a node 30 s to start, which may be too short if many start at once. It
            # counts as a lost worker, since a later try finds the machine less busy.
            slow = "timed out during startup" in answer
            raise (RayWorkerLostError if slow else RuntimeError)(f"Ray did not start: {answer}")
        self.resources = answer
        threading.Thread(target=self._receive_driver_messages, daemon=True).start()

    def is_alive(self) -> bool:
        """Returns whether the driver is alive, and so its cluster."""
        return self._alive

    def stop(self) -> None:
        """Asks the driver to end, and kills it if it does not."""
        try:
            # Asked first, so that Ray can shut its processes down.
            self.send("stop")
            self._process.wait(_STOP_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._fail_all_streams()

    def open_stream(self, name: str) -> tuple[int, "queue.SimpleQueue[tuple]"]:
        """Returns the number of a new task, and the queue of what the driver says of it.

        Raises:
          RayWorkerLostError: if the cluster has died.
        """
        number, items = next(self._numbers), queue.SimpleQueue[tuple]()
        with self._registering:
            # Under the lock with which a dying cluster ends its streams: one that came later would
            # wait for ever.
            if not self._alive:
                raise RayWorkerLostError(f"the worker of {name!r} died with its cluster.")
            self._streams[number] = items
        return number, items

    def close_stream(self, number: int, *, is_over: bool) -> None:
        """Forgets a task, and cancels it unless it is over."""
        self._streams.pop(number, None)
        if not is_over and self._alive:  # The reader gave up.
            with contextlib.suppress(OSError):
                self.send("cancel", number)

    def send(self, *message: Any) -> None:
        """Sends the driver an order; see `infra.ray.driver.main`."""
        with self._sending:
            self._link.send(message)

    def _receive_driver_messages(self) -> None:
        """Passes each message of the driver to its stream, until the driver has ended."""
        while True:
            try:
                message, number, *details = self._link.recv()
            except (EOFError, OSError):
                break
            # None if its reader has given up.
            if (items := self._streams.get(number)) is not None:
                items.put((message, *details))
        self._fail_all_streams()

    def _fail_all_streams(self) -> None:
        """Marks the cluster as dead, and ends every stream with `RayWorkerLostError`."""
        with self._registering:
            self._alive = False
            for items in self._streams.values():
                items.put(("lost", "died with its cluster."))
        self._process.poll()
        shutil.rmtree(self._folder, ignore_errors=True)


def _private_folder() -> Path:
    """Makes a folder for Ray's files, which nobody else can enter.

    Ray opens its own folder to everybody, so that folder lies within this one.
    """
    usual = tempfile.gettempdir()
    place = usual if len(os.fsencode(usual)) <= _MAX_TMPDIR else "/tmp"
    try:
        return Path(tempfile.mkdtemp(prefix="parcel-", dir=place))
    except OSError:  # The folder was cleaned away.
        return Path(tempfile.mkdtemp(prefix="parcel-", dir="/tmp"))
