"""A step made again under a kept source tree, in a process that has only that tree."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.steps.kinds.files import FilesSpec
from flows.steps.remake import RemakeError, step_loss_lines
from infra.source_code import checkout
from infra.store.manifest import Recipe
from infra.store.store import Store

MAKER = "flows/steps/kinds/files.py"
RECIPE = Recipe(kind="files", name="files x", config=FilesSpec(files=(("a.txt", "0" * 64, 1),)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def tree(old: str = "", new: str = "") -> Mapping[str, bytes]:
    text = checkout().files[MAKER].decode()
    assert old in text
    return {**checkout().files, MAKER: text.replace(old, new, 1).encode()}


@pytest.mark.slow
def test_the_same_code_gives_the_same_contents_and_other_code_others(store: Store):
    same = step_loss_lines(store, RECIPE, tree(), 1)
    assert same == step_loss_lines(store, RECIPE, tree(), 1)
    assert [line.split()[0] for line in same] == ["contents"]
    assert step_loss_lines(store, RECIPE, tree("{sha256}  {size}", "{size}  {sha256}"), 1) != same
    assert list(store.keys()) == []


def losses(first: float, updates: int) -> Mapping[str, bytes]:
    told = "yield Progress(done=1, total=1)"
    loop = (
        f"print('noise')\n    for done in range(1, {updates} + 1):\n"
        f"        yield Progress(done=done, total=9, loss={first} / done)"
    )
    return tree(told, loop)


def test_a_training_is_left_after_the_updates_asked_for(store: Store):
    long = step_loss_lines(store, RECIPE, losses(1.0, 10**9), 3)
    assert long == (
        "loss 1.0 after 1 updates",
        "loss 0.5 after 2 updates",
        "loss 0.3333333333333333 after 3 updates",
    )
    whole = step_loss_lines(store, RECIPE, losses(1.0, 2), 3)
    assert whole[:2] == long[:2]
    assert whole[2].startswith("contents ")


def test_a_step_that_fails_says_why(store: Store):
    broken = tree("    lines = [", "    raise ValueError('no such thing')\n    lines = [")
    with pytest.raises(RemakeError, match="ValueError: no such thing"):
        step_loss_lines(store, RECIPE, broken, 1)
