"""A Ray cluster, started on demand, that runs generator functions and streams what they yield."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_STARTING = threading.Lock()


class WorkerLost(RuntimeError):
    """The process running a task died; its work is not committed and can be tried again."""


class Cluster:
    """Where steps with JAX run: a cluster already there, or one started here on first use.

    Args:
      address: a running cluster's address ("auto", "ray://…"); None starts one on this machine.
      num_cpus: cores of a cluster started here; None takes all.
      compilation_cache: folder where workers share compiled programs [path].
    """

    def __init__(
        self, *, address: str | None, num_cpus: int | None, compilation_cache: Path
    ) -> None:
        self.address = address
        self.num_cpus = num_cpus or len(os.sched_getaffinity(0))
        self._cache = compilation_cache
        self._started = False

    def start(self) -> None:
        """Connects, once; safe from several threads."""
        with _STARTING:
            if self._started:
                return
            import ray

            logging.getLogger("ray").setLevel(logging.ERROR)
            # Without a metrics agent, a dashboard and usage reports: three processes fewer.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            local: dict[str, Any] = {}
            if self.address is None:
                local = {"num_cpus": self.num_cpus, "include_dashboard": False}
                local["_node_ip_address"] = "127.0.0.1"
                local["object_store_memory"] = 100 * 1024**2  # Only progress and keys pass.
            ray.init(
                address=self.address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                ignore_reinit_error=True,
                configure_logging=False,
                **local,
            )
            self._started = True

    def stop(self) -> None:
        """Disconnects; a cluster that was started here ends."""
        if self._started:
            import ray

            ray.shutdown()
            self._started = False

    def stream(
        self, function: Callable[..., Iterator[Any]], *args: Any, num_cpus: int, name: str
    ) -> Iterator[Any]:
        """Runs a generator function on a worker and yields what it yields, as it comes.

        The worker's XLA uses as many threads as the task has cores, so that results do not depend
        on what else runs. Nothing is retried here: the caller decides, and commits are fenced.

        Raises:
          WorkerLost: if the worker's process died.
        """
        self.start()
        import ray
        from ray import exceptions

        num_cpus = min(num_cpus, self.num_cpus)
        remote = ray.remote(function).options(
            num_returns="streaming",
            num_cpus=num_cpus,
            max_retries=0,
            name=name,
            runtime_env={"env_vars": self._environment(num_cpus)},
        )
        items: Any = remote.remote(*args)
        ended = False
        try:
            for reference in items:
                yield ray.get(reference)
            ended = True
        except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
            raise WorkerLost(f"the worker of {name!r} died: {error}") from error
        except exceptions.OutOfMemoryError as error:
            raise WorkerLost(f"the worker of {name!r} ran out of memory: {error}") from error
        except exceptions.RayTaskError as error:
            ended = True
            raise error.cause from error
        finally:
            if not ended:  # Whoever reads gave up: so does the worker.
                with contextlib.suppress(Exception):
                    ray.cancel(items, force=True)

    def _environment(self, num_cpus: int) -> dict[str, str]:
        multi = f"--xla_cpu_multi_thread_eigen={'true' if num_cpus > 1 else 'false'}"
        return {
            "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
            "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), multi]).strip(),
            "NPROC": str(num_cpus),
            "OMP_NUM_THREADS": str(num_cpus),
            # Every step takes its buffers from the system anew: in pages of 4 kB that was 43,000
            # page faults and half of the time of a small step, in huge pages it is 600.
            "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
            "JAX_COMPILATION_CACHE_DIR": str(self._cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
