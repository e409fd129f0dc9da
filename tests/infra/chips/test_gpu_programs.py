"""Tests of what a GPU's program sends by its text, and of the devices that XLA compiles for."""

import pytest

from infra.chips.gpu_target import GPU_DEVICES, target_config
from infra.chips.hlo import Collective
from infra.chips.program_cost import read_program_cost
from infra.chips.topology import CHIPS, Topology

_PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=8

%gather (g: bf16[8,100]) -> bf16[64,100] {
  %g = bf16[8,100]{1,0} parameter(0)
  ROOT %inner = bf16[64,100]{1,0} all-gather(%g), replica_groups=[1,8]<=[8], dimensions={0}
}

%body (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = (s32[], f32[8]{0}) parameter(0)
  %pair = ((bf16[8,10]{1,0}), (bf16[32,10]{1,0})) all-gather-start(%part), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}
  %done = bf16[32,10]{1,0} all-gather-done(%pair)
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %done)
}

%condition (x: (s32[], f32[8])) -> pred[] {
  %x = (s32[], f32[8]{0}) parameter(0)
  ROOT %less = pred[] fusion(%i), kind=kLoop, calls=%compare
}

%nothing (n: f32[8]) -> f32[8] {
  ROOT %n = f32[8]{0} parameter(0)
}

%some (s: f32[8]) -> f32[8] {
  %s = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} all-reduce(%s), replica_groups=[1,8]<=[8], to_apply=%add
}

ENTRY %main (a: bf16[64,100]) -> f32[8] {
  %a = bf16[64,100]{1,0} parameter(0)
  %loop = (s32[], f32[8]{0}) while(%a), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %choice = f32[8]{0} conditional(%c, %p, %p), branch_computations={%nothing, %some}
  %scattered = ((f32[64,10]{1,0}), f32[8,10]{1,0}) reduce-scatter-start(%full), replica_groups={{0,1,2,3,4,5,6,7}}
  %async = ((bf16[8,100]{1,0}), bf16[64,100]{1,0}) async-start(%a), calls=%gather
  ROOT %copy = f32[8]{0} copy(%b.2)
}
"""  # noqa: E501
_H100 = Topology.parse("h100:8")


def test_a_gpus_collectives_are_whole_arrays_over_the_switch():
    cost = read_program_cost(_PROGRAM, _H100)
    assert cost.traffic == {
        Collective("all-gather", 4, hidden=True): 7 * 32 * 10 * 2,
        Collective("reduce-scatter", 8, hidden=True): 64 * 10 * 4 * (1 + 1 / 8) * 8 / 9,
        Collective("all-gather", 8, hidden=True): 64 * 100 * 2,
        # Of two branches, the one that sends more.
        Collective("all-reduce", 8, hidden=False): 8 * 4,
    }
    assert cost.cycles == 0
    hidden_s = sum(
        size * (kind.group - 1) / kind.group / 450e9
        for kind, size in cost.traffic.items()
        if kind.hidden
    )
    shown_s = 2 * 8 * 4 * 7 / 8 / 450e9
    assert cost.interconnect_s(_H100) == pytest.approx(shown_s)
    assert cost.interconnect_s(_H100, hidden=True) == pytest.approx(shown_s + hidden_s)


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
