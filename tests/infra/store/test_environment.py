"""Tests of the hardware that a manifest records."""

import sys

import jax
import pytest

from infra.store.environment import device_count, execution_environment


def test_the_accelerator_is_the_one_that_jax_computes_on():
    kind = jax.devices()[0].device_kind
    assert execution_environment()["hardware"]["accelerator"] == kind


def test_a_process_on_cpus_is_one_device():
    assert len(jax.devices()) > 1
    assert device_count() == 1


def test_a_process_without_jax_has_none_and_takes_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    hardware = execution_environment()["hardware"]
    assert hardware["accelerator"] == ""
    assert device_count() == 1
    assert hardware["cpu"] or sys.platform != "linux"
