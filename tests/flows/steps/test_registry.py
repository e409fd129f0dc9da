"""The code of a step: it stops at registries and goes on with what the step's config names."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from flows.graph.graph import graph_of
from flows.steps import registry
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.scores import ScoreSpec
from flows.steps.kinds.start import start_spec
from flows.steps.registry import KINDS, code_digest, libraries_of, step_code
from flows.study.load import load
from infra.source_code import Tree, checkout, code_sha256
from infra.store.digest import settings_json
from model.config import ModelConfig
from model.connector.registry import CONNECTORS
from model.connector.routing import Routing
from model.eval.metrics.registry import METRICS
from model.text.config import TextConfig
from model.text.registry import DECODERS
from model.vision.config import VisionConfig
from model.vision.registry import TOWERS
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.own_source import OwnSource

WIDE = (
    "methods=[vanilla,m3,mqt,parcel,short]",
    "variants={short: {of: mqt, length: 0.5}}",
    "transfers.msvd_qa.transfer=true",
    "transfers.msvd_qa.metric=cider",
    "watch={probe: {benchmark: msvd_qa, steps: 3, examples: 9}, every: 5}",
    "hygiene={}",
    "stage2={image_px: 448, train: {total_steps: 10}}",
)
"""The demo with a variant, a probe that is scored by CIDEr, screening and a Stage 2."""


@pytest.fixture(scope="module")
def steps() -> tuple[Step, ...]:
    """All steps of a study, one for each kind and config."""
    graph = graph_of(load(overrides=WIDE))
    by_config = {(step.kind, settings_json(step.config)): step for step in graph.steps}
    kinds = {step.kind for step in by_config.values()}
    assert {
        "corpus",
        "dataset",
        "screened",
        "checkpoint",
        "predictions",
        "scores",
        "chance",
    } <= kinds
    return tuple(by_config.values())


def connector(step: Step) -> str:
    match step.config:
        case FitSpec(model=model):
            return model.connector.kind
        case EvaluateSpec(connector=kind):
            return kind
    return ""


def metric(step: Step) -> str:
    match step.config:
        case ScoreSpec(metric=name):
            return name
        case str(name) if step.kind == "chance":
            return name
    return ""


def reader(step: Step) -> str:
    return step.config.reader if step.kind == "dataset" else ""


def trains_or_answers(step: Step) -> bool:
    return step.kind in ("checkpoint", "predictions")


EDITS: dict[str, Callable[[Step], bool]] = {
    "model.connector.mqt": lambda step: connector(step) == "mqt",
    "model.connector.parcel": lambda step: connector(step) == "parcel",
    "model.connector.m3": lambda step: connector(step) == "m3",
    "model.connector.vanilla": lambda step: connector(step) == "vanilla",
    "model.connector.base": trains_or_answers,
    "model.connector.costs": lambda step: False,
    "model.eval.metrics.cider": lambda step: metric(step) == "cider",
    "model.eval.metrics.relaxed_accuracy": lambda step: metric(step) == "relaxed_accuracy",
    "model.eval.metrics.miou": lambda step: metric(step) == "miou",
    "model.eval.metrics.scores": lambda step: bool(metric(step)),
    "model.eval.metrics.bleu": lambda step: False,
    "pipelines.sources.documents.chartqa": lambda step: reader(step) == "chartqa",
    "pipelines.prepare.shards": lambda step: step.kind == "dataset",
    "model.train.step": lambda step: step.kind == "checkpoint",
    "model.decode.beam": lambda step: step.kind == "predictions",
    "model.watch.watch": lambda step: False,
    "pipelines.hygiene.detail": lambda step: step.kind == "screened",
}
"""A module in which a definition is added -> whether a step's code is another one then."""


def edited(module: str, more: bytes) -> Tree:
    tree = checkout()
    return Tree({**tree.files, tree.path(module): tree.text(module) + more})


def digests(steps: tuple[Step, ...], tree: Tree) -> dict[str, str]:
    return {step.name: code_sha256(step_code(step.kind, step.config, tree)) for step in steps}


@pytest.mark.parametrize("module", EDITS)
def test_an_edit_concerns_the_steps_that_use_it(steps: tuple[Step, ...], module: str):
    before = digests(steps, checkout())
    assert digests(steps, edited(module, b"\n# A comment.\n")) == before
    after = digests(steps, edited(module, b"\n_ANSWER = 42\n"))
    concerned = {step.name for step in steps if EDITS[module](step)}
    assert {name for name in before if after[name] != before[name]} == concerned
    if module not in ("model.connector.costs", "model.eval.metrics.bleu", "model.watch.watch"):
        assert concerned


def test_no_step_has_the_code_of_a_family(steps: tuple[Step, ...]):
    families = {entry.module for entry in CONNECTORS.values()}
    for step in steps:
        reached = step_code(step.kind, step.config)
        own = {CONNECTORS[connector(step)].module} if connector(step) else set()
        assert families & reached.keys() == own, step.name


@pytest.mark.parametrize(
    ("reader", "decoder", "unused"),
    [
        ("chartqa", "decord", {"av", "decord"}),
        ("images", "pyav", {"av", "decord"}),
        ("tfds", "pyav", {"av", "decord"}),
        ("msvd_qa", "pyav", {"decord"}),
        ("videos", "decord", set()),
        # Their rows say whether there are clips, and not their config.
        ("web", "pyav", {"decord"}),
        (OwnSource(reader="jsonl", name="mine"), "pyav", {"decord"}),
        (OwnSource(reader="chartqa", name="asked"), "pyav", {"av", "decord"}),
        (OwnSource(reader="json:load", name="mine"), "decord", set()),
    ],
)
def test_a_dataset_states_the_libraries_that_can_decode_it(
    monkeypatch: pytest.MonkeyPatch, reader: str | OwnSource, decoder: str, unused: set[str]
):
    monkeypatch.setattr(
        registry, "_libraries", lambda kind: dict.fromkeys(KINDS[kind].libraries, "1.0")
    )
    spec = DatasetSpec(reader=reader, path="", split="", prepare=PrepareConfig(decoder=decoder))
    wanted = {"pillow", "av", "decord"} - unused
    assert libraries_of("dataset", spec).keys() == wanted
    assert libraries_of("dataset", json.loads(settings_json(spec))).keys() == wanted


def code_of(connector: str) -> tuple[str, str]:
    model = {"model": {"connector": {"kind": connector}}, "train": {}}
    answers = {"decode": {}, "connector": connector}
    return code_digest("checkpoint", model), code_digest("predictions", answers)


@pytest.mark.parametrize(
    ("changes", "is_code"),
    [
        ({"routing": Routing(anchor_grids=(2,), reads="anchors and queries")}, True),
        ({"name": "Other"}, True),
        ({"flops": lambda cfg, budget: 1}, False),
    ],
)
def test_of_a_connectors_entry_its_class_and_routing_are_code(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], is_code: bool
):
    before = {kind: code_of(kind) for kind in CONNECTORS}
    entry = dataclasses.replace(CONNECTORS["parcel_fixed4"], **changes)
    monkeypatch.setitem(CONNECTORS, "parcel_fixed4", entry)
    after = {kind: code_of(kind) for kind in CONNECTORS}
    changed = {kind for kind in CONNECTORS if after[kind] != before[kind]}
    assert changed == ({"parcel_fixed4"} if is_code else set())
    if is_code:
        assert not {*before["parcel_fixed4"]} & {*after["parcel_fixed4"]}


def test_of_a_metrics_entry_all_is_code(monkeypatch: pytest.MonkeyPatch):
    before = {name: code_digest("chance", name) for name in METRICS}
    monkeypatch.setitem(METRICS, "vqa", dataclasses.replace(METRICS["vqa"], mean_over=""))
    after = {name: code_digest("chance", name) for name in METRICS}
    assert {name for name in METRICS if after[name] != before[name]} == {"vqa"}


def test_a_tree_with_another_registry_has_other_code():
    config = {"model": {"connector": {"kind": "mqt"}}, "train": {}}
    registry = "model.connector.registry"
    other = step_code("checkpoint", config, edited(registry, b"\n_ANSWER = 42\n"))
    ours = step_code("checkpoint", config)
    assert {name for name in other if other[name] != ours[name]} == {registry}


def test_what_a_users_function_takes_from_a_registry_is_its_code():
    text = (
        b"from model.eval.metrics.registry import get_metric\nscore = get_metric('cider').score\n"
    )
    tree = Tree({**checkout().files, "own/my_metric.py": text})
    reached = step_code("chance", "my_metric:score", tree)
    assert {"my_metric", "model.eval.metrics.registry", "model.eval.metrics.cider"} <= {*reached}


FACTS = {"siglip": "norm_eps", "clip": "norm_eps", "gemma2": "norm_offset", "llama": "norm_offset"}
"""Family -> one of its facts."""


def codes_of_pairs() -> dict[tuple[str, str, str], str]:
    """Returns (kind, tower, decoder) -> digest of the code of a step of that kind."""
    codes = {}
    for vision in ("siglip", "clip"):
        for text in ("gemma2", "llama"):
            model = ModelConfig(
                vision=VisionConfig(family=vision),
                text=TextConfig(family=text),
                attn_softcap=0,
                final_softcap=0,
            )
            families = {"vision": vision, "text": text}
            for kind, config in {
                "checkpoint": {"model": dataclasses.asdict(model), "train": {}},
                "predictions": {"decode": {}, "connector": "mqt", **families},
                "start": start_spec(model),
            }.items():
                codes[kind, vision, text] = code_digest(kind, config)
    return codes


@pytest.mark.parametrize("family", FACTS)
def test_facts_of_a_family_are_code_of_the_steps_that_name_it(
    monkeypatch: pytest.MonkeyPatch, family: str
):
    before = codes_of_pairs()
    families: dict[str, Any] = TOWERS if family in TOWERS else DECODERS
    edited = dataclasses.replace(families[family], **{FACTS[family]: 0.5})
    monkeypatch.setitem(families, family, edited)
    after = codes_of_pairs()
    assert {step for step in before if after[step] != before[step]} == {
        step for step in before if family in step
    }


@pytest.mark.parametrize("families", [TOWERS, DECODERS], ids=["tower", "decoder"])
def test_a_new_family_or_size_leaves_all_code_as_it_is(
    monkeypatch: pytest.MonkeyPatch, families: dict[str, Any]
):
    before = codes_of_pairs()
    for name, facts in tuple(families.items()):
        sizes = {**facts.sizes, f"{name}-huge": {"depth": 99}}
        monkeypatch.setitem(families, name, dataclasses.replace(facts, sizes=sizes))
    monkeypatch.setitem(families, "new", dataclasses.replace(next(iter(families.values()))))
    assert codes_of_pairs() == before


def test_no_step_has_the_code_of_a_family_of_towers_or_decoders(steps: tuple[Step, ...]):
    for step in steps:
        reached = step_code(step.kind, step.config)
        assert not [
            module for module in reached if module.endswith(".family") and module.count(".") > 2
        ]
        names_pair = step.kind in ("checkpoint", "predictions")
        assert ({"model.text.registry", "model.vision.registry"} <= {*reached}) == names_pair


def test_names_of_parameters_are_code_of_a_conversion():
    llava = start_spec(
        ModelConfig(
            vision=VisionConfig(family="clip"),
            text=TextConfig(family="llama"),
            attn_softcap=0,
            final_softcap=0,
        )
    )
    assert llava is not None
    assert start_spec(ModelConfig()) is None
    ours, theirs = step_code("start", None), step_code("start", llava)
    assert {"model.vision.siglip.names", "model.text.gemma2.hugging_face"} <= {*ours}
    assert {"model.vision.clip.names", "model.text.llama.hugging_face"} <= {*theirs}
    assert not {"model.vision.clip.names", "model.text.llama.names"} & {*ours}
    # A cast is a copy, whatever the names.
    assert "model.vision.siglip.names" not in step_code("cast", None)


def test_facts_of_a_prompt_template_are_code_of_what_is_asked_in_it():
    model = dataclasses.asdict(ModelConfig())
    usual = code_digest("checkpoint", {"model": model})
    other = code_digest("checkpoint", {"model": {**model, "prompt": "llava"}})
    assert other != usual
    asked = {"model": model, "train": {"prompt": "llava"}}
    assert code_digest("checkpoint", asked) == other
    assert code_digest("checkpoint", {"model": model, "train": {"prompt": None}}) == usual
    answers = {"decode": {}, "connector": "mqt"}
    told = [code_digest("predictions", answers | {"prompt": p}) for p in ("paligemma", "llava")]
    assert told[0] == code_digest("predictions", answers) != told[1]


def test_a_config_without_families_is_of_the_first_ones():
    model = dataclasses.asdict(ModelConfig())
    older = {**model, "vision": {"width": 3}, "text": {}}
    assert code_digest("checkpoint", {"model": older, "train": {}}) == code_digest(
        "checkpoint", {"model": model, "train": {}}
    )
    answers = {"decode": {}, "connector": "mqt"}
    pair = {"vision": "siglip", "text": "gemma2"}
    assert code_digest("predictions", answers) == code_digest("predictions", answers | pair)
