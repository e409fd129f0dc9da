"""Peak speed of devices, by the names that JAX gives them."""

from types import SimpleNamespace

import pytest

from model.analysis.peak import peak_tflops


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v4", 275),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA L4", 121),
        ("NVIDIA A10", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", None),
        ("cpu", None),
    ],
)
def test_the_peak_is_that_of_all_devices(kind: str, peak: float | None):
    found = peak_tflops([SimpleNamespace(device_kind=kind)] * 4)
    assert found == (None if peak is None else pytest.approx(4 * peak, rel=0.01))
