"""The values that config fields were born with: a table, since keys leave them out for ever."""

import dataclasses
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.registry import KINDS
from flows.study.load import load
from infra.store.digest import birth_values, born
from infra.store.manifest import Recipe
from model.train.config import TrainConfig

TABLE = Path(__file__).with_name("births.json")
"""Config -> field -> [the value that it was born with], or [] if it was born without a default."""


def configs_in(kind: Any) -> Iterator[type[Any]]:
    """Yields the configs that a type holds, at any depth."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        yield kind
        hints = typing.get_type_hints(kind)
        inner = [hints[name] for name in birth_values(kind) if hints[name] != kind]
    else:
        inner = [*typing.get_args(kind)]
    for part in inner:
        if kind not in typing.get_args(part):
            yield from configs_in(part)


def all_configs() -> dict[str, type[Any]]:
    """Returns name -> config, for all configs that a step's config can hold."""
    found = {config for kind in KINDS.values() for config in configs_in(kind.spec)}
    by_name = {config.__name__: config for config in found}
    assert len(by_name) == len(found)
    return dict(sorted(by_name.items()))


def problems(table: dict[str, Any], births: dict[str, Any]) -> list[str]:
    """Returns what to do about each field whose birth value is not that of the table."""
    lines = []
    for config, field in sorted({(c, f) for t in (table, births) for c in t for f in t[c]}):
        was, now = (t.get(config, {}).get(field) for t in (table, births))
        line = json.dumps(now)
        if was is None:
            lines.append(f"{config}.{field} is new: add it to {TABLE.name} as {line}")
        elif now is None:
            lines.append(f"{config}.{field} is gone, or no identity any more: take it out")
        elif was != now:
            values = ", ".join(map(repr, was))
            lines.append(f"{config}.{field} has another default: metadata=born({values})")
    return lines


def births() -> dict[str, Any]:
    values = {name: birth_values(config) for name, config in all_configs().items()}
    return json.loads(json.dumps(values))


def test_every_field_has_the_birth_value_of_the_table():
    assert problems(json.loads(TABLE.read_text()), births()) == []


def test_what_changed_is_said_with_its_cure():
    table = json.loads(TABLE.read_text())
    table["TrainConfig"]["b2"] = [0.9]
    table["TrainConfig"]["momentum"] = [0.0]
    del table["TrainConfig"]["dropout"]
    other, new, gone = problems(table, births())
    assert re.match(r"TrainConfig\.b2 .*: metadata=born\(0\.9\)", other)
    assert re.match(r"TrainConfig\.dropout is new: .*births\.json .*\[0\.0\]", new)
    assert gone.startswith("TrainConfig.momentum is gone")


def test_birth_values_are_spelled_as_given_values_are():
    for config in all_configs().values():
        hints = typing.get_type_hints(config)
        for name, value in birth_values(config).items():
            # A given 0 becomes 0.0, which JSON spells in another way than a default of 0.
            assert hints[name] is not float or isinstance(value[0] if value else 0.0, float)
            choices = [c for c in typing.get_args(hints[name]) if dataclasses.is_dataclass(c)]
            assert len(choices) < 2, "without their fields, two configs are spelled the same"


def trained(default: float, **metadata: Any) -> type[Any]:
    """Returns the class TrainConfig with one more field, as a new line in it would make it."""
    z_loss = dataclasses.field(default=default, **metadata)
    fields = [("z_loss", float, z_loss)]
    return dataclasses.make_dataclass(
        "TrainConfig", fields, bases=(TrainConfig,), frozen=True, kw_only=True
    )


def key(kind: type[Any], **more: float) -> str:
    study = load()
    assert study.stage1 is not None
    spec = FitSpec(model=study.model, train=kind(**vars(study.stage1), **more))
    return Recipe(kind="checkpoint", name="stage1", config=spec, seed=3).key


def test_a_new_field_leaves_every_key_as_it_was():
    assert key(trained(0.0)) == key(TrainConfig)
    assert key(trained(0.0), z_loss=0.1) != key(TrainConfig)


def test_a_changed_default_has_another_key_and_the_old_value_the_old_one():
    changed = trained(0.1, metadata=born(0.0))
    assert key(changed, z_loss=0.0) == key(TrainConfig)
    assert key(changed) == key(trained(0.0), z_loss=0.1) != key(TrainConfig)
    # Without `born` the new default would pass for the old one.
    assert key(trained(0.1)) == key(TrainConfig)


def test_a_field_that_was_born_without_a_default_stays_in_the_key():
    needed = trained(0.1, metadata=born())
    assert key(needed) == key(trained(0.0), z_loss=0.1)
