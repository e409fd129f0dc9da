"""Tests of the hardware that a manifest records."""

import os
import subprocess
import sys

import jax
import pytest

from infra.store.environment import device_count, execution_environment


def test_the_accelerator_is_the_one_that_jax_computes_on():
    kind = jax.devices()[0].device_kind
    assert execution_environment()["hardware"]["accelerator"] == kind


_ON_CPU = """
import jax
from infra.store.environment import device_count

assert device_count() == 1  # JAX has no devices yet.
assert jax.device_count() == 4
print(device_count())
"""


def test_a_process_on_cpus_is_one_device_into_however_many_jax_divides_it():
    variables = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    child = subprocess.run(
        [sys.executable, "-c", _ON_CPU], env={**os.environ, **variables}, capture_output=True
    )
    assert child.stdout.strip() == b"1", child.stderr


def test_a_process_without_jax_has_none_and_takes_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    hardware = execution_environment()["hardware"]
    assert hardware["accelerator"] == ""
    assert device_count() == 1
    assert hardware["cpu"] or sys.platform != "linux"
