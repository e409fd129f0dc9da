"""A study's start: its digest is computed, not believed."""

from pathlib import Path

import pytest

from flows.steps.registry import code_digest
from flows.steps.worker import Made, make
from infra.store.manifest import Recipe
from infra.store.store import Store
from model.checkpoint.folder import save_checkpoint
from tests.model.checkpoint.test_folder import MODEL, PARAMS


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    folder = tmp_path / "given"
    folder.mkdir()
    save_checkpoint(folder, model=MODEL, params=PARAMS, tokenizer=None, mask_codec=None)
    code = code_digest("start", None)
    return Recipe(kind="start", name="start", code=code, location=str(folder))


def test_content_is_the_parameters_digest(recipe: Recipe, tmp_path: Path):
    assert list(make(str(tmp_path / "store"), [recipe], {}))[-1] == Made(name="start")
    content = Store(tmp_path / "store").get(recipe.key).manifest.content
    assert content == (Path(str(recipe.location)) / "digest.txt").read_text().strip()


def test_start_that_states_another_digest_is_refused(recipe: Recipe, tmp_path: Path):
    (Path(str(recipe.location)) / "digest.txt").write_text("f" * 64 + "\n")
    (end,) = make(str(tmp_path / "store"), [recipe], {})
    assert isinstance(end, Made)
    assert f"checkpoint {recipe.location} holds parameters of digest" in end.error
    assert Store(tmp_path / "store").find(recipe.key) is None
