"""What a config leaves out is filled in once, in one order."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flows.config.normalise import Values, normalise
from flows.config.validation import partial_adapter
from flows.study.load import DEMO, check_config, read_study_file
from flows.study.study import StudyConfig
from infra.errors import ConfigError

STATED: dict[str, Any] = {
    "model": {"vision": {"image_px": 224}},
    "methods": ["vanilla", "parcel"],
    "sources": [{"reader": "web", "prepare": {"num_shards": 2}}, {"reader": "nlvr"}],
    "transfers": {
        "nlvr": {"prepare": {"image_px": 224}, "train": {"epochs": 7}},
        "marvl": {},
        "pope": {},
        "chartqa": {},
    },
    "stage2": {
        "transfers": {"nlvr": {"train": {"total_steps": 5}}, "chartqa": None, "textvqa": {}},
        "connectors": {"parcel": {"num_heads": 3}},
    },
}


def typed(values: dict[str, Any]) -> Values:
    return partial_adapter(StudyConfig).validate_python(values)


@pytest.mark.parametrize("values", [read_study_file(DEMO), STATED], ids=["demo", "stage2"])
def test_a_normalised_config_is_left_as_it_is(values: dict[str, Any]):
    once = normalise(typed(values))
    assert normalise(once) == once
    assert once != typed(values)


def test_stage_2_takes_what_the_study_states_and_not_what_was_filled_in_for_it():
    normalised = normalise(typed(STATED))
    low, high = normalised["transfers"]["nlvr"], normalised["stage2"]["transfers"]["nlvr"]
    assert (low["prepare"], high["prepare"]) == ({"image_px": 224}, {"image_px": 448})
    assert low["train"]["epochs"] == 7
    assert (high["train"]["total_steps"], "epochs" in high["train"]) == (5, False)
    assert normalised["stage2"]["transfers"]["chartqa"] is None
    # The two parts of the mixture: one prepared in its own way, one as the study is.
    assert normalised["sources"][0]["prepare"] == {"image_px": 224, "num_shards": 2}
    assert "prepare" not in normalised["sources"][1]


@pytest.mark.parametrize("malformed", [{}, {"sources": 3}, {"stage2": {"sources": 3}}])
@pytest.mark.parametrize("field", ["connectors", "model", "stage2"])
def test_no_class_is_imported_whatever_else_is_wrong(
    field: str, malformed: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "imported_by_kind.py").write_text("class Ripple: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = {"kind": "imported_by_kind:Ripple"}
    settings: dict[str, Any] = {
        "connectors": {"parcel": kind},
        "model": {"connector": kind},
        "stage2": {"connectors": {"parcel": kind}},
    }
    with pytest.raises(ConfigError) as refused:
        check_config({field: settings[field], **malformed}, source="here")
    assert "\n" not in str(refused.value)
    assert "imported_by_kind" not in sys.modules


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"stage2": {"transfers": {"nlvr": {"tran": 3}}}}, r"transfers\.nlvr\.tran: no such key"),
        (
            {"stage2": {"transfers": {"nlvr": {}, "marvl": {"train": {"epochs": 1}}}}},
            r"here: stage2\.transfers: marvl\.train: .*state its recipe under nlvr\.train",
        ),
    ],
)
def test_a_problem_is_reported_at_its_key(values: dict, problem: str):
    with pytest.raises(ConfigError, match=problem):
        check_config(values, source="here")


MAPPING = "must be a mapping, as {key: value}, got"
TEXT = "must be a text, got 3; in YAML, put it in quotes"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"model": 3}, f"model: {MAPPING} 3"),
        ({"model": {"vision": 3}}, f"model.vision: {MAPPING} 3"),
        ({"model": {"text": None}}, f"model.text: {MAPPING} None"),
        ({"model": {"vision": {"family": 3}}}, f"model.vision.family: {TEXT}"),
        (
            {"model": {"vision": {"image_px": True}}},
            "model.vision.image_px: must be a number, not true or false, got True",
        ),
        (
            {"model": {"text": {"vocab_size": []}}},
            "model.text.vocab_size: must be a whole number, got []",
        ),
        ({"model": {"connector": "m3"}}, f"model.connector: {MAPPING} 'm3'"),
        ({"model": {"connector": {"kind": 3}}}, f"model.connector.kind: {TEXT}"),
        ({"methods": "m3, mqt"}, "methods: must be a list, got 'm3, mqt'; write methods=[m3, mqt]"),
        ({"methods": [3]}, f"methods.0: {TEXT}"),
        ({"variants": {"short": 3}}, f"variants.short: {MAPPING} 3"),
        ({"variants": {"short": {"of": 3}}}, f"variants.short.of: {TEXT}"),
        ({"connectors": 3}, f"connectors: {MAPPING} 3"),
        ({"connectors": {"parcel": None}}, f"connectors.parcel: {MAPPING} None"),
        ({"connector_files": {"a:B": 3}}, f"connector_files.a:B: {TEXT}"),
        ({"train_budgets": []}, f"train_budgets: {MAPPING} []"),
        ({"start": 3}, f"start: {TEXT}"),
        ({"tokenizer": "mine.model"}, f"tokenizer: {MAPPING} 'mine.model'"),
        ({"tokenizer": {"path": 3}}, f"tokenizer.path: {TEXT}"),
        ({"backbones": 7}, f"backbones: {MAPPING} 7"),
        (
            {"backbones": ["clip+llama", "clip+llama"]},
            "backbones: backbones must be distinct names, or a mapping, got "
            "['clip+llama', 'clip+llama'].",
        ),
        ({"backbones": {"clip+llama": None}}, f"backbones.clip+llama: {MAPPING} None"),
        ({"backbones": {"mine": {"model": []}}}, f"backbones.mine.model: {MAPPING} []"),
        (
            {"backbones": {"mine": {"model": {"text": 3}}}},
            f"backbones.mine.model.text: {MAPPING} 3",
        ),
        ({"backbones": {"mine": {"stage1": "stdy"}}}, f"backbones.mine.stage1: {MAPPING} 'stdy'"),
        ({"backbones": {"mine": {"start": 3}}}, f"backbones.mine.start: {TEXT}"),
        ({"backbones": {"mine": {"connectors": 3}}}, f"backbones.mine.connectors: {MAPPING} 3"),
        ({"prepare": []}, f"prepare: {MAPPING} []"),
        ({"sources": {}}, "sources: must be a list, got {}"),
        ({"sources": ["web"]}, f"sources.0: {MAPPING} 'web'"),
        ({"sources": [{"reader": "web", "prepare": 3}]}, f"sources.0.prepare: {MAPPING} 3"),
        (
            {"watch": {"sources": 3}},
            "watch.sources: must be a list, got 3; write watch.sources=[3]",
        ),
        ({"stage1": []}, f"stage1: {MAPPING} []"),
        ({"transfers": {"chartqa": 4}}, f"transfers.chartqa: {MAPPING} 4"),
        ({"transfers": {"chartqa": {"train": 3}}}, f"transfers.chartqa.train: {MAPPING} 3"),
        ({"transfers": {"chartqa": {"reader": 3}}}, f"transfers.chartqa.reader: {TEXT}"),
        ({"stage2": {"prepare": []}}, f"stage2.prepare: {MAPPING} []"),
        ({"stage2": {"image_px": "x"}}, "stage2.image_px: must be a whole number, got 'x'"),
        ({"stage2": {"transfers": {"nlvr": 3}}}, f"stage2.transfers.nlvr: {MAPPING} 3"),
        ({"stages": {}}, "stages: must be a list, got {}"),
        ({"stages": [{"methods": [3]}]}, f"stages.0.methods.0: {TEXT}"),
        ({"stages": [{"resolution": 3}]}, f"stages.0.resolution: {MAPPING} 3"),
        ({"steps": "mine.py:Y"}, "steps: must be a list, got 'mine.py:Y'; write steps=[mine.py:Y]"),
        ({"steps": [3]}, f"steps.0: {MAPPING} 3"),
        ({"steps": [{"step": 3}]}, f"steps.0.step: {TEXT}"),
    ],
)
def test_a_wrong_type_is_told_before_anything_is_filled_in(values: dict, problem: str):
    # A benchmark that nothing knows and a family that does not exist are told only after it.
    beside = {"model": {"text": "nope"}, "transfers": {"nope": {}}}
    with pytest.raises(ConfigError) as refused:
        check_config({**beside, **values}, source="here")
    assert str(refused.value) == f"here: {problem}"


def test_a_misspelt_key_is_told_before_a_users_class_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "imported_by_method.py").write_text("class Ripple: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    values = {"methods": ["imported_by_method:Ripple"], "stage2": {"trian": {}}}
    with pytest.raises(ConfigError, match=r"stage2\.trian: no such key; did you mean train\?"):
        check_config(values, source="here")
    assert "imported_by_method" not in sys.modules


def test_null_is_the_registrys_recipe():
    def epochs(stage2: dict[str, Any]) -> list[float | None]:
        values = {"transfers": {"nlvr": {"train": {"epochs": 7}}}, "stage2": stage2}
        views = check_config(values, source="here").views
        return [view.transfers["nlvr"].train.epochs for view in views]

    # The study's own changes are for both sizes, unless Stage 2 says otherwise.
    assert epochs({}) == [7, 7]
    assert epochs({"transfers": {"nlvr": {"train": None}}}) == [7, 10]
