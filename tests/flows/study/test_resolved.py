"""What configs are resolved to: run records, views, and the names and identities of all steps.

`resolved.json` holds, for every shipped config and some of several views, what a change of code
must leave as it is; digests stand for what is long. A new option or a changed config changes its
part of it. Rewrite it, and look at the difference, with:

    python -m tests.flows.study.test_resolved
"""

import dataclasses
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pydantic
import pytest

from flows.graph.graph import graph_of
from flows.graph.inputs import StudyInputs
from flows.steps.kind import Step
from flows.steps.kinds.files import FilesSpec
from flows.study.choices_of_ours import choices_of_ours
from flows.study.load import load
from flows.study.paper_deviations import describe_paper_deviations
from flows.study.stage_list import stages_of
from flows.study.study import StudyConfig
from flows.sweep.form import deployments_of
from infra.store.digest import identity_json

CHECKOUT = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("resolved.json")

SMALL = "{width: 64, depth: 1, mlp_dim: 128, num_heads: 2}"
LLAMA = "{width: 96, depth: 2, mlp_dim: 256, num_heads: 2, num_kv_heads: 1, head_dim: 48}"
STAGE_2 = "stage2={image_px: 448, train: {total_steps: 3}, num_seeds: 1}"
TWO_BACKBONES = (
    f"backbones={{paligemma2: {{}}, clip+llama: {{model: {{vision: {SMALL}, text: {LLAMA}}}, "
    "stage1: {total_steps: 9}}}"
)

CASES: dict[str, tuple[Path | None, list[str]]] = {
    **{path.stem: (path, []) for path in sorted((CHECKOUT / "configs").glob("*.yaml"))},
    "demo": (None, []),
    "two backbones, 448 px": (
        None,
        [
            TWO_BACKBONES,
            STAGE_2,
            "methods=[vanilla, parcel]",
            "train_budgets={parcel: [16, 64]}",
            "hygiene={contamination: report}",
            "watch={probe: {benchmark: chartqa}}",
        ],
    ),
    "stages and variants": (
        None,
        [
            STAGE_2,
            "stages=[{name: own, methods: [parcel]}, {name: large, after: stage2, "
            "resolution: {image_px: 896}, methods: [parcel]}]",
            "variants={parcel_long: {of: parcel, length: 2, train_budgets: [64]}}",
            "methods=[vanilla, parcel, parcel_long]",
            "train_budgets={}",
            "num_pretrain_seeds=2",
        ],
    ),
    "zero-shot": (None, ["transfers.msvd_qa.zero_shot=true", "num_seeds=1", STAGE_2]),
}


def study_of(case: str) -> StudyConfig:
    path, words = CASES[case]
    return load(path, words)


@pytest.mark.parametrize("case", CASES)
def test_a_config_is_resolved_to_what_it_was(case: str):
    assert resolved(study_of(case)) == json.loads(GOLDEN.read_text())[case]


def test_every_key_of_a_study_and_every_field_of_its_forms_stay_as_they_are():
    assert schemas() == json.loads(GOLDEN.read_text())["schemas"]


def resolved(config: StudyConfig) -> dict[str, Any]:
    """Returns what is kept of a study."""
    files = {
        (pair.backbone_suffix, key): FilesSpec(files=((key, "0" * 64, 1),))
        for pair in config.backbone_studies
        for key in pair.input_paths
    }
    graph = graph_of(config, "report", StudyInputs(files=files))
    identities: dict[Step, list[Any]] = {}
    for step in graph.steps:
        reads = {role: _digest(identities[read]) for role, read in step.inputs.items()}
        identities[step] = [step.kind, identity_json(step.config), step.seed, reads]
    labels = [dataclasses.asdict(step.labels) for step in graph.steps]
    kinds = Counter(step.kind for step in graph.steps)
    return {
        "record": _digest(dataclasses.asdict(config)),
        "views": {view.view_suffix: _describe_view(view) for view in config.views},
        "stages": [
            f"{stage.name}{stage.view.backbone_suffix} {stage.key}: {', '.join(stage.methods)}"
            for pair in config.backbone_studies
            for stage in stages_of(pair)
        ],
        "steps": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        "names": _digest([step.name for step in graph.steps]),
        "labels": _digest(labels),
        "keys": _digest([dict(step.keys) for step in graph.steps]),
        "identities": _digest([*identities.values()]),
        "cells": _digest({str(cell): step.name for cell, step in graph.cells.items()}),
        "ours": _digest([[*choices_of_ours(config)], [*describe_paper_deviations(config)]]),
        "warnings": [*config.describe_budgets()],
    }


def _describe_view(view: StudyConfig) -> str:
    budgets = (f"{method} {_short(view.budgets_of(method))}" for method in view.methods)
    return (
        f"{view.model.vision.image_px} px; {'; '.join(budgets)}; seeds {_short(view.seeds)}; "
        f"rows {_short(view.rows)}"
    )


def schemas() -> dict[str, str]:
    """Returns name -> digest of the JSON schemas of a study and of the forms."""
    study = pydantic.TypeAdapter(StudyConfig).json_schema()
    forms = {
        f"{form.flow_name}": _digest(form._parameter_openapi_schema.model_dump())
        for form in deployments_of("mine", "/store", any_store=False)
    }
    return {"study": _digest(_without_descriptions(study)), **forms}


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_descriptions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_descriptions(part)
        for key, part in schema.items()
        if key != "description" or not isinstance(part, str)
    }


def _short(values: Any) -> str:
    """Returns values in a line; of many the first and the last, and how many they are."""
    texts = [*map(str, values)]
    return ", ".join(texts if len(texts) <= 4 else (texts[0], "…", texts[-1], f"({len(texts)})"))


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str).replace(str(CHECKOUT), "CHECKOUT")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    found = {case: resolved(study_of(case)) for case in CASES} | {"schemas": schemas()}
    GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
