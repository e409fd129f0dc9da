"""A connector and its author's torch module on equal weights; what is said where they differ."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

from model.checkpoint.target import RequestError
from model.checkpoint.torch_connector import TorchClass, compare, torch_class
from model.connector.contract import PromiseCheck
from tests.model.checkpoint.prefix_in_torch import PREFIX
from tests.model.tiny_models import tiny_config
from tests.slices import day_slice
from tests.torch_python import torch_python

OTHERS = """

class Late(Prefix):
    def forward(self, features, budget):
        tokens = super().forward(features, budget)
        tokens[1, 60:, 3] += 1.0
        return tokens


class NotANumber(Prefix):
    def forward(self, features, budget):
        return super().forward(features, budget) * float("nan")


class Short(Prefix):
    def forward(self, features, budget):
        return super().forward(features, budget)[:, 1:]


class Raises(Prefix):
    def forward(self, features, budget):
        raise KeyError("no such layer")


class Unnamed(Prefix):
    def __init__(self, config):
        super().__init__(config)
        self.look, self.attn = self.attn, None


class Wide(Prefix):
    def __init__(self, config):
        super().__init__(config)
        self.queries = nn.Parameter(torch.zeros(3, 12))


class Spare(Prefix):
    def __init__(self, config):
        super().__init__(config)
        self.spare = nn.Linear(2, 2)


class Buffered(Prefix):
    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("table", torch.zeros(3), persistent=False)


class Sized(Prefix):
    def __init__(self, width, heads):
        pass


class Plain:
    pass
"""


def compared(folder: Path, name: str, text: str = PREFIX + OTHERS) -> PromiseCheck:
    torch_python()
    (folder / "prefix.py").write_text(text)
    cfg = tiny_config("tests.model.connector.own_connectors:Prefix")
    one_program = dataclasses.replace(cfg.connector, buckets=(256,))
    cfg = dataclasses.replace(cfg, connector=one_program)
    return compare(cfg, TorchClass(file=folder / "prefix.py", name=name))


@pytest.mark.slow
def test_equal_weights_give_equal_tokens_at_every_budget(tmp_path: Path):
    check = compared(tmp_path, "Prefix")
    assert check.holds, check.detail
    assert "Prefix is within 1e-05 of ours at 128 budgets" in check.detail


@pytest.mark.slow
def test_a_difference_says_at_which_budgets_and_where(tmp_path: Path):
    check = compared(tmp_path, "Late")
    assert not check.holds
    assert "at budget 62, most in image 1, token 6" in check.detail
    assert "channel 3; above 1e-05 at 98 of 128 budgets, 62: " in check.detail


TOLD = [
    ("NotANumber", "differs from ours by inf at budget 2, most in image 0"),
    ("Short", "Short.forward(features, 2) must give (2, 2, 12) (images, tokens, width), got"),
    ("Raises", "Raises.forward(features, 2): KeyError: 'no such layer' (line "),
    ("Unnamed", "our weight attn.k_proj.bias has no place in Unnamed; the nearest it has is"),
    ("Wide", "queries must be (256, 12) in torch, got (3, 12)"),
    ("Spare", "Spare has the parameter spare.weight, for which we have no weight"),
    ("Buffered", "Buffered has the buffer table, whose values no release holds"),
    ("Sized", "Sized(config) cannot be built: TypeError: "),
    ("Plain", "must define Plain, a torch.nn.Module, got <class"),
    ("Nobody", "must define Nobody, a torch.nn.Module, got None"),
]
"""Class of `OTHERS` -> what is said of it."""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "told"), day_slice(TOLD, [case for case in TOLD if case[0] in ("Unnamed", "Raises")])
)
def test_what_cannot_be_compared_is_one_line(name: str, told: str, tmp_path: Path):
    check = compared(tmp_path, name)
    assert not check.holds
    assert told in check.detail
    assert "\n" not in check.detail


@pytest.mark.deep
def test_a_file_that_cannot_be_imported_says_in_which_line(tmp_path: Path):
    check = compared(tmp_path, "Prefix", PREFIX + "\nimport no_such_package_here\n")
    told = "cannot be imported: ModuleNotFoundError: No module named 'no_such_package_here' (line "
    assert told in check.detail
    assert not check.holds


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("no/such/python", "PARCEL_TORCH_PYTHON must name a Python, got no/such/python: no such"),
        (sys.executable, "No module named 'torch'; it must have torch and transformers"),
    ],
)
def test_a_python_that_is_none_is_named(
    named: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_TORCH_PYTHON", named)
    (tmp_path / "prefix.py").write_text(PREFIX)
    with pytest.raises(RequestError, match="PARCEL_TORCH_PYTHON") as raised:
        compare(tiny_config("m3"), TorchClass(file=tmp_path / "prefix.py", name="Prefix"))
    assert told in str(raised.value)


def test_without_torch_the_cure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is beside the project")
    monkeypatch.delenv("PARCEL_TORCH_PYTHON", raising=False)
    (tmp_path / "prefix.py").write_text(PREFIX)
    told = "--torch needs PARCEL_TORCH_PYTHON, a Python that has torch .*/pip install torch"
    with pytest.raises(RequestError, match=told):
        compare(tiny_config("m3"), TorchClass(file=tmp_path / "prefix.py", name="Prefix"))


def test_a_class_is_named_by_its_file_or_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "prefix_of_mine.py"
    file.write_text("raise AssertionError('nothing is imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torch_class(f"{file}:Prefix") == TorchClass(file=file, name="Prefix")
    assert torch_class("prefix_of_mine:Prefix") == TorchClass(file=file, name="Prefix")
    for name, told in (
        ("Prefix", "--torch must be a class as file.py:Class or module:Class, got 'Prefix'"),
        ("nowhere.py:Prefix", "--torch: there is no file nowhere.py"),
        ("nowhere_at_all:Prefix", "--torch: there is no file nowhere_at_all.py"),
    ):
        with pytest.raises(RequestError, match="--torch") as raised:
            torch_class(name)
        assert told in str(raised.value)
