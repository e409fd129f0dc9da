"""What is stated of a config has its keys and types checked, and stays as it is stated."""

import copy
import dataclasses
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import BeforeValidator, Field

from flows.config.validation import first_problem, partial_adapter
from flows.study.study import StudyConfig


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    size: Annotated[int, Field(ge=1)] = 3

    def __post_init__(self) -> None:
        raise AssertionError("A part is made.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    first: Annotated[Part, BeforeValidator(_named)]
    second: Part | Literal["first"] | None = None
    listed: list[Part] = dataclasses.field(default_factory=list)
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part | None] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("stated", "typed"),
    [
        ({}, {}),
        ({"second": None}, {"second": None}),
        ({"second": "first"}, {"second": "first"}),
        ({"second": {"size": "5"}}, {"second": {"size": 5}}),
        ({"first": "it"}, {"first": {"name": "it"}}),
        ({"listed": [{}], "parts": [{"size": 2.0}]}, {"listed": [{}], "parts": ({"size": 2},)}),
        ({"by_name": {"a": None, "b": {}}}, {"by_name": {"a": None, "b": {}}}),
    ],
)
def test_what_is_stated_is_typed_and_nothing_is_filled_in(stated: dict, typed: dict):
    before = copy.deepcopy(stated)
    assert partial_adapter(Whole).validate_python(stated) == typed
    assert stated == before


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"first": 3}, "first: must be a mapping, as {key: value}, got 3"),
        ({"first": {"size": 0}}, "first.size: must be greater than or equal to 1, got 0"),
        ({"second": {"size": True}}, "second.size: must be a number, not true or false, got True"),
        ({"parts": [{}, {"nam": "a"}]}, "parts.1.nam: no such key; did you mean name? Accepted: "),
        ({"by_name": {"a": {"size": "x"}}}, "by_name.a.size: must be a whole number, got 'x'"),
        ({"lst": []}, "lst: no such key"),
    ],
)
def test_a_problem_is_told_as_of_the_dataclass(stated: dict, problem: str):
    with pytest.raises(pydantic.ValidationError) as refused:
        partial_adapter(Whole).validate_python(stated)
    assert first_problem(refused.value, Whole).startswith(problem)


def test_no_dataclass_of_a_study_is_made_of_what_is_stated():
    def types_in(schema: Any) -> set[Any]:
        parts = schema.values() if isinstance(schema, dict) else schema
        own = {schema["type"]} if isinstance(schema, dict) and "type" in schema else set()
        nested = [types_in(part) for part in parts if isinstance(part, dict | list | tuple)]
        return {*map(str, own)}.union(*nested)

    found = types_in(partial_adapter(StudyConfig).core_schema)
    assert "typed-dict" in found
    assert "dataclass" not in found
