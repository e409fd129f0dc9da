"""What a config leaves out is filled in once, in one order."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flows.config.normalise import normalise, parse_study_values
from flows.study.load import DEMO, check_config, read_study_file
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


@pytest.mark.parametrize("values", [read_study_file(DEMO), STATED], ids=["demo", "stage2"])
def test_a_normalised_config_is_left_as_it_is(values: dict[str, Any]):
    once = normalise(parse_study_values(values))
    assert normalise(once) == once
    assert once != parse_study_values(values)


def test_stage_2_takes_what_the_study_states_and_not_what_was_filled_in_for_it():
    normalised: Any = normalise(parse_study_values(STATED))
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
        ({"connectors": 3}, r"here: connectors: .*got 3"),
        ({"model": {"vision": 3}}, r"here: model\.vision: .*got 3"),
        ({"transfers": {"nlvr": 3}}, r"here: transfers\.nlvr: .*got 3"),
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
