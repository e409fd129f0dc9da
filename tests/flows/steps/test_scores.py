"""The kinds `predictions` and `scores`, made by a worker from a store."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.steps import worker
from flows.steps.kinds.scores import ScoreSpec
from flows.steps.registry import code_digest, libraries_of
from flows.steps.worker import StepOutcome, _group_recipes
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model.eval.items_file import ItemsFile
from tests.model.tiny_data import color_record, write_dataset

RECORDS = [color_record(i) for i in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def data(store: Store, tmp_path: Path) -> Artifact:
    attempt = Attempt(store, Recipe(kind="dataset", name="prepare colors/eval"))
    for path in Path(write_dataset(tmp_path / "data", {"color": RECORDS})).iterdir():
        path.rename(attempt.path / path.name)
    return attempt.commit({})


def answered(store: Store, data: Artifact, budget: int, right: int, **more: float) -> Artifact:
    """Commits predictions of which the first few are right; `more` is in each row."""
    inputs = {"data": data.as_input}
    attempt = Attempt(store, Recipe(kind="predictions", name="x", inputs=inputs, config=budget))
    rows = [
        {
            "id": record.id,
            "prefix": record.prefix,
            "prediction": record.answers[0] if number < right else "no",
            "answers": list(record.answers),
            "source": record.source,
            "source_sha256": record.source_sha256,
            **more,
        }
        for number, record in enumerate(RECORDS)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (attempt.path / "predictions.jsonl").write_text(lines)
    return attempt.commit({})


def recipe(predictions: Artifact, data: Artifact, budget: int, metric: str) -> Recipe:
    spec = ScoreSpec(benchmark="colors", budget=budget, metric=metric)
    return Recipe(
        kind="scores",
        name=f"score {metric} {budget}",
        inputs={"predictions": predictions.as_input, "data": data.as_input},
        config=spec,
        libraries=libraries_of("scores", spec),
        code=code_digest("scores", spec),
    )


def made(store: Store, *recipes: Recipe) -> Mapping[str, Artifact]:
    ends = [end for end in worker.make(store.uri, recipes, {}) if isinstance(end, StepOutcome)]
    assert not [end.traceback for end in ends if end.error]
    return {end.name: store.get(r.key) for end in ends for r in recipes if r.name == end.name}


def test_budgets_of_one_split_are_scored_together_and_metrics_apart(store: Store, data: Artifact):
    low, high = answered(store, data, 16, right=1), answered(store, data, 64, right=3)
    recipes = [recipe(low, data, 16, "vqa"), recipe(high, data, 64, "vqa")]
    assert _group_recipes([*recipes, recipe(low, data, 16, "anls")]) == [
        recipes,
        [recipe(low, data, 16, "anls")],
    ]
    scores = made(store, *recipes)
    counts = {name: artifact.manifest.counts for name, artifact in scores.items()}
    assert counts["score vqa 16"] == {"score": pytest.approx(100 / 3), "num": 3}
    assert counts["score vqa 64"] == {"score": 100.0, "num": 3}
    low_scores = scores["score vqa 16"]
    assert {*low_scores.manifest.files} == {"score.json", "items.parquet"}
    assert ItemsFile(low_scores.path).columns("score") == [[1.0, 0.0, 0.0]]


def test_made_alone_or_together_the_bytes_are_the_same(
    data: Artifact, store: Store, tmp_path: Path
):
    low, high = answered(store, data, 16, right=2), answered(store, data, 64, right=3)
    recipes = [recipe(low, data, 16, "vqa"), recipe(high, data, 64, "vqa")]
    together = made(store, *recipes)["score vqa 16"].manifest
    (tmp_path / f"store/manifests/scores/{together.key}.json").unlink()
    (alone,) = made(Store(store.uri), recipes[0]).values()
    assert alone.manifest.files == together.files
    assert alone.manifest.folder != together.folder


def test_predictions_of_an_earlier_version_are_scored(store: Store, data: Artifact):
    earlier = answered(store, data, 16, right=3, score=0.0, pseudo_value=0.5)
    (scores,) = made(store, recipe(earlier, data, 16, "vqa")).values()
    assert scores.manifest.counts["score"] == 100.0
    assert not ItemsFile(scores.path).has_pseudo_values


def test_equal_answers_of_two_budgets_have_scores_of_their_own(store: Store, data: Artifact):
    same = answered(store, data, 16, right=1)
    keys = {recipe(same, data, budget, "vqa").key for budget in (16, 64)}
    assert len(keys) == 2


def test_a_metric_that_reads_masks_needs_a_codec(store: Store, data: Artifact):
    one = recipe(answered(store, data, 16, right=1), data, 16, "miou")
    one = dataclasses.replace(one, name="score masks")
    (end,) = (e for e in worker.make(store.uri, [one], {}) if isinstance(e, StepOutcome))
    assert "metric 'miou' needs a mask codec" in end.error
