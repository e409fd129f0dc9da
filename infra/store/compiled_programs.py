"""The programs that JAX compiled on this machine, for all of its processes.

    <state>/cache/jax/<kind of processor>/…     JAX's own files, one per program
        …/xla_gpu_per_fusion_autotune_cache_dir/…     XLA's, one per kernel that it timed on a GPU

JAX looks an entry up by the program, the options and number of threads of the compilation, the
devices and its own version, so an entry is what JAX would compile. Two processes may write one
entry at the same time; half an entry is not loaded, and the program is compiled again. The
processor is part of the folder's name since a state folder may be moved to, or shared with, another
machine.

The folder's size is bounded here. With its own bound, JAX looks at all files for each program that
it adds: 34 ms at 300 of them, measured on 23 November 2026, three times what a small program takes
to compile.
"""

import contextlib
import functools
import os
import platform
from pathlib import Path

from infra.store.digest import file_sha256, value_sha256
from infra.store.objects.eviction import evict_oldest_files

_LIMIT_GB = 20.0
"""Default of PARCEL_PROGRAMS_GB: largest size of all compiled programs on this disk [GB]."""

_AUTOTUNING = "xla_gpu_per_fusion_autotune_cache_dir"
"""JAX's name of the folder of what XLA timed, and of the setting by which it is kept."""


def share_compiled_programs(cache: Path) -> None:
    """Makes this process share compiled programs with others; call it before JAX is imported.

    A folder that the user names (JAX_COMPILATION_CACHE_DIR) is used as it is.

    Args:
      cache: folder for the programs of all kinds of processors.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # A program is compiled for the features of this processor, and may crash on one without
        # them.
        folder = cache / _processor_name()
        folder.mkdir(parents=True, exist_ok=True)
        evict_oldest_files(cache, 1e9 * float(os.environ.get("PARCEL_PROGRAMS_GB", _LIMIT_GB)))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    # JAX's default today.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", _AUTOTUNING)


def autotuning_digests() -> dict[str, str]:
    """Returns name of a kernel -> digest of what XLA chose for it by its time on a GPU here.

    XLA names a kernel by the digest of its operations and the kind of GPU, so it has one name on
    all machines. Programs that are compiled to be deterministic have no such kernels.

    Source: XLA `xla/service/gpu/autotuning/autotuner_util.cc`.
    """
    digests = {}
    if programs := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        for path in sorted(Path(programs, _AUTOTUNING).glob("*.textproto")):
            # Another process may bound the folder's size meanwhile.
            with contextlib.suppress(FileNotFoundError):
                digests[path.stem] = file_sha256(path)
    return digests


@functools.cache
def _processor_name() -> str:
    """Returns a name that is the same on machines whose processors have the same features."""
    features = {platform.machine()}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "flags", "Features"):
                features.add(value.strip())
    return value_sha256(sorted(features))[:12]
