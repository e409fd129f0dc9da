"""The environment of a worker: as many threads as it has cores, and the devices it was given."""

import importlib.util
import math
import os
from collections.abc import Mapping

from infra.chips.topology import GPU_SHARE

CUDA_PLUGINS = {"13": "jax_cuda13_plugin", "12": "jax_cuda12_plugin"}
"""Version of CUDA -> JAX's plugin for it [module]."""


def worker_environment(
    num_cpus: int, num_gpus: float, tpus: int, user_environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment variables of a worker.

    XLA uses as many threads as the task has cores, so that results do not depend on what else runs.

    Args:
      num_cpus: cores of the task.
      num_gpus: GPUs of the task; below 1 it shares one.
      tpus: TPU chips of the task.
      user_environment: environment whose settings of devices win; empty for a worker on another
        machine, about whose devices this machine's environment says nothing.
    """
    multi = f"--xla_cpu_multi_thread_eigen={'true' if num_cpus > 1 else 'false'}"
    # Answers, too, are to be the same each time: with this, XLA takes no kernel by its time on this
    # machine. The user's flags come later and win; a training says itself what it wants.
    fixed = "--xla_gpu_deterministic_ops=true" if num_gpus else ""
    flags = (fixed, os.environ.get("XLA_FLAGS", ""), multi)
    return {
        "XLA_FLAGS": " ".join(filter(None, flags)),
        "NPROC": str(num_cpus),
        "OMP_NUM_THREADS": str(num_cpus),
        # Every training step gets its buffers from the system again. In pages of 4 kB that took
        # 43,000 page faults and half of the time of a small step; huge pages take 600 faults.
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **device_environment(num_gpus, tpus, user_environment),
    }


def device_environment(
    num_gpus: float, tpus: int, user_environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment that keeps JAX to a task's devices; the user's own settings win.

    Ray decides which of them a task sees (CUDA_VISIBLE_DEVICES, TPU_VISIBLE_CHIPS).

    Args:
      num_gpus: GPUs of the task; below 1 it shares one.
      tpus: TPU chips of the task.
      user_environment: environment of the user.
    """
    defaults = {"JAX_PLATFORMS": "cuda,cpu" if num_gpus else "tpu,cpu" if tpus else "cpu"}
    if num_gpus:
        # Rounded down: three tasks with a third each get 0.30 of the memory, together no more than
        # 0.9.
        share = math.floor(100 * GPU_SHARE * min(num_gpus, 1)) / 100
        defaults["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.2f}"
    return {name: user_environment.get(name, value) for name, value in defaults.items()}


def slice_environment(first: str, num_slices: int, index: int) -> dict[str, str]:
    """Returns the variables with which libtpu connects several slices over their network.

    Args:
      first: address of the first host of the first slice.
      num_slices: number of slices; one alone needs no variables.
      index: number of the slice of this host.
    """
    if num_slices == 1:
        return {}
    from ray.util.tpu import get_tpu_coordinator_env_vars

    return get_tpu_coordinator_env_vars(first, num_slices, index)


def usable_gpus(requested: int | None) -> int | None:
    """Returns the number of GPUs of a cluster on this machine; None for all that Ray finds.

    It is `requested`, if that is a number. Else it is 0 if JAX has no CUDA or the user's
    JAX_PLATFORMS excludes GPUs.
    """
    if requested is not None:
        return requested
    # Ray counts a machine's GPUs even if JAX here cannot use them; steps would then be placed on
    # GPUs and compute on cores.
    platforms = os.environ.get("JAX_PLATFORMS", "cuda")
    has_cuda = any(importlib.util.find_spec(name) for name in CUDA_PLUGINS.values())
    return None if has_cuda and {"cuda", "gpu"} & set(platforms.split(",")) else 0
