"""Tests of the cost of a compiled program: loops, conditions, collectives."""

import pytest

from infra.chips.hlo import Collective
from infra.chips.program_cost import read_program_cost
from infra.chips.topology import Topology

_PROGRAM = """HloModule jit_step, is_scheduled=true

%fused (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %b = f32[8]{0} add(%a, %a), backend_config={"estimated_cycles":"999999"}
}

%all-reduce-scatter.1 (input: f32[62,100]) -> f32[16,100] {
  %input = f32[62,100]{1,0} parameter(0)
  %pad = f32[64,100]{1,0} pad(%input), padding=0_2x0_0
  ROOT %all-reduce.1 = f32[64,100]{1,0} all-reduce(%pad), replica_groups={{0,1,2,3},{4,5,6,7}}
}

%body (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = (s32[], f32[8]{0}) parameter(0)
  %fusion.1 = f32[8]{0} fusion(%x), calls=%fused, backend_config={"estimated_cycles":"30"}
  %gathered = bf16[64,100]{1,0:T(8,128)} all-gather(%y), replica_groups=[2,4]<=[8]
  %fusion.2 = f32[16,100]{1,0} fusion(%z), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %fusion.1)
}

%condition (x: (s32[], f32[8])) -> pred[] {
  %x = (s32[], f32[8]{0}) parameter(0)
  %seven = s32[]{:T(128)} constant(7)
  ROOT %less = pred[] compare(%i, %seven), direction=LT
}

%open (x: (s32[], s32[])) -> pred[] {
  %x = (s32[], s32[]) parameter(0)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%cheap (x: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} add(%x, %x), backend_config={"estimated_cycles":"1"}
}

%dear (x: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} add(%x, %x), backend_config={"estimated_cycles":"5"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %loop = (s32[], f32[8]{0}) while(%t), condition=%condition, body=%body
  %rest = (s32[], s32[]) while(%u), condition=%open, body=%dear
  %choice = f32[8]{0} conditional(%c, %p, %p), branch_computations={%cheap, %dear}
  %start = f32[4,10]{1,0} all-reduce-start(%p), to_apply=%add
  %pair = (bf16[4,10]{1,0}, bf16[8,10]{1,0}) all-gather-start(%p), replica_groups=[4,2]<=[8]
  %parts = f32[2,10]{1,0} reduce-scatter(%p), replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %last = f32[8]{0} copy(%p), backend_config={"window":{"estimated_cycles":"100"}}
}
"""


def test_loops_count_as_often_as_they_run_and_the_inside_of_a_fusion_does_not():
    cost = read_program_cost(_PROGRAM, Topology.parse("v5e:4x2"), open_trips=3)
    assert cost.cycles == 7 * 30 + 3 * 5 + 5 + 100
    assert cost.traffic == {
        Collective("all-gather", 4, hidden=False): 7 * 64 * 100 * 2,
        Collective("reduce-scatter", 4, hidden=False): 7 * 64 * 100 * 4,
        Collective("all-reduce", 8, hidden=True): 4 * 10 * 4,
        Collective("all-gather", 2, hidden=True): 8 * 10 * 2,
        Collective("reduce-scatter", 8, hidden=False): 8 * 2 * 10 * 4,
    }


def test_time_of_the_interconnect_is_bytes_over_the_links_of_the_group():
    slice_ = Topology.parse("v5e:4x2")
    cost = read_program_cost(_PROGRAM, slice_)
    one_axis, both = 2 * 45e9, 4 * 45e9
    shown = 7 * (12_800 + 25_600) * 3 / 4 / one_axis + 640 * 7 / 8 / both
    assert cost.interconnect_s(slice_) == pytest.approx(shown)
    hidden = 2 * 160 * 7 / 8 / both + 160 / 2 / one_axis
    assert cost.interconnect_s(slice_, hidden=True) == pytest.approx(shown + hidden)
    assert cost.compute_s(slice_) == pytest.approx(cost.cycles / 1.5e9)


def test_a_program_for_other_hardware_is_refused():
    with pytest.raises(ValueError, match="only those compiled by libtpu"):
        read_program_cost(
            "ENTRY %main (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8]{0} copy(%q)\n}",
            Topology.parse("v4:2x2x1"),
        )


@pytest.mark.parametrize(
    ("text", "chips", "group", "axes"),
    [
        ("v4:8x8x4", 256, 32, 2),
        ("v4:8x8x4", 256, 8, 1),
        ("v4:8x8x4", 256, 256, 3),
        ("v5e:16x16", 256, 16, 1),
        ("v6e:16x16", 256, 256, 2),
    ],
)
def test_a_group_uses_as_few_axes_of_the_torus_as_hold_it(text, chips, group, axes):
    topology = Topology.parse(text)
    assert (str(topology), topology.num_chips) == (text, chips)
    assert topology.group_bytes(group) == 2 * axes * topology.chip.link_bytes


@pytest.mark.parametrize("text", ["v3:8x8", "v4", "v4:8x", "v4:8x-8", ""])
def test_an_unknown_topology_is_one_line(text: str):
    with pytest.raises(ValueError, match=r"topology .*v4, v5e, v6e.*got '"):
        Topology.parse(text)
