"""Ray Jobs on an existing cluster: commands that outlive the process that submitted them.

A job's id is the name of its work, chosen by the submitter, and the number of the attempt. Ray
accepts an id only once. So of two processes that submit the same work at the same time, one starts
it and the other finds it under way, as does a process that comes back after the first was killed.
Nothing is kept here: the cluster knows all jobs.

All requests go by HTTP to the job server of the cluster's head (the dashboard). No process here is
part of the cluster, since such a process ends when the head does.
"""

import collections
import contextlib
import dataclasses
import logging
import math
import os
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from infra.processes.signals import wait_if_stopping
from infra.ray.devices import worker_environment
from infra.ray.errors import RayWorkerLostError

Device = Literal["cpu", "gpu", "tpu"]

_SILENCE = 90.0
"""Time without an answer after which a job server is given up [s]; its jobs may well continue."""
_NODES_MAX_AGE = 1.0
"""Time for which one answer about the nodes serves all callers [s]."""
_REQUESTS = 50.0
"""Highest rate of questions about jobs, over all waiting threads [1/s]."""
_HOST_CHIPS = 4
"""Chips of a TPU host, assumed while the cluster has none: an autoscaler will bring one."""
_RUN = "run"
"""Key in a job's metadata: the run that submitted it."""
_MAX_EARLIER = 8
"""Most earlier attempts that a new one is told of, to take their leases at once. Leases of still
earlier ones have lapsed, and a long wait for a free node makes hundreds of attempts."""
_API_SERVER = "RAY_API_SERVER_ADDRESS"
"""Variable that Ray's clients go by, whatever address they are given."""
_NAMING = threading.Lock()
"""Held while the variable is set, since it is the whole process's."""
_RESOURCES = ("CPU", "GPU", "TPU")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayJob:
    """One attempt at some work.

    Attributes:
      id: Ray's submission id: the work's name and the attempt.
      cluster: session of the cluster; each session counts attempts from 1.
      attempt: number of the attempt, counted from 1.
      reattached: whether it was under way already.
    """

    id: str
    cluster: str
    attempt: int
    reattached: bool = dataclasses.field(default=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the job, unique among the jobs of all clusters."""
        return f"{self.id}.{self.cluster}"

    @property
    def earlier_attempts(self) -> list[str]:
        """The names of the last few attempts before this one; all of them have ended."""
        work, first = self.id.rpartition("-")[0], max(1, self.attempt - _MAX_EARLIER)
        return [f"{work}-{n}.{self.cluster}" for n in range(first, self.attempt)]


class JobServer:
    """The job server of a cluster.

    The code is sent with each job: nodes need the libraries, but no checkout. The environment of a
    job (the place of its state folder, the access to the store) is that of its node.

    Args:
      address: "http://host:8265" of the job server; or "host:port" of the head or "auto", from
        which it is looked up.
      code: path -> bytes of the sources that jobs run.
      device: kind of device for steps; None takes what the nodes have when a job is submitted.
      node_wait: longest wait of a job for a node that is large enough for it [s].
    """

    def __init__(
        self,
        address: str,
        *,
        code: Mapping[str, bytes],
        device: Device | None = None,
        node_wait: float,
    ) -> None:
        self._address, self._code = address, code
        self._device, self._node_wait = device, node_wait
        self._locked = threading.Lock()
        self._client: Any = None
        self._state: Any = None
        self._cluster = ""
        self._folder = tempfile.TemporaryDirectory(prefix="parcel-code-")
        self._nodes: tuple[float, dict[str, dict[str, int]]] = (-math.inf, {})
        self._waiting: dict[str, float] = {}
        self._attempts: dict[str, int] = {}
        self._ended = threading.Event()

    def submit(
        self,
        work: str,
        command: Callable[[RayJob], str],
        *,
        num_cpus: int,
        num_gpus: float = 0.0,
        run: str | None = None,
    ) -> RayJob:
        """Returns the job that does some work: one under way, or a new one.

        Args:
          work: name of the work, the same for everybody who needs it.
          command: returns the command of a job, called before it is submitted; `python` in it is
            the node's.
          num_cpus: cores of one node.
          num_gpus: GPUs of one node, if the cluster has any; below 1 several jobs share one. If it
            has TPUs instead, a job that wants GPUs takes all chips of one host.
          run: run that submits the job, see `run_jobs`.

        Raises:
          RuntimeError: if there is no job server, or it refuses the job.
          RayWorkerLostError: if the job server does not answer any more.
        """
        self._connect()
        # Ray refuses an id that was used before, which makes the id a lock. Three runs of one
        # study, the first of which is killed:
        #
        #   run 1   cell-1: unknown, submitted          killed; the job goes on without it
        #   run 2   cell-1: running, so followed        sees it fail
        #   run 3   cell-1: ended.  cell-2: unknown, submitted
        #
        # If two runs submit cell-2 at once, one is told "already exists": it is the same job.
        last, info = self._last_attempt(work)
        if info is not None and not info.status.is_terminal() and not self._node_is_gone(info):
            return dataclasses.replace(last, reattached=True)
        # Named before it is submitted, since the command holds the name: reports go under it.
        job = self._ray_job_of_attempt(work, last.attempt + 1)
        resources = self._ray_job_resources(num_cpus, num_gpus)
        gpus, tpus = resources["GPU"], int(resources["TPU"])
        request = {
            "submission_id": job.id,
            "entrypoint": command(job),
            "runtime_env": {
                "working_dir": str(self._archive),
                "env_vars": worker_environment(num_cpus, gpus, tpus, {}),
            },
            # Noted here because Ray does not report the resources that a job waits for.
            "metadata": {name: str(number) for name, number in resources.items()}
            | ({_RUN: run} if run else {}),
            "entrypoint_num_cpus": num_cpus,
            "entrypoint_num_gpus": gpus or None,
            "entrypoint_resources": {"TPU": tpus} if tpus else None,
        }
        wait_if_stopping()  # A job that was just stopped must not be started again.
        try:
            self._request_with_retries(lambda: self._client.submit_job(**request))
        except RuntimeError as error:
            # Submitted by another process, or by an earlier try whose reply was lost.
            if "already exists" not in str(error):
                raise
        self._attempts[work] = job.attempt
        return job

    def end_reason(self, job: RayJob) -> str | None:
        """Returns why a job has ended; None while it runs or waits for its turn.

        Raises:
          RuntimeError: if no node of the cluster is large enough for it; it is then stopped.
          RayWorkerLostError: if the job server does not answer any more.
        """
        info = self._job_info(job)
        wait_if_stopping()  # A job that this process cancels must not be reported as lost.
        if info is None:
            return "is not known to the cluster"
        if info.status.is_terminal():
            self._waiting.pop(job.id, None)
            return f"{info.status.value.lower()}: {info.message}"
        if self._node_is_gone(info):
            return "died with its node"
        # Waiting for its turn is fine; waiting for a node that will never come is not.
        if info.status == "PENDING":
            self._check_feasible(job, info)
        return None

    def timed_out_unscheduled(self, job: RayJob) -> bool:
        """Whether Ray gave a job up because no node was free for 15 minutes."""
        info = self._job_info(job)
        return info is not None and info.error_type == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"

    def wait(self, waiting: int) -> None:
        """Waits until it is time to ask again.

        Args:
          waiting: number of threads that wait.

        Raises:
          RuntimeError: if `close` was called.
        """
        self._pause_job_requests(max(1.0, waiting / _REQUESTS))

    def stop(self, jobs: Sequence[RayJob]) -> None:
        """Stops jobs: their processes are asked to end, and killed three seconds later."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(self._stop_ray_job, jobs))

    def run_jobs(self, run: str) -> list[RayJob]:
        """Returns all jobs that a run submitted and that have not ended.

        Raises:
          RuntimeError: if there is no job server.
          RayWorkerLostError: if the job server does not answer any more.
        """
        self._connect()
        return [
            self._ray_job_of_attempt(*job.submission_id.rsplit("-", 1))
            for job in self._request_with_retries(lambda: self._client.list_jobs())
            if (job.metadata or {}).get(_RUN) == run and not job.status.is_terminal()
        ]

    def close(self) -> None:
        """Wakes waiting threads and deletes the local copy of the code; jobs continue to run."""
        self._ended.set()
        self._folder.cleanup()

    def _connect(self) -> None:
        with self._locked:
            if self._client is not None:
                return
            url = _job_server_url(self._address)
            from ray.job_submission import JobSubmissionClient
            from ray.util.state import StateApiClient

            for name in ("", ".dashboard.modules.job.sdk", ".dashboard.modules.dashboard_sdk"):
                logging.getLogger(f"ray{name}").setLevel(logging.ERROR)
            try:
                with _api_server_variable(url):
                    client = JobSubmissionClient(url)
                    answer = client._do_request("GET", "/api/version")
                    self._cluster = answer.json()["session_name"]
                    self._state = StateApiClient(address=url)
            except (ConnectionError, RuntimeError, OSError, ValueError, KeyError) as error:
                raise RuntimeError(
                    f"compute.ray_address {self._address!r} has no job server that answers at "
                    f"{url} ({type(error).__name__}): start the head with "
                    f"--include-dashboard=true, and open its port to this machine."
                ) from error
            # Jobs run these bytes, which the keys of the run's steps name, and not what is in the
            # checkout by now. A job imports from its working folder before anything of its node.
            self._write_archive()
            self._client = client

    @property
    def _archive(self) -> Path:
        return Path(self._folder.name) / "code.zip"

    def _write_archive(self) -> None:
        """Writes the code to an archive, whose bytes are the same wherever the code is."""
        # Ray names what it uploads by a digest, which it computes anew for every job. Of a folder
        # it would read, and look for ignored names among, hundreds of files; of an archive, one.
        with zipfile.ZipFile(self._archive, "w") as archive:
            for name, data in sorted(self._code.items()):
                # An entry without a date has a fixed one.
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)

    def _ray_job_of_attempt(self, work: str, attempt: int | str) -> RayJob:
        return RayJob(id=f"{work}-{attempt}", cluster=self._cluster, attempt=int(attempt))

    def _last_attempt(self, work: str) -> tuple[RayJob, Any]:
        """Returns the last attempt at some work, and the server's record of it.

        If there is none, the attempt is number 0, and its record None.
        """

        def ask(attempt: int) -> Any:
            return self._job_info(self._ray_job_of_attempt(work, attempt))

        # A job that waits for a free node is attempted every 15 minutes, hundreds of times a week.
        # Attempts have no gaps, so doubled steps lead beyond the last of them, and halved ones back
        # to it:
        #
        #   attempts 1 ... 9    1, 3, 7 exist; 15 does not; 11 does not; 9 exists; 10 does not
        #
        # The next time, the search begins where this one has ended.
        last, step = self._attempts.get(work, 0), 1
        info = ask(last) if last else None
        if info is None:
            last = 0  # A head that was started again counts from 1 again.
        while (later := ask(last + step)) is not None:
            last, info, step = last + step, later, 2 * step
        while step > 1:
            step //= 2
            if (later := ask(last + step)) is not None:
                last, info = last + step, later
        return self._ray_job_of_attempt(work, last), info

    def _ray_job_resources(self, num_cpus: int, num_gpus: float) -> dict[str, float]:
        """Returns the numbers of CPUs, GPUs and TPU chips that a job takes."""
        nodes = self._alive_nodes().values()
        most = {name: max((node[name] for node in nodes), default=0) for name in _RESOURCES}
        # The cluster's nodes decide, and not this machine, which may be a laptop.
        device = self._device or ("gpu" if most["GPU"] else "tpu" if most["TPU"] else "cpu")
        if device == "gpu" and math.isinf(num_gpus):
            num_gpus = max(1, most["GPU"])
        wants_accelerator = bool(num_gpus)
        return {
            "CPU": num_cpus,
            "GPU": num_gpus if device == "gpu" else 0,
            "TPU": (most["TPU"] or _HOST_CHIPS) if device == "tpu" and wants_accelerator else 0,
        }

    def _job_info(self, job: RayJob) -> Any:
        """Returns the server's record of a job; None if it has none of that id."""
        try:
            return self._request_with_retries(lambda: self._client.get_job_info(job.id))
        except RuntimeError as error:
            if "status code 404" in str(error):
                return None
            raise

    def _node_is_gone(self, info: Any) -> bool:
        """Whether a job's node is gone; Ray reports some of these jobs much later, or never."""
        return bool(info.driver_node_id) and info.driver_node_id not in self._alive_nodes()

    def _alive_nodes(self) -> dict[str, dict[str, int]]:
        """Returns node id -> total CPUs, GPUs and TPU chips, for every living node."""
        from ray.util.state.common import ListApiOptions, StateResource

        with self._locked:
            updated, nodes = self._nodes
            # Many waiting threads ask about their jobs' nodes; one answer serves all of them.
            if time.monotonic() - updated > _NODES_MAX_AGE:
                options_type: Any = ListApiOptions
                options = options_type(limit=10_000)
                node_states = self._request_with_retries(
                    lambda: self._state.list(
                        StateResource.NODES, options=options, raise_on_missing_output=False
                    )
                )
                nodes = {
                    node.node_id: {
                        name: int(node.resources_total.get(name, 0)) for name in _RESOURCES
                    }
                    for node in node_states
                    if node.state == "ALIVE"
                }
                self._nodes = time.monotonic(), nodes
            return nodes

    def _check_feasible(self, job: RayJob, info: Any) -> None:
        """Stops a job that no node could run, even if idle, once it has waited long enough.

        Raises:
          RuntimeError: if it was stopped.
        """
        requested = {name: float(info.metadata[name]) for name in _RESOURCES}
        nodes = self._alive_nodes().values()
        # Compared with what the nodes have in total: a node that is only busy will be free again.
        if any(all(node[name] >= n for name, n in requested.items()) for node in nodes):
            self._waiting.pop(job.id, None)
            return
        since = self._waiting.setdefault(job.id, time.monotonic())
        if time.monotonic() - since < self._node_wait:
            return
        self._stop_ray_job(job)
        node_counts = collections.Counter(_resources_text(node) for node in nodes)
        nodes_text = ", ".join(f"{count} with {words}" for words, count in node_counts.items())
        raise RuntimeError(
            f"no node of the cluster has {_resources_text(requested)}, and none came in "
            f"{self._node_wait:.0f} s (compute.node_wait); there are {nodes_text or 'no nodes'}."
        )

    def _stop_ray_job(self, job: RayJob) -> None:
        with contextlib.suppress(Exception):  # It has ended, or its cluster has.
            self._client.stop_job(job.id)

    def _request_with_retries(self, question: Callable[[], Any]) -> Any:
        """Asks the server, and retries for a while if it does not answer."""
        import requests

        began, pause = time.monotonic(), 0.2
        while True:
            try:
                return question()
            # Not answered, or the server's own error (5xx): it may be starting again. Everything
            # else is its answer, and goes to the caller.
            except (ConnectionError, requests.RequestException) as error:
                reason: Exception = error
            except RuntimeError as error:
                if "status code 5" not in str(error) or "already exists" in str(error):
                    raise
                reason = error
            if time.monotonic() - began > _SILENCE:
                raise RayWorkerLostError(
                    f"the job server of {self._address} did not answer for {_SILENCE:.0f} s: "
                    f"{reason}"
                ) from reason
            self._pause_job_requests(pause)
            pause = min(2 * pause, 5.0)

    def _pause_job_requests(self, seconds: float) -> None:
        # An event and not a sleep, so that `close` wakes all waiting threads at once.
        is_detached = self._ended.wait(seconds)
        wait_if_stopping()
        if is_detached:
            raise RuntimeError("the run is being stopped; its jobs are left as they are.")


@contextlib.contextmanager
def _api_server_variable(url: str) -> Iterator[None]:
    """Has the variable that overrides the argument of Ray's clients name a job server, meanwhile.

    Left behind, it would send later clients of this process, and its children's, there as well.
    """
    with _NAMING:
        before = os.environ.get(_API_SERVER)
        os.environ[_API_SERVER] = url
        try:
            yield
        finally:
            if before is None:
                del os.environ[_API_SERVER]
            else:
                os.environ[_API_SERVER] = before


def _job_server_url(address: str) -> str:
    """Returns the address of a cluster's job server.

    Raises:
      RuntimeError: if there is no cluster, or it has no job server.
    """
    if "://" in address:
        return address.rstrip("/")
    from ray.dashboard.utils import ray_address_to_api_server_url
    from ray.exceptions import RayError

    try:
        return ray_address_to_api_server_url(address)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise RuntimeError(
            f"compute.ray_address {address!r} is no Ray cluster with a job server that can be "
            f"reached from here: {error}"
        ) from error


def _resources_text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{n:g} {name}" for name, n in resources.items() if n) or "0 CPU"
