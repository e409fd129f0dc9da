"""A study's start: its digest is computed, not believed."""

import dataclasses
from pathlib import Path

import pytest

from flows.steps.registry import code_digest
from flows.steps.worker import StepOutcome, make
from flows.study.input_files import input_files_spec
from infra.store.manifest import Recipe
from infra.store.store import Store
from model import vlm
from model.checkpoint.exporter import export_checkpoint
from model.checkpoint.folder import params_digest_of, save_checkpoint
from tests.model.checkpoint.test_folder import MODEL, PARAMS
from tests.model.tiny_model import tiny_model


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    folder = tmp_path / "given"
    folder.mkdir()
    save_checkpoint(folder, model=MODEL, params=PARAMS, tokenizer=None, mask_codec=None)
    code = code_digest("start", None)
    return Recipe(kind="start", name="start", code=code, location=str(folder))


def test_content_is_the_parameters_digest(recipe: Recipe, tmp_path: Path):
    assert list(make(str(tmp_path / "store"), [recipe], {}))[-1] == StepOutcome(name="start")
    content = Store(tmp_path / "store").get(recipe.key).manifest.content
    assert content == (Path(str(recipe.location)) / "digest.txt").read_text().strip()


def test_start_that_states_another_digest_is_refused(recipe: Recipe, tmp_path: Path):
    (Path(str(recipe.location)) / "digest.txt").write_text("f" * 64 + "\n")
    *_, end = make(str(tmp_path / "store"), [recipe], {})
    assert isinstance(end, StepOutcome)
    assert f"checkpoint {recipe.location} holds " in end.error
    assert Store(tmp_path / "store").find(recipe.key) is None


@pytest.mark.slow
def test_weights_of_another_codebase_are_converted_to_the_same_contents(
    recipe: Recipe, tmp_path: Path
):
    tower = tiny_model()
    ours = tmp_path / "ours"
    ours.mkdir()
    digest = save_checkpoint(
        ours, model=tower, params=vlm.init_params(tower, 3), tokenizer=None, mask_codec=None
    )
    export_checkpoint(ours, tmp_path / "weights", None)
    store = Store(tmp_path / "store")
    files = input_files_spec(tmp_path / "weights")
    noted = Recipe(kind="files", name="files", config=files, code=code_digest("files", files))
    assert list(make(store.uri, [noted], {}))[-1] == StepOutcome(name="files")
    given = store.get(noted.key)
    begun = dataclasses.replace(
        recipe, inputs={"given": given.as_input}, location=str(tmp_path / "weights")
    )
    assert list(make(store.uri, [begun], {}))[-1] == StepOutcome(name="start")
    made = store.get(begun.key)
    assert made.manifest.content == digest
    assert params_digest_of(made.path) == digest
    # Files that changed since they were noted are no input of the study.
    (tmp_path / "weights" / "config.json").write_text(
        (tmp_path / "weights" / "config.json").read_text() + "\n"
    )
    *_, end = make(str(tmp_path / "store"), [dataclasses.replace(begun, seed=1)], {})
    assert isinstance(end, StepOutcome)
    assert "config.json has changed" in end.error
