"""A study's start: its digest is computed, not believed."""

from pathlib import Path

import pytest

from flows.steps.worker import Made, Order, make
from infra.store.manifest import Step
from infra.store.store import Store
from model.checkpoint.folder import save_checkpoint
from tests.model.checkpoint.test_folder import MODEL, PARAMS

STEP = Step(kind="start", name="start")


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    save_checkpoint(folder, model=MODEL, params=PARAMS, tokenizer=None, mask_codec=None)
    return folder


def test_content_is_the_parameters_digest(start: Path, tmp_path: Path):
    order = Order(step=STEP, store=str(tmp_path / "store"), location=str(start))
    assert list(make(order))[-1] == Made(key=STEP.key, reused=False)
    content = Store(tmp_path / "store").get(STEP.key).manifest.content
    assert content == (start / "digest.txt").read_text().strip()


def test_start_that_states_another_digest_is_refused(start: Path, tmp_path: Path):
    (start / "digest.txt").write_text("f" * 64 + "\n")
    order = Order(step=STEP, store=str(tmp_path / "store"), location=str(start))
    with pytest.raises(ValueError, match=f"checkpoint {start} holds parameters of digest") as told:
        list(make(order))
    assert "\n" not in str(told.value)
    assert Store(tmp_path / "store").find(STEP.key) is None
