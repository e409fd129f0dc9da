"""Connectors of ours keep their promises; where one is broken, it is told which, and where."""

import dataclasses

import pytest

from model.config import ModelConfig
from model.connector.contract import check_connector_shapes, check_promises
from tests.model.tiny_models import ELASTIC_KINDS, POOLED_KINDS, tiny_config
from tests.slices import day_slice

OWN = "tests.model.connector.own_connectors"
PROMISES = [
    *("programs", "budgets", "dtypes", "images", "masking", "gradients", "nesting", "choice"),
]


def broken(cfg: ModelConfig) -> dict[str, str]:
    found = list(check_promises(cfg))
    assert [finding.name for finding in found] == PROMISES
    assert all(finding.detail and "\n" not in finding.detail for finding in found)
    return {finding.name: finding.detail for finding in found if not finding.holds}


@pytest.mark.slow
@pytest.mark.parametrize("kind", POOLED_KINDS)
def test_ours_without_queries_keep_every_promise(kind: str):
    assert not broken(tiny_config(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", day_slice(ELASTIC_KINDS, ["mqt", "parcel"]))
def test_ours_with_queries_keep_every_promise(kind: str):
    assert not broken(tiny_config(kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Prefix", "Stated"])
def test_ones_own_keeps_every_promise(name: str):
    assert not broken(tiny_config(f"{OWN}:{name}"))


def test_parameters_of_one_budget_are_found_and_those_under_a_root_stay_positive():
    # Its budgets share no parameter: what a smaller one trains a larger one does not.
    assert set(broken(tiny_config(f"{OWN}:ScaledGrids"))) == {"nesting"}


@pytest.mark.deep
def test_rounding_at_the_papers_width_breaks_no_promise():
    cfg = tiny_config("parcel")
    vision = dataclasses.replace(cfg.vision, width=1152, num_heads=12)
    connector = dataclasses.replace(cfg.connector, num_heads=12)
    assert not broken(dataclasses.replace(cfg, vision=vision, connector=connector))


def test_what_is_told_of_one_that_keeps_them():
    told = {
        finding.name: finding.detail for finding in check_promises(tiny_config(f"{OWN}:Stated"))
    }
    assert told["programs"] == "3 for 3 budgets"
    assert told["budgets"] == "6, 14, 250"
    assert told["masking"] == "no slot is ever masked"
    assert "first ones" in told["nesting"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("id_selection", "by content"), (f"{OWN}:FirstOnes", "by place"), ("m3", "no features")],
)
def test_what_is_told_of_a_choice(name: str, told: str):
    findings = {finding.name: finding for finding in check_promises(tiny_config(name))}
    assert findings["choice"].holds
    assert told in findings["choice"].detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "promise", "told"),
    [
        ("LooksAtTheBudget", "programs", "mask by `jnp.arange(bucket) < budget`"),
        (
            "TooFew",
            "programs",
            "must give an array of (2, 32, 12) (images, slots, vision width), got (2, 31, 12)",
        ),
        ("Promotes", "dtypes", "features of bfloat16 must give tokens of it, got float32"),
        ("HalfParameters", "dtypes", "parameter scale must be float32, got bfloat16"),
        ("SeesOthers", "images", "change by"),
        ("SeesThoseBefore", "images", "change by"),
        ("ReadsBeyond", "masking", "budget 2 in 32 slots differs by"),
        ("Untrained", "gradients", "of spare: zero at every budget tried; nothing trains it"),
        ("Infinite", "gradients", "not finite"),
        ("OtherRows", "nesting", "numbers of queries that budget 130 does not"),
        ("ClampedChoice", "choice", "of the 64 chosen are others when their places change"),
    ],
)
def test_a_broken_promise_is_told(name: str, promise: str, told: str):
    found = broken(tiny_config(f"{OWN}:{name}"))
    assert told in found[promise]
    if promise == "programs":
        assert all("not tried" in told for name, told in found.items() if name != promise)


def test_a_study_is_told_without_computing():
    check_connector_shapes(tiny_config(f"{OWN}:ReadsBeyond"))
    with pytest.raises(ValueError, match=r"own_connectors:TooFew .*'programs': bucket 32 "):
        check_connector_shapes(tiny_config(f"{OWN}:TooFew"))
    with pytest.raises(ValueError, match="breaks 'programs': TypeError: cannot reshape"):
        check_connector_shapes(with_heads(tiny_config(f"{OWN}:Prefix"), 5))


def with_heads(cfg: ModelConfig, heads: int) -> ModelConfig:
    return dataclasses.replace(cfg, connector=dataclasses.replace(cfg.connector, num_heads=heads))
