"""The paper's efficiency figures, to every digit, and the formulas' own properties."""

import dataclasses
import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.analysis import flops
from model.analysis.flops import IMAGE, VIDEO, prefill_flops, update_flops
from model.connector import budgets
from model.connector.config import ConnectorConfig
from model.connector.registry import KINDS
from model.presets import paligemma2_3b, tiny

MODELS = {cfg.connector.kind: cfg for cfg in flops.with_connectors(paligemma2_3b())}


def served_everywhere() -> list[tuple[str, int]]:
    return [(k, b) for k, cfg in MODELS.items() for b in budgets.supported_budgets(cfg)]


@pytest.mark.parametrize(
    ("budget", "image", "video"),
    [(16, "0.963", "4.898"), (64, "1.161", "8.242"), (256, "1.973", "24.281")],
)
def test_parcel_costs_what_the_paper_says(budget: int, image: str, video: str):
    assert f"{flops.efficiency_cell(MODELS['parcel'], budget, IMAGE).tflops:.3f}" == image
    assert f"{flops.efficiency_cell(MODELS['parcel'], budget, VIDEO).tflops:.3f}" == video


@pytest.mark.parametrize(
    ("budget", "image", "video"),
    [(16, "14.7", "32.6"), (64, "19.6", "110.6"), (256, "39.1", "422.6")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_depends_on_the_budget_alone(kind: str, budget: int, image: str, video: str):
    if budget not in budgets.supported_budgets(MODELS[kind]):
        return
    assert f"{flops.efficiency_cell(MODELS[kind], budget, IMAGE).kv_mb:.1f}" == image
    assert f"{flops.efficiency_cell(MODELS[kind], budget, VIDEO).kv_mb:.1f}" == video


def test_vanilla_costs_what_the_paper_says():
    assert f"{flops.efficiency_cell(MODELS['vanilla'], 256, IMAGE).tflops:.3f}" == "1.963"
    assert f"{flops.efficiency_cell(MODELS['vanilla'], 256, VIDEO).tflops:.3f}" == "24.130"


def test_one_token_of_cache():
    assert flops.kv_bytes_per_token(MODELS["vanilla"]) == 106_496


def test_parcels_connector_is_the_appendix_sum():
    d, m, patches, budget, queries = 1152, 4304, 256, 256, 192
    self_attention = 8 * budget * d**2 + 4 * budget**2 * d
    cross_attention = 4 * (queries + patches) * d**2 + 4 * queries * patches * d
    mlp = 4 * queries * d * m
    expected = self_attention + cross_attention + mlp
    assert flops.connector_flops(MODELS["parcel"], budget) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_formula(kind: str):
    cfg = MODELS[kind]
    for budget in budgets.supported_budgets(cfg):
        cost = flops.connector_flops(cfg, budget)
        queries = budget - budgets.num_anchors(cfg, budget)
        if kind in ("vanilla", "m3", "avgpool4", "avgpool2") or queries == 0:
            assert cost == 0
        else:
            assert cost > 0


@pytest.mark.parametrize("kind", KINDS)
def test_more_tokens_cost_more(kind: str):
    totals = [
        flops.prefill_flops(MODELS[kind], b, IMAGE).total
        for b in budgets.supported_budgets(MODELS[kind])
    ]
    # PARCEL at 62 has 46 queries, at 64 none: the one place where more tokens may cost less.
    falls = [a > b for a, b in itertools.pairwise(totals)]
    assert sum(falls) <= kind.startswith("parcel")


@given(st.sampled_from(served_everywhere()), st.integers(1, 20), st.integers(1, 300))
def test_images_are_encoded_independently(cell: tuple[str, int], images: int, text: int):
    cfg, budget = MODELS[cell[0]], cell[1]
    one = flops.prefill_flops(cfg, budget, _modality(1, text))
    many = flops.prefill_flops(cfg, budget, _modality(images, text))
    for part in ("vision", "connector", "projector"):
        assert getattr(many, part) == images * getattr(one, part)
    assert many.head == one.head
    assert many.total == many.vision + many.connector + many.projector + many.decoder + many.head


@given(st.sampled_from(served_everywhere()))
def test_what_is_skipped_is_part_of_what_is_counted(cell: tuple[str, int]):
    cfg, budget = MODELS[cell[0]], cell[1]
    unrolled = dataclasses.replace(cfg, scan_layers=False)
    for model in (cfg, unrolled):
        cost = flops.prefill_flops(model, budget, VIDEO)
        skipped = flops.unread_flops(model, budget, VIDEO)
        assert 0 <= skipped.connector <= cost.connector
        assert 0 <= skipped.decoder < cost.decoder
        assert (skipped.decoder == 0) == model.scan_layers


def test_a_budget_that_is_not_served_is_refused():
    with pytest.raises(ValueError, match=r"budget .*'m3'.*got 18"):
        flops.prefill_flops(MODELS["m3"], 18, IMAGE)


def test_the_table_has_a_row_for_every_budget_and_modality():
    rows = flops.efficiency(MODELS.values())
    cells = {(row.connector, row.budget, row.modality) for row in rows}
    assert len(cells) == len(rows) == 2 * len(served_everywhere())
    assert rows[0].connector == "vanilla"
    assert {row.budget for row in flops.efficiency(MODELS.values(), at=[16, 64])} == {16, 64}


def test_a_model_gets_the_connectors_its_sizes_allow():
    odd = dataclasses.replace(tiny().vision, image_px=14 * 9)
    kinds = [
        c.connector.kind for c in flops.with_connectors(dataclasses.replace(tiny(), vision=odd))
    ]
    assert "vanilla" in kinds
    assert "parcel" not in kinds


@pytest.mark.parametrize(("field", "least"), [("num_images", 0), ("text_tokens", 1)])
def test_a_prompt_has_text_and_mostly_images(field: str, least: int):
    with pytest.raises(ValueError, match=f"{field} must be at least {least}, got {least - 1}"):
        dataclasses.replace(IMAGE, **{field: least - 1})
    text = flops.prefill_flops(tiny(), 256, _modality(0, 9))
    assert (text.vision, text.connector, text.projector) == (0, 0, 0)
    assert text.decoder > 0


def _modality(images: int, text: int) -> flops.Modality:
    return flops.Modality(name="any", num_images=images, text_tokens=text)


def test_an_update_counts_the_passes_that_run():
    cfg = paligemma2_3b()
    forward = prefill_flops(cfg, 256, VIDEO)
    update = functools.partial(update_flops, cfg, 256, VIDEO, 2)
    assert update() == 6 * forward.total
    decoder = forward.decoder + forward.head
    # A frozen tower has no backward pass.
    assert update(trained=("connector", "projector", "text")) == pytest.approx(
        2 * (forward.vision + 3 * (forward.total - forward.vision))
    )
    # A frozen decoder has one for its inputs alone.
    assert update(trained=("projector",)) == pytest.approx(
        2 * (forward.vision + forward.connector + 3 * forward.projector + 2 * decoder)
    )
    assert update(trained=("text",)) == pytest.approx(
        2 * (forward.vision + forward.connector + forward.projector + 3 * decoder)
    )
    # So has a decoder with adapters, whose own weights are few.
    assert update(trained=(flops.ADAPTERS,)) == pytest.approx(
        2 * (forward.vision + forward.connector + forward.projector + 2 * decoder)
    )


def test_an_update_may_leave_out_what_programs_skip():
    cfg = dataclasses.replace(tiny(ConnectorConfig(kind="parcel")), scan_layers=False)
    skipped = flops.unread_flops(cfg, 64 + 32, IMAGE)
    assert skipped.connector > 0 < skipped.decoder
    update = functools.partial(update_flops, cfg, 64 + 32, IMAGE, 2)
    assert update() - update(with_unread=False) == 6 * skipped.total
    # A frozen part without a trained one before it has no backward pass to skip.
    trained = ("text",)
    skipped_once = 2 * (skipped.connector + 3 * skipped.decoder)
    assert update(trained=trained) - update(trained=trained, with_unread=False) == skipped_once
