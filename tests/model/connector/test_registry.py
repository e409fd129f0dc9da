"""The one registry of connectors: an entry is built, served and counted like a user's class."""

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from model import vlm
from model.analysis import flops
from model.connector import budgets, contract
from model.connector.build import build_connector
from model.connector.registry import CONNECTORS, KINDS, BuiltIn, connector_class, flops_formula
from model.connector.routing import Routing
from tests.model.connector import own_connectors
from tests.model.tiny_models import tiny_config

MODULE = '''
import typing
from flax import nnx
from model.connector.base import pool
from model.connector.registry import CONNECTORS

class Thirds(nnx.Module):
    """Scaled means of the cells of a grid."""

    routing: typing.ClassVar = CONNECTORS["thirds"].routing
    flops = staticmethod(CONNECTORS["thirds"].flops)

    def __init__(self, cfg, *, rngs):
        self.scale = nnx.Param(nnx.initializers.normal(1.0)(rngs.params(), (cfg.vision.width,)))

    def __call__(self, features, *, bucket, budget):
        del budget
        return pool(features, bucket) * self.scale[...].astype(features.dtype)[None, None]
'''


def thirds_flops(cfg, budget: int) -> int:
    return budget * cfg.vision.width


def test_no_two_entries_serve_and_count_alike():
    entries = [(entry.module, entry.name, entry.routing) for entry in CONNECTORS.values()]
    assert len(set(entries)) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_built_in_class_has_what_a_users_class_has(kind: str):
    connector = connector_class(kind)
    assert nnx.Module in connector.__mro__
    assert connector.__name__ == CONNECTORS[kind].name
    assert connector.routing in [entry.routing for entry in CONNECTORS.values()]
    assert connector.flops is CONNECTORS[kind].flops


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_says_what_is_built(kind: str):
    cfg = tiny_config(kind)
    module = nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0)))
    parameters = len(nnx.to_flat_state(nnx.state(module, nnx.Param)))
    assert (parameters > 0) == CONNECTORS[kind].has_parameters
    largest = budgets.supported_budgets(cfg)[-1]
    assert flops.connector_flops(cfg, largest) > 0 or not CONNECTORS[kind].has_parameters


def test_a_module_and_an_entry_add_a_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "thirds_connector.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    entry = BuiltIn("thirds_connector", "Thirds", Routing(grids=(2, 4, 8)), thirds_flops)
    monkeypatch.setitem(CONNECTORS, "thirds", entry)

    cfg = tiny_config("thirds")
    assert "thirds" in KINDS
    assert budgets.supported_budgets(cfg) == (4, 16, 64)
    assert [bucket.size for bucket in budgets.buckets(cfg)] == [4, 16, 64]
    assert flops.connector_flops(cfg, 16) == 16 * 12
    assert "thirds" in {model.connector.kind for model in flops.with_connectors(cfg)}
    assert all(finding.holds for finding in contract.check_promises(cfg))
    module = build_connector(cfg, rngs=nnx.Rngs(3))
    assert isinstance(module, nnx.Module)
    _, params = vlm.split(module)
    assert [np.shape(leaf) for leaf in params.values()] == [(12,)]


def test_a_formula_counts_for_its_class_and_not_for_a_users_that_extends_it():
    assert flops_formula("parcel") is CONNECTORS["parcel"].flops
    path = own_connectors.__name__
    assert own_connectors.FourAnchors.flops is CONNECTORS["parcel"].flops
    assert flops_formula(f"{path}:FourAnchors") is None  # XLA counts the layers it really has.
    assert flops_formula(f"{path}:Stated") is own_connectors.Stated.flops


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"num_heads .*vision\.width=12, got 5"):
        tiny_config("mqt", connector=_five_heads("mqt"))
    tiny_config("m3", connector=_five_heads("m3"))  # It has no attention.


def _five_heads(kind: str):
    return dataclasses.replace(tiny_config(kind).connector, num_heads=5)
