"""A study that trains on what it is scored on is refused, unless it says that it means to."""

import re

import pytest

from flows.study.load import check_config
from infra.errors import ConfigError
from pipelines.sources.registry import BENCHMARKS

ALLOWED = {"allow_train_on_eval": True}


def study(transfers: dict, *sources: dict):
    values: dict = {"transfers": transfers, "budgets": [16, 64, 256]}
    if sources:
        values["sources"] = list(sources)
    return check_config(values, source="here")


def test_what_the_registry_states_is_held_out():
    tuned = [name for name, b in BENCHMARKS.items() if b.final_split or b.parent]
    assert len(study({name: {} for name in tuned}).transfers) == len(tuned)


@pytest.mark.parametrize(
    ("name", "train", "scored"),
    [
        ("chartqa", "val", "val"),
        ("chartqa", "train+val", "val"),
        ("chartqa", "test", "test_human"),
        ("chartqa", "val_human", "train+val"),
        ("refcoco", "val", "refcocog_val"),
        ("cococap", "train[:98%]", "train[97%:]"),
        ("cococap", "train[:98%]", "train[-100:]"),
        ("cococap", "train", "train[98%:]"),
        ("coco35l", "dev_en", "dev"),
        ("tallyqa", "test_simple", "test"),
        ("vqav2", "train+val", "val[-10240:]"),
    ],
)
def test_training_on_what_is_scored_is_refused(name: str, train: str, scored: str):
    entry = {"train_split": train, "eval_splits": [scored]}
    with pytest.raises(ConfigError) as refused:
        study({name: entry})
    assert re.search(
        rf"transfers\.{name}\.train_split .* got {re.escape(train)}: {name} .*{re.escape(scored)}\."
        rf".*transfers\.{name}\.allow_train_on_eval: true",
        str(refused.value),
    )
    assert study({name: {**entry, **ALLOWED}})
    assert study({name: {**entry, "transfer": False}})


@pytest.mark.parametrize(
    ("name", "train", "scored"),
    [
        ("cococap", "train[:98%]+restval", "train[98%:]"),
        ("cococap", "train[:-100]", "train[-100:]"),
        ("chartqa", "test_augmented", "test_human"),
        ("refcoco", "refcoco_val", "refcocoplus_val"),
        ("rsvqa_hr", "test", "test_2"),
    ],
)
def test_splits_and_slices_that_share_nothing_are_fine(name: str, train: str, scored: str):
    assert study({name: {"train_split": train, "eval_splits": [scored]}})


def test_a_mixture_may_not_hold_what_is_scored():
    mixture = {"reader": "nlvr", "split": "train+dev"}
    scored = {"nlvr": {"train_split": "train", "eval_splits": ["dev"]}}
    with pytest.raises(ConfigError, match=r"sources\.1\.split .*nlvr is scored on"):
        study(scored, {"reader": "web"}, mixture)
    assert study(scored, {**mixture, "split": "train"})
    assert study(scored, {**mixture, "path": "other_files"})
    assert study({"nlvr": {**scored["nlvr"], **ALLOWED}}, mixture)
    assert study({"nlvr": {}, "chartqa": {}}, mixture)  # Scored on "test".


def test_tasks_that_ask_about_the_same_images_are_compared():
    with pytest.raises(ConfigError, match=r"sources\.0\.split .* aokvqa_da is scored on val"):
        study({"aokvqa_da": {}}, {"reader": "aokvqa_mc", "split": "val"})


def test_zero_shot_benchmarks_may_not_be_in_the_mixture_either():
    with pytest.raises(ConfigError, match=r"sources\.0\.split .* nocaps is scored on val"):
        study({"nocaps": {}}, {"reader": "nocaps", "split": "val"})
    with pytest.raises(ConfigError, match=r"transfers\.gqa\.train_split .* gqa is scored on"):
        study({"xgqa": {}, "gqa": {"train_split": "testdev_balanced"}})
