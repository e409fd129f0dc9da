"""Tests of the variables of the environment that decide numbers."""

import os
import subprocess
import sys

import jax
import pytest

from infra.store import variables
from infra.store.environment import execution_environment
from infra.store.variables import (
    recorded_variables,
    remove_variables,
    with_variables,
    xla_flags_problem,
)

_STAYING = {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": "/programs",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_LOG_COMPILES": "1",
    "JAX_COORDINATOR_ADDRESS": "10.0.0.7:1",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
    "NCCL_SOCKET_IFNAME": "lo",
    "TF_VAR_password": "x1",
    "HOME": "/home/me",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Places, caches, memory and logs: neither left out nor recorded."""


@pytest.mark.parametrize(
    "name",
    [
        "JAX_THREEFRY_PARTITIONABLE",
        "JAX_DEFAULT_PRNG_IMPL",
        "JAX_RANDOM_SEED_OFFSET",
        "JAX_ENABLE_X64",
        "JAX_DEFAULT_MATMUL_PRECISION",
        "JAX_DISABLE_JIT",
        "JAX_DISABLE_MOST_OPTIMIZATIONS",
        "JAX_A_SETTING_OF_TOMORROW",
        "EAGER_CONSTANT_FOLDING",
    ],
)
def test_settings_of_jax_that_change_numbers_are_left_out(name: str):
    environment = {**_STAYING, name: "1"}
    assert remove_variables(environment) == [f"{name}=1"]
    assert environment == _STAYING


@pytest.mark.parametrize(
    "name",
    [
        "JAX_NUMPY_DTYPE_PROMOTION",
        "LIBTPU_INIT_ARGS",
        "NVIDIA_TF32_OVERRIDE",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDNN_DETERMINISTIC",
        "NCCL_ALGO",
        "MKL_CBWR",
        "TF_ENABLE_ONEDNN_OPTS",
        "NPY_DISABLE_CPU_FEATURES",
        "XLA_TPU_SETTING",
    ],
)
def test_those_of_libraries_and_checks_are_recorded(name: str):
    environment = {**_STAYING, name: "1"}
    assert remove_variables(environment) == []
    assert recorded_variables(environment) == {name: "1"}


def test_features_taken_from_the_c_library_are_recorded():
    hidden = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.cpu.hwcaps=-AVX2"}
    assert recorded_variables(hidden) == hidden


def test_no_credential_is_in_a_manifest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LIBTPU_API_TOKEN", "x1")
    recorded = execution_environment()["hardware"]["variables"]
    assert recorded["LIBTPU_API_TOKEN"] == "[redacted]"


def test_another_machine_computes_with_those_of_the_record():
    theirs = {**_STAYING, "CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Ring"}
    theirs["JAX_ENABLE_X64"] = "1"
    ours = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "MKL_CBWR": "AVX2"}
    assert with_variables(theirs, ours) == {**_STAYING, **ours}


def test_every_setting_of_this_jax_stays_by_name_or_is_looked_after():
    settings = {name.upper(): "1" for name in jax.config.values}
    assert len(settings) > 100
    cared_for = {text.partition("=")[0] for text in remove_variables({**settings})}
    cared_for |= recorded_variables(settings).keys()
    unknown = {n for n in settings.keys() - cared_for if not variables._STAYS.fullmatch(n)}
    assert not unknown


def test_a_manifest_has_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    recorded = execution_environment()["hardware"]["variables"]
    assert recorded["NVIDIA_TF32_OVERRIDE"] == "0"


_DRAW = """
from infra.store.variables import leave_out_variables
leave_out_variables()
leave_out_variables()  # Says it once.
import jax
print(jax.random.bits(jax.random.key(3), (3,)).tolist(), jax.numpy.zeros(2, float).dtype)
"""


def test_a_process_draws_the_same_numbers_and_says_one_line():
    odd = {"JAX_THREEFRY_PARTITIONABLE": "0", "JAX_ENABLE_X64": "1", "JAX_RANDOM_SEED_OFFSET": "4"}
    texts = []
    for own in ({}, odd):
        child = subprocess.run(
            [sys.executable, "-c", _DRAW],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **own},
            capture_output=True,
            text=True,
        )
        texts.append(child.stdout)
        lines = [line for line in child.stderr.splitlines() if line.startswith("parcel: ")]
        assert len(lines) == bool(own), child.stderr
        for name, value in own.items():
            assert f"{name}={value}" in lines[0]
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("flags", ["", "--xla_gpu_deterministic_ops=true --xla_dump_to=/dumps"])
def test_flags_that_xla_knows_pass(flags: str):
    assert xla_flags_problem(flags) is None


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("/a/file", "must be flags that begin with --, got '/a/file'"),
        (" --xla_dump_to=/dumps", "must be flags that begin with --, got ' --xla_dump_to=/dumps'"),
        ("--xla_dump_to=/dumps --xla_nope=1", "got --xla_nope=1: take it out"),
        ("--xla_nope --xla_neither", "got --xla_nope --xla_neither: take it out"),
        ("--xla_gpu_autotune_level=x", "of their types, got --xla_gpu_autotune_level=x: take it"),
    ],
)
def test_flags_by_which_xla_would_end_each_worker_are_told_in_one_line(flags: str, told: str):
    problem = xla_flags_problem(flags) or ""
    assert problem.startswith("XLA_FLAGS must be ")
    assert told in problem
    assert "\n" not in problem
