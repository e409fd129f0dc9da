"""Whatever a form's fields hold, what is wrong with them is one line."""

from pathlib import Path
from typing import Any

import pytest

from flows.sweep.form_values import form_problem, served_form_problem

ODD: tuple[Any, ...] = (
    3,
    1.5,
    True,
    float("nan"),
    [None],
    [[1]],
    {"a": 1},
    "\0",
    "a" * 9999,
    "x\ny",
)
FIELDS = ("study", "store", "data_root", "overrides", "steps", "until", "rebuild", "given", "add")


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_any_value_gives_at_most_one_line(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # Of a store that is named "x", a folder is made.
    for value in ODD:
        form = {"store": str(tmp_path / "store"), "study": "demo", field: value}
        if field == "store" and value == "a" * 9999:
            form[field] = f"{tmp_path}/{value}"
        for problem in (form_problem(form), served_form_problem({}, form)):
            assert problem is None or problem.isprintable(), (value, problem)
            assert problem is None or len(problem) < 1500, value


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("steps", 1.5, "steps: must be a list, got 1.5"),
        ("steps", "abc", "steps: must be a list, got 'abc'"),
        ("until", 1.5, "until: must be one of prepare, train, transfer, evaluate, report"),
        ("rebuild", [3], "rebuild: 0: must be a text, got 3"),
    ],
)
def test_a_field_of_another_type_is_named(field: str, value: Any, told: str, tmp_path: Path):
    problem = form_problem({"store": str(tmp_path), "study": "demo", field: value})
    assert problem is not None
    assert problem.startswith(told)
