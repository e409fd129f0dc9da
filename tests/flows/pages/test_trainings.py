"""Pages of trainings that are not finished, and of runs that have no table."""

import json
import re
import uuid
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from flows.lookup.runs import begin_run_record, record_name, stop_run_record
from flows.pages.app import store_pages
from infra.prefect.server import PAGES
from infra.store.digest import canonical_json
from infra.store.manifest import Recipe
from infra.store.scratch import RECIPE, SCRATCH
from infra.store.store import Store
from model.files import METRICS
from tests.flows.pages.studies import LOSSES, commit

ROWS = "".join(
    json.dumps(
        {
            "step": step,
            "loss": 5 / step,
            "learning_rate": 1e-3 / step,
            "gradient_norm": 5.0,
            "gradient_norms": {"connector": 3.0, "text": 4.0 / step},
            "tokens_per_second": 900.0 + step,
            "memory_gb": 1.5,
        }
    )
    + "\n"
    for step in range(1, 8)
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def client(store: Store) -> TestClient:
    return TestClient(Starlette(routes=[Mount(PAGES, store_pages(store.uri))]))


def titles(page: str) -> list[str]:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, re.S)
    return [" ".join(re.sub(r"<[^>]*>", " ", caption).split()) for caption in captions]


def begin(store: Store, name: str, rows: str) -> str:
    """Writes the progress of a training that has no checkpoint; returns its key."""
    data = commit(store, "dataset", "prepare web", {})
    recipe = Recipe(kind="checkpoint", name=name, inputs={"data/0": data.as_input}, code="ab" * 32)
    folder = store.state / SCRATCH / recipe.key / "holding"
    folder.mkdir(parents=True)
    (folder / RECIPE).write_text(canonical_json(recipe))
    (folder / METRICS).write_text(rows)
    return recipe.key


def test_a_training_without_a_checkpoint_has_a_page_with_its_curves(store: Store):
    key = begin(store, "stage1 vanilla", ROWS + '{"step": 8, "lo')
    answer = client(store).get(f"{PAGES}/artifact/{key}")
    assert answer.status_code == 200
    assert "stage1 vanilla" in answer.text
    assert titles(answer.text) == [
        "loss by step",
        "gradient norm by step all connector text",
        "learning rate by step",
        "tokens per second by step",
        "peak memory [GB] by step",
    ]
    assert "loss: 0.714 at step 7" in answer.text
    assert "/artifact/dataset-" in answer.text
    # No run is at work on it, so it does not change.
    assert "No run that this machine knows is at work on it" in answer.text
    assert 'http-equiv="refresh"' not in answer.text


def test_a_training_that_logged_nothing_says_so(store: Store):
    page = client(store).get(f"{PAGES}/artifact/{begin(store, 'stage1 vanilla', '')}").text
    assert "It has logged nothing yet" in page


@pytest.mark.parametrize("key", ["checkpoint-0123456789abcdef-0123", "checkpoint", "a%2Fb"])
def test_an_unknown_key_has_no_page(store: Store, key: str):
    assert client(store).get(f"{PAGES}/artifact/{key}").status_code == 404


def test_a_run_without_a_table_shows_what_it_trained_and_why_it_ended(store: Store):
    trained = commit(store, "checkpoint", "stage1 vanilla", {METRICS: LOSSES})
    run = str(uuid.uuid4())
    begin_run_record(
        store, {"name": "toy"}, run, artifacts=[trained.key], given="parcel run toy.yaml"
    )
    path = f"{PAGES}/results/{record_name('toy', run)}"
    page = client(store).get(path).text
    assert "running" in page
    assert titles(page) == ["loss by step stage1 vanilla"]
    assert f"/artifact/{trained.key}" in page
    stop_run_record(store, run, "crashed", "the machine is gone")
    page = client(store).get(path).text
    assert "crashed" in page
    assert "the machine is gone" in page
    assert titles(page) == ["loss by step stage1 vanilla"]
