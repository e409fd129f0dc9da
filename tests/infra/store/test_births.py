"""Fields at their birth values: out of keys, in manifests, and filled in where one lacks them."""

import dataclasses
import json
from collections.abc import Mapping

import pytest

from infra.store.births import with_births
from infra.store.digest import (
    NOT_IDENTITY,
    birth_values,
    born,
    canonical_json,
    identity_json,
    identity_where,
)


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    workers: int = dataclasses.field(default=2, metadata=NOT_IDENTITY)


@dataclasses.dataclass(frozen=True)
class ChangedInner:
    """`Inner` after an edit of its default."""

    rate: float = dataclasses.field(default=0.7, metadata=born(0.5))
    workers: int = dataclasses.field(default=2, metadata=NOT_IDENTITY)


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = Inner()
    half: Inner = Inner(rate=0.25)
    perhaps: Inner | None = None
    several: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    pairs: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class ChangedOuter:
    name: str
    inner: ChangedInner = ChangedInner()
    half: ChangedInner = ChangedInner(rate=0.25)


def test_a_key_has_what_is_not_at_its_birth_value():
    assert identity_json(Outer("a")) == '{"name":"a"}'
    assert identity_json(Outer("a", several=(Inner(), Inner(0.1)))) == (
        '{"name":"a","several":[{},{"rate":0.1}]}'
    )
    assert identity_json(Outer("a", by_name={"x": Inner()})) == '{"by_name":{"x":{}},"name":"a"}'
    assert identity_json(Outer("a", perhaps=Inner())) == '{"name":"a","perhaps":{}}'


def test_what_is_no_identity_decides_nothing_in_a_nested_config_either():
    busy = Outer("a", inner=Inner(workers=9), half=Inner(rate=0.25, workers=9))
    assert identity_json(busy) == identity_json(Outer("a"))


def test_a_changed_default_below_is_a_changed_default():
    assert birth_values(ChangedOuter) == {"name": (), "inner": ({},), "half": ({"rate": 0.25},)}
    assert identity_json(ChangedOuter("a")) == '{"inner":{"rate":0.7},"name":"a"}'
    assert identity_json(ChangedOuter("a", inner=ChangedInner(rate=0.5))) == '{"name":"a"}'


@pytest.mark.parametrize(
    "config",
    [
        Outer("a"),
        Outer("a", perhaps=Inner(0.1), several=(Inner(0.2), Inner())),
        Outer("a", by_name={"x": Inner(), "y": Inner(0.3)}, pairs=(("a", 1.0), ("b", 2.0))),
        ChangedOuter("a", inner=ChangedInner(rate=0.5)),
    ],
)
def test_a_config_without_its_births_is_filled_again(config: Outer | ChangedOuter):
    full, short = json.loads(canonical_json(config)), json.loads(identity_json(config))
    assert with_births(type(config), short) == full
    assert with_births(type(config), full) == full


def test_only_configs_are_filled():
    assert with_births(str, "vqa") == "vqa"
    assert with_births(None, None) is None
    assert with_births(dict, {"a": {"b": 1}}) == {"a": {"b": 1}}
    assert with_births(Outer, {"name": "a", "gone": 3})["gone"] == 3


@dataclasses.dataclass(frozen=True)
class Conditional:
    shards: int | None = None
    rows: int | None = dataclasses.field(default=None, metadata=identity_where("shards"))


def test_a_field_may_count_only_where_another_is_set():
    assert identity_json(Conditional(rows=3)) == identity_json(Conditional()) == "{}"
    assert canonical_json(Conditional(rows=3)) == '{"shards":null}'
    assert identity_json(Conditional(8, 3)) == '{"rows":3,"shards":8}'
    assert with_births(Conditional, {}) == {"shards": None}
    assert with_births(Conditional, {"shards": 8}) == {"shards": 8, "rows": None}
    assert with_births(Conditional, {"rows": 3}) == {"shards": None, "rows": 3}
