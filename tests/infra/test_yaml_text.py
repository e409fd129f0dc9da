"""Tests of YAML as its version 1.2 has it."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.yaml_text import YamlError, dump_yaml, load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("-3", -3),
        ("0", 0),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e-4", 1e-4),
        ("1e2", 100.0),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("yes", "yes"),
        ("off", "off"),
        ("2026-11-28", "2026-11-28"),
        ("'010'", "010"),
        ("True", True),
        ("~", None),
        ("", None),
        ("a: &s {x: 1}\nb: {<<: *s, y: 2}", {"a": {"x": 1}, "b": {"x": 1, "y": 2}}),
    ],
)
def test_values_are_those_of_version_1_2(text: str, value: Any):
    read = load_yaml(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(("text", "number"), [("010", 10), ("-07", -7), ("08", 8), ("0_1", 1)])
def test_a_number_that_begins_with_0_is_refused_with_what_to_write(text: str, number: int):
    with pytest.raises(YamlError, match=rf"got {text}: write {number}, or '{text}'") as told:
        load_yaml(f"a: 1\nb: [{text}]")
    assert told.value.line == 2


def test_what_is_no_yaml_has_a_line():
    with pytest.raises(YamlError, match=r"^not YAML that can be read: ") as told:
        load_yaml("a: 1\nb: [1,\n")
    assert told.value.line == 3


_PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="ascii", exclude_categories=["C"])),
    st.sampled_from(["010", "1e4", "1:30", "yes", "0o7", "0x1", "1_0", "=", "<<", "2026-11-28"]),
)


@given(value=st.recursive(_PLAIN, lambda part: st.lists(part, max_size=3), max_leaves=5))
def test_readers_of_both_versions_read_what_is_written(value: Any):
    text = dump_yaml(value)
    assert load_yaml(text) == value
    assert yaml.safe_load(text) == value
