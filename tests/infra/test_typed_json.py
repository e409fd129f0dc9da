"""JSON becomes what its type states, or is refused with field, value and what is accepted."""

import dataclasses
import json

import pytest

from infra.errors import one_line
from infra.typed_json import parse_json, parse_typed, read_typed_lines, typed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    shards: tuple[str, ...]
    size: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    parts: dict[str, Part]
    pair: tuple[int, float] = (1, 2.0)
    name: str | None = None
    is_new: bool = False


def test_dataclasses_and_tuples_are_made_of_what_json_has():
    text = '{"parts": {"p": {"shards": ["a", "b"]}}, "pair": [4, 5], "name": null}'
    want = Whole(parts={"p": Part(shards=("a", "b"))}, pair=(4, 5))
    assert parse_typed(Whole, text, "x.json") == want
    assert parse_typed(Whole, text.encode(), "x.json") == want


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"^x.json: it must be an object, got \[\]\.$"),
        ({}, "^x.json: it lacks the field 'parts'"),
        ({"parts": {"p": {"shards": "ab"}}}, r"parts\.p\.shards must be a list, got 'ab'"),
        ({"parts": {"p": {"shards": [1]}}}, r"parts\.p\.shards\[0\] must be a text, got 1"),
        ({"parts": {}, "pair": [1]}, r"pair must be a list of 2, got \[1\]"),
        ({"parts": {}, "pair": [True, 1]}, r"pair\[0\] must be a whole number, got True"),
        ({"parts": {}, "name": 5}, "name must be a text, got 5"),
        ({"parts": {}, "is_new": 1}, "is_new must be true or false, got 1"),
        ({"parts": {}, "pats": 1}, "it has no field 'pats'; accepted: parts, pair"),
    ],
)
def test_what_is_wrong_is_named(values: object, message: str):
    with pytest.raises(ValueError, match=message):
        parse_typed(Whole, json.dumps(values), "x.json")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff{}", b"[" * 100_000, b"NaN", b"1e999", b"9" * 5000, rb'"\ud800"', b"{}x"],
)
def test_what_is_no_json_is_refused_in_one_short_line(text: bytes):
    with pytest.raises(ValueError, match=r"^x\.json ") as refused:
        parse_json(text, "x.json")
    assert type(refused.value) is ValueError
    assert len(str(refused.value)) < 400
    assert str(refused.value).isprintable()


def test_numbers_that_are_none_are_null_where_they_are_accepted():
    text = b'{"loss": NaN, "low": -Infinity, "high": 1e999, "mean": 0.5}'
    with pytest.raises(ValueError, match=r"x\.json has a number out of range: NaN"):
        parse_json(text, "x.json")
    values = {"loss": None, "low": None, "high": None, "mean": 0.5}
    assert parse_json(text, "x.json", finite=False) == values


def test_a_line_is_named_by_its_number(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"shards": []}\n{"shards": [], "size": "7"}\n')
    lines = read_typed_lines(Part, path)
    assert next(lines) == Part(shards=())
    with pytest.raises(ValueError, match=r"x\.jsonl line 2: size .*got '7'"):
        next(lines)


def test_every_number_is_a_number_but_no_text_or_truth_is():
    assert [typed(float, value) for value in (1, 1.5)] == [1, 1.5]
    for value in (True, "1", None, [1]):
        with pytest.raises(ValueError, match="must be a number"):
            typed(float, value)


def test_a_shown_line_has_no_control_characters_and_keeps_its_ends():
    assert one_line("a\x1b[2Jb\nc\ud800 d") == "a\\x1b[2Jb c\\ud800 d"
    long = one_line(f"field must be a name, got {'x' * 100_000}; name another.")
    assert len(long) < 1000
    assert long.startswith("field must be")
    assert long.endswith("name another.")
