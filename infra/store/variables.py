"""Variables of the environment that decide numbers, and are no part of a step's identity.

    JAX_ENABLE_X64=1, JAX_THREEFRY_PARTITIONABLE=0      left out, with one line: other numbers
    JAX_NUMPY_RANK_PROMOTION=raise, LIBTPU_INIT_ARGS    recorded in manifests; replays set them
    JAX_PLATFORMS, JAX_COMPILATION_CACHE_DIR            stay: places, caches, memory and logs

JAX has a variable for each of its settings, and new ones with each release. So those that stay are
listed, and all others are left out: a setting of tomorrow changes no bytes in silence.

XLA ends a process without an error at a flag that it does not know, so `XLA_FLAGS` is tried before
work begins.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, MutableMapping

from infra.errors import ConfigError

_OF_JAX = re.compile(r"JAX(?:2TF)?_\w+|EAGER_CONSTANT_FOLDING|CHECK_VMA|MOCK_NUM_GPU_PROCESSES")
"""Names of JAX's settings, all of which are `jax.config`'s in capitals."""

_STAYS = re.compile(
    r"JAX_(?:"
    # Where it runs, and with which processes.
    r"PLATFORMS|PLATFORM_NAME|\w+_VISIBLE_DEVICES|COORDINATOR_\w+|NUM_PROCESSES|PROCESS_ID"
    r"|LOCAL_DEVICE_IDS|CROSS_HOST_\w+|CPU_GET_\w+|ENABLE_PREEMPTION_SERVICE|ENABLE_RECOVERABILITY"
    # Caches of compiled programs.
    r"|\w*COMPILATION_CACHE\w*|PERSISTENT_CACHE_\w+|RAISE_PERSISTENT_CACHE_ERRORS"
    r"|SHARE_BINARY_BETWEEN_HOSTS\w*"
    # What it logs and how errors look.
    r"|LOG_\w+|LOGGING_LEVEL|\w+_LOG_MODULES|COMPILER_DETAILED_LOGGING\w*|DUMP_IR_\w+"
    r"|EXPLAIN_CACHE_MISSES|TRACEBACK_FILTERING|TRACER_ERROR_\w+|PPRINT_\w+|DISTRIBUTED_DEBUG"
    r"|CAPTURED_CONSTANTS_\w+"
    r")"
)

_CHECKS = re.compile(
    r"JAX_(?:NUMPY_(?:DTYPE|RANK)_PROMOTION|CHECK_\w+|ENABLE_CHECKS|DEBUG_\w+"
    r"|TRANSFER_GUARD\w*|THREAD_GUARD|NUM_CPU_DEVICES|CPU_COLLECTIVES_IMPLEMENTATION"
    r"|PJRT_CLIENT_CREATE_OPTIONS)"
)
"""Settings that refuse a program, or are part of a machine; none of them draws or types numbers."""

# `XLA_FLAGS` has a field of its own in manifests. XLA_PYTHON_CLIENT_… is memory, and so are the
# NCCL_… that name networks; the names of Terraform's variables (TF_VAR_…) begin as TensorFlow's do.
_OF_LIBRARIES = re.compile(
    r"XLA_(?!FLAGS$|PYTHON_CLIENT_|CLIENT_MEM)\w+|LIBTPU_\w+|FLAX_\w+|NNX_\w+"
    r"|NVIDIA_TF32_OVERRIDE|CUBLAS\w+|CUDNN\w+|NCCL_(?!SOCKET|DEBUG|IB_|NET)\w+"
    r"|ROCBLAS\w+|HIPBLAS\w+|MIOPEN\w+|MKL_\w+|OPENBLAS_\w+|BLIS_\w+|ONEDNN_\w+|DNNL_\w+"
    r"|JSIMD_\w+|NPY_(?:DIS|EN)ABLE_CPU_FEATURES|ATEN_CPU_CAPABILITY|TORCH_ALLOW_TF32\w*"
    r"|TF_(?:ENABLE|DISABLE|DETERMINISTIC|CUDNN|CUBLAS|USE|XLA|CUDA)\w*"
)

_TUNABLES, _TUNABLES_OF_CPU = "GLIBC_TUNABLES", "glibc.cpu."
"""The C library computes by the features of a processor that this leaves it."""


_PARSE_FLAGS = "import jaxlib.xla_client as xla; xla.CompileOptions()"
"""Program in which XLA reads its flags, as it does before its first computation."""

_PARSER = "parse_flags_from_env"
"""Source file of XLA that ends the process, which its last line names."""
_UNKNOWN_FLAGS = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_WRONG_VALUE = re.compile(r"Couldn't interpret value .* for flag (\w+)")
_PARSE_TIMEOUT = 60.0
"""Longest trial of flags [s]; it takes 0.3 s, of which XLA's import is most."""


def check_xla_flags() -> None:
    """Raises a `ConfigError` if XLA would end each worker because of the user's `XLA_FLAGS`."""
    if problem := xla_flags_problem(os.environ.get("XLA_FLAGS", "")):
        raise ConfigError(problem)


@functools.cache
def xla_flags_problem(flags: str) -> str | None:
    """Returns why a value of `XLA_FLAGS` is not accepted, in a sentence; None if it is."""
    if not flags:
        return None
    from infra.errors import one_line

    # A file, which XLA would take, cannot be joined with the flags that a worker has besides.
    if not flags.startswith("--"):
        return one_line(
            f"XLA_FLAGS must be flags that begin with --, got {flags!r:.80}: state the flags of a "
            f"file as they are, or unset it."
        )
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", _PARSE_FLAGS],
            env={**os.environ, "XLA_FLAGS": flags},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_PARSE_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return None
    if _PARSER not in tried.stderr:  # Another error, such as a broken jaxlib, is not the flags'.
        return None
    if unknown := _UNKNOWN_FLAGS.search(tried.stderr):
        wrong, what = unknown[1], "flags that this version of XLA knows"
    elif value := _WRONG_VALUE.search(tried.stderr):
        wrong = next((each for each in flags.split() if value[1] in each), value[1])
        what = "flags with values of their types"
    else:
        wrong, what = flags, "flags that XLA takes"
    return one_line(f"XLA_FLAGS must be {what}, got {wrong:.200}: take it out, or unset XLA_FLAGS.")


def leave_out_variables() -> None:
    """Takes the settings of JAX that change numbers out of this process's environment.

    Call it before JAX is imported. One line on the error output names what is left out; processes
    that are started later inherit none of it.
    """
    if left_out := remove_variables(os.environ):
        print(
            f"parcel: {', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} left out of "
            f"the environment: other numbers would come under the same names. A study's dtypes, "
            f"precision and seeds are in its config.",
            file=sys.stderr,
        )


def remove_variables(environment: MutableMapping[str, str]) -> list[str]:
    """Removes the settings of JAX that change numbers; returns them as "NAME=value" texts."""
    names = [
        name
        for name in sorted(environment)
        if _OF_JAX.fullmatch(name)
        if not _STAYS.fullmatch(name)
        if not _CHECKS.fullmatch(name)
    ]
    if not names:
        return []
    from infra.store.redact import redact  # Its patterns take a moment, and every command is here.

    return [f"{name}={redact({name: environment.pop(name)})[name]:.40}" for name in names]


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that manifests record: those on which bytes may depend, and checks."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _CHECKS.fullmatch(name)
        or _OF_LIBRARIES.fullmatch(name)
        or (name == _TUNABLES and _TUNABLES_OF_CPU in value)
    }


def with_variables(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment whose recorded variables are these, and no others.

    For a process on another machine, or at another time, that computes as the record says; nothing
    of what is left out is in it.
    """
    own = recorded_variables(environment)
    kept = {name: value for name, value in environment.items() if name not in own}
    remove_variables(kept)
    return {**kept, **variables}
