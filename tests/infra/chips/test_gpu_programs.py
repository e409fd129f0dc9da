"""Tests of what a GPU's program costs by its text, and of the devices that XLA compiles for."""

import pytest

from infra.chips.gpu_target import GPU_DEVICES, target_config
from infra.chips.hlo import Collective
from infra.chips.program_cost import Kernel, read_program_cost
from infra.chips.topology import CHIPS, Topology

# Weights of 7 layers in one array, of which each round of the loop reads one.
_PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=8

%product (p.0: bf16[64,100], p.1: bf16[7,100,32]) -> bf16[64,32] {
  %p.0 = bf16[64,100]{1,0} parameter(0)
  %p.1 = bf16[7,100,32]{2,1,0} parameter(1)
  %slice = bf16[1,100,32]{2,1,0} dynamic-slice(%p.1, %i, %zero, %zero), dynamic_slice_sizes={1,100,32}
  %layer = bf16[100,32]{1,0} bitcast(%slice)
  ROOT %dot.1 = bf16[64,32]{1,0} dot(%p.0, %layer), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%keep (q.0: f32[7,64], q.1: f32[64]) -> f32[7,64] {
  %q.0 = f32[7,64]{1,0} parameter(0)
  %q.1 = f32[64]{0} parameter(1)
  %row = f32[1,64]{1,0} bitcast(%q.1)
  ROOT %put = f32[7,64]{1,0} dynamic-update-slice(%q.0, %row, %i, %zero)
}

%gather (g: bf16[8,100]) -> bf16[64,100] {
  %g = bf16[8,100]{1,0} parameter(0)
  ROOT %inner = bf16[64,100]{1,0} all-gather(%g), replica_groups=[1,8]<=[8], dimensions={0}
}

%body (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = (s32[], f32[8]{0}) parameter(0)
  %weights = bf16[7,100,32]{2,1,0} get-tuple-element(%x), index=1
  %rows = bf16[64,100]{1,0} get-tuple-element(%x), index=2
  %gemm_fusion = bf16[64,32]{1,0} fusion(%rows, %weights), kind=kCustom, calls=%product
  %kept = f32[7,64]{1,0} fusion(%old, %new), kind=kLoop, calls=%keep
  %pair = ((bf16[8,10]{1,0}), (bf16[32,10]{1,0})) all-gather-start(%part), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}
  %done = bf16[32,10]{1,0} all-gather-done(%pair)
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %done)
}

%condition (x: (s32[], f32[8])) -> pred[] {
  %x = (s32[], f32[8]{0}) parameter(0)
  ROOT %less = pred[] fusion(%i), kind=kLoop, calls=%compare
}

ENTRY %main (a: bf16[64,100]) -> f32[8] {
  %a = bf16[64,100]{1,0} parameter(0)
  %b = bf16[100,16]{1,0} parameter(1)
  %loop = (s32[], f32[8]{0}) while(%a), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %call = (bf16[64,16]{1,0}, s8[1000]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %scattered = ((f32[64,10]{1,0}), f32[8,10]{1,0}) reduce-scatter-start(%full), replica_groups={{0,1,2,3,4,5,6,7}}
  %async = ((bf16[8,100]{1,0}), bf16[64,100]{1,0}) async-start(%a), calls=%gather
  ROOT %copy = f32[8]{0} copy(%b.2)
}
"""  # noqa: E501
_H100 = Topology.parse("h100:8")


def test_kernels_have_the_flops_of_their_products_and_the_bytes_that_they_touch():
    cost = read_program_cost(_PROGRAM, _H100)
    layer = Kernel(2 * 64 * 32 * 100, 2 * (64 * 100 + 100 * 32 + 64 * 32))
    library = Kernel(2 * 64 * 16 * 100, 2 * (64 * 100 + 100 * 16 + 64 * 16) + 1000)
    # Of the array that a round puts a row into, the row is read and written.
    kept, copied = Kernel(0.0, 2 * 4 * 64), Kernel(0.0, 4 * 8)
    assert cost.kernels == {layer: 7, library: 1, kept: 7, copied: 1}
    assert cost.flops == 7 * layer.flops + library.flops
    assert cost.cycles == 0


def test_the_time_of_a_kernel_is_that_of_its_products_or_of_its_bytes():
    cost, chip = read_program_cost(_PROGRAM, _H100), _H100.chip
    each = [
        runs * max(kernel.flops / chip.peak_flops, kernel.num_bytes / chip.memory_bandwidth)
        for kernel, runs in cost.kernels.items()
    ]
    assert cost.compute_s(_H100) == pytest.approx(sum(each))
    # None of these is large enough for its products to take longer than its bytes.
    assert sum(each) == pytest.approx(cost.memory_bytes / chip.memory_bandwidth)


def test_a_gpus_collectives_are_whole_arrays_over_the_switch():
    cost = read_program_cost(_PROGRAM, _H100)
    assert cost.traffic == {
        Collective("all-gather", 4, hidden=True): 7 * 32 * 10 * 2,
        Collective("reduce-scatter", 8, hidden=True): 64 * 10 * 4 * (1 + 1 / 8) * 8 / 9,
        Collective("all-gather", 8, hidden=True): 64 * 100 * 2,
    }
    hidden_s = sum(
        size * (kind.group - 1) / kind.group / 450e9 for kind, size in cost.traffic.items()
    )
    assert cost.interconnect_s(_H100, hidden=True) == pytest.approx(hidden_s)
    assert cost.interconnect_s(_H100) == 0


def test_every_gpu_has_a_device_to_compile_for():
    gpus = {kind for kind, chip in CHIPS.items() if chip.is_gpu}
    assert gpus == set(GPU_DEVICES)
    for kind, device in GPU_DEVICES.items():
        text = target_config(device)
        assert f'device_description_str: "{device.description}"' in text
        assert f"device_memory_size: {device.memory_bytes}" in text
        assert "runtime_version" in text
        assert text.count("{") == text.count("}")
        assert abs(device.memory_bytes / CHIPS[kind].hbm_bytes - 1) < 0.01
        assert CHIPS[kind].program_bytes < device.memory_bytes
