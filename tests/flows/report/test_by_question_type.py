"""Tests of the kinds of question, which are told apart by their words."""

import pytest

from flows.report.by_question_type import question_type


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("answer en How many bars are shown?", "how many"),
        ("answer en in which year did it fall?", "which"),
        ("answer en what's the name?", "what"),
        ("answer en Does it show what he bought?", "yes or no"),
        ("answer en isle or mainland?", "other"),
        ("answer th how many?", "answer th"),
        ("How many bars are shown?", "how many"),
        ("What color", "what"),
        ("the man who waves", "expression"),
        ("can on the left", "expression"),
        ("Question: Is it solid?\nContext: what is frozen\nOptions: (A) yes (B) no", "yes or no"),
        ("answer en  Which is a mammal? choose from: how \t bat", "which"),
        ("segment the left how", "segment"),
        ("caption en", "caption en"),
        ("detect what", "detect"),
    ],
)
def test_kinds(prefix: str, expected: str):
    assert question_type(prefix) == expected
