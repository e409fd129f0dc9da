"""Variants: a method trained in another way stands beside the others under a name of its own."""

import pytest

from flows.graph.graph import graph_of
from flows.graph.results_plan import results_plan
from flows.study.load import load
from infra.errors import ConfigError
from infra.store.digest import value_sha256

UNIFORM = (
    "variants={parcel_uniform: {of: parcel}, "
    "parcel_long: {of: parcel, train_budgets: [16, 256], length: 2.5}}"
)
METHODS = "methods=[vanilla, mqt, parcel, parcel_uniform, parcel_long]"


def test_a_variant_is_its_connector_with_other_budgets_and_another_length():
    study = load(overrides=[METHODS, UNIFORM, "transfers.refcoco.train.epochs=2"])
    assert study.model_of("parcel_long") == study.model_of("parcel")
    assert study.budgets_of("parcel_uniform") == study.budgets_of("parcel")
    for own, usual, long, uniform in (
        [
            study.train_config_for(study.intermediary, m)
            for m in ("mqt", "parcel", "parcel_long", "parcel_uniform")
        ],
        [
            study.fine_tuning_of("chartqa", m)
            for m in ("mqt", "parcel", "parcel_long", "parcel_uniform")
        ],
    ):
        assert own == usual
        assert (usual.budgets, long.budgets, uniform.budgets) == ((16, 64, 256), (16, 256), None)
        assert long.total_steps == 2.5 * usual.total_steps == 2.5 * uniform.total_steps
    assert study.fine_tuning_of("refcoco", "parcel_long").epochs == 5
    assert results_plan(study).methods == (
        "vanilla",
        "mqt",
        "parcel",
        "parcel_uniform",
        "parcel_long",
    )


def test_a_variant_makes_what_a_study_of_its_own_would_make():
    """So what either has made, the other reuses: names are no part of an identity."""
    both = graph_of(load(overrides=[METHODS, UNIFORM]))
    alone = graph_of(load(overrides=["methods=[vanilla, parcel]", "train_budgets={}"]))

    def made(graph, method: str):
        return [
            (step.kind, value_sha256([step.config, step.seed]))
            for node in graph.nodes
            for step in node.steps
            if f" {method} " in f"{node.name} "
        ]

    assert made(both, "parcel_uniform") == made(alone, "parcel") != made(both, "parcel")


def test_a_variant_may_have_connector_settings_of_its_own():
    own = "connectors.parcel_long={num_heads: 2, buckets: [62, 256]}"
    study = load(overrides=[METHODS, UNIFORM, own])
    changed, usual = (study.model_of(m).connector for m in ("parcel_long", "parcel"))
    assert (changed.kind, changed.num_heads, changed.buckets) == ("parcel", 2, (62, 256))
    assert (
        usual == study.model_of("parcel_uniform").connector == load().model_of("parcel").connector
    )


def test_stage_2_scales_the_budgets_of_a_variant():
    study = load(overrides=[METHODS, UNIFORM, "stage2={image_px: 448}"])
    high = study.views[-1]
    assert high.variants["parcel_long"].train_budgets == (64, 1024)
    assert high.variants["parcel_uniform"].train_budgets is None


@pytest.mark.parametrize(
    ("variants", "told"),
    [
        ("{mqt: {of: parcel}}", "variants.mqt must have a name that is no connector's"),
        ("{a: {of: parcel}, b: {of: a}}", "variants.b.of must be a connector, got 'a'"),
        ("{a: {of: parcle}}", "variants.a.of must be one of vanilla.*got 'parcle'"),
        ("{a: {of: parcel, train_budgets: [8]}}", r"a.train_budgets must be distinct .*got \[8\]"),
        ("{a: {of: parcel, length: 0}}", "variants.a.length: .* greater than 0, got 0"),
        ("{a: {of: parcel, lenght: 2}}", "lenght: no such key; did you mean length"),
        ("{A b: {of: parcel}}", "variants"),
    ],
)
def test_a_wrong_variant_is_told_in_one_line(variants: str, told: str):
    with pytest.raises(ConfigError, match=told) as caught:
        load(overrides=[f"variants={variants}"])
    assert "\n" not in str(caught.value)


def test_a_variants_budgets_are_stated_with_it():
    with pytest.raises(ConfigError, match=r"its budgets as variants\.a\.train_budgets"):
        load(overrides=["variants={a: {of: parcel}}", "train_budgets.a=[16]"])
