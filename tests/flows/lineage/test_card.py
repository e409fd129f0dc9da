"""A model card tells what a checkpoint learned from, and what was only looked at."""

import json
from pathlib import Path

import pytest

from flows.lineage import card
from flows.lineage.card import CheckpointOrigin, model_card, picture_settings
from infra.store.store import Artifact, Store
from model.connector.budgets import supported_budgets
from tests.flows.lineage.conftest import data_of, made, trained
from tests.model.tiny_data import color_record
from tests.model.tiny_model import tiny_model


def section(text: str, name: str) -> str:
    return text.split(f"## {name}\n")[1].split("\n## ")[0]


def test_a_releases_pictures_are_those_of_the_last_training(tmp_path: Path):
    store = Store(tmp_path / "store")

    def settings(name: str, prepare: dict[str, str], **inputs: Artifact) -> dict[str, str]:
        records = [color_record(i) for i in range(2)]
        data = data_of(store, tmp_path, name, records, config={"prepare": prepare})
        made[name] = trained(store, f"stage {name}", 1, data_0=data, **inputs)
        return picture_settings(
            CheckpointOrigin(store=store, name="", checkpoint=made[name], scores=(), cells=())
        )

    made: dict[str, Artifact] = {}
    assert settings("old", {"background": "#ffffff"}) == {}
    padded = {"background": "#ffffff", "aspect": "pad", "pad_colour": "#000000"}
    changed = {"aspect": "pad", "pad_colour": "#000000"}
    assert settings("padded", padded, init=made["old"]) == changed
    assert settings("again", {"aspect": "squash"}, init=made["padded"]) == {}


@pytest.mark.parametrize(
    ("action", "left", "said"),
    [
        ("remove", 6, "1 of its records showed a picture of chartqa/eval: removed"),
        ("report", 8, "1 of its records show a picture of chartqa/eval"),
    ],
)
def test_a_card_tells_data_and_contamination(tmp_path: Path, action: str, left: int, said: str):
    store = Store(tmp_path / "store")
    web = data_of(store, tmp_path, "mixture/web", [color_record(i) for i in range(8)])
    charts = data_of(store, tmp_path, "chartqa/train", [color_record(i) for i in range(3)])
    split = data_of(store, tmp_path, "chartqa/eval", [color_record(1)])
    watched = data_of(store, tmp_path, "mixture/val", [color_record(2)])
    found = {"id": "00", "match": "01", "likeness": 1.0, "exact": True}
    contaminated = {**found, "kind": "contamination", "dataset": "chartqa/eval"}
    repeated = {**found, "kind": "duplicate", "dataset": ""}
    notes = tmp_path / "notes"
    notes.mkdir()
    lines = [json.dumps(one) for one in (contaminated, repeated)]
    (notes / "matches.jsonl").write_text("\n".join(lines) + "\n")
    screened = made(
        store,
        "screened",
        "screen mixture/web",
        {"dataset": web, "chartqa/eval": split},
        folder=notes,
        config={"contamination": action, "duplicates": "report"},
        counts={"removed": 8 - left, "records": 8},
    )
    stage1 = trained(store, "stage1", 3, data_0=screened, watched_0=watched)
    tuned = trained(store, "transfer chartqa", 5, data_0=charts, init=stage1)
    origin = CheckpointOrigin(store=store, name="lab/cell", checkpoint=tuned, scores=(), cells=())
    text = model_card(tiny_model("parcel"), origin, name="lab", licence="", dtype="float32")
    data = [line for line in section(text, "Data").splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[:3] for line in data[1:]] == [
        ["| prepare chartqa/train", "?", "?"],
        ["| screen mixture/web", str(left), str(8 - left)],
    ]
    assert "into the prompt template `paligemma`." in section(text, "How to load")
    told = section(text, "Contamination")
    assert f"    - {said}\n" in told
    assert "was compared with chartqa/eval" in told
    assert told.strip().endswith("- not screened: prepare chartqa/train")


def test_the_example_asks_what_the_checkpoint_was_scored_on(tmp_path: Path):
    store, cfg = Store(tmp_path / "store"), tiny_model("parcel")

    def example(reader: object, budgets: list[int]) -> str:
        name = str(reader)
        split = data_of(store, tmp_path, name, [color_record(1)], config={"reader": reader})
        scores = tuple(
            made(store, "scores", f"score {name} {b}", {"data": split}, config={"budget": b})
            for b in budgets
        )
        tuned = trained(store, f"transfer {name}", 5)
        origin = CheckpointOrigin(store=store, name="", checkpoint=tuned, scores=scores, cells=())
        return f"{card._example_prompt(origin)} @ {card._example_budget(cfg, origin)}"

    assert example("chartqa", [4, 16, 8]) == "What is shown? @ 8"
    own = {"reader": "mine:read", "prompt": "answer {lang} {text}"}
    assert example(own, [4]) == "answer en What is shown? @ 4"
    assert card._example_prompt(None) == "caption en"
    assert card._example_budget(cfg, None) in supported_budgets(cfg)
