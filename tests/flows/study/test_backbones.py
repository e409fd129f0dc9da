"""Studies on several backbones: each has the steps of a study of it alone, and its own table."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pydantic
import pytest

from flows.graph.explain import _describe_difference
from flows.graph.graph import graph_of
from flows.graph.inputs import check_study
from flows.graph.nodes import StudyGraph
from flows.graph.results_plan import results_plan
from flows.plan.microbatches import training_programs
from flows.study.load import apply_overrides, check_config, load, read_study_file
from flows.study.study import StudyConfig
from flows.sweep.sweep import Sweep, _compared_rows
from infra.errors import ConfigError
from infra.store.digest import identity_json, value_sha256
from parcel.cli.flops_models import flops_models

SMALL = "{width: 64, depth: 1, mlp_dim: 128, num_heads: 2}"
LLAMA = "{width: 96, depth: 2, mlp_dim: 256, num_heads: 2, num_kv_heads: 1, head_dim: 48}"
PAIR = f"{{vision: {SMALL}, text: {LLAMA}}}"
PLAIN = ["methods=[vanilla]", "train_budgets={}"]
STAGE_2 = "stage2={image_px: 448, train: {total_steps: 3}}"


def study(*overrides: str, clip: str = f"model: {PAIR}") -> StudyConfig:
    """The demo on its own tower and decoder, and on CLIP's tower with Llama, as small."""
    return load(overrides=[f"backbones={{paligemma2: {{}}, clip+llama: {{{clip}}}}}", *overrides])


def digests(graph: StudyGraph) -> dict[str, str]:
    """Step -> a digest of all that its key is made of, and of all it reads, but for the table's."""
    found: dict[int, str] = {}
    for step in graph.steps:
        reads = {role: found[id(read)] for role, read in step.inputs.items()}
        found[id(step)] = value_sha256([step.kind, identity_json(step.config), step.seed, reads])
    return {step.name: found[id(step)] for step in graph.steps if step.kind != "results"}


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        ([], ["train_budgets={m3: [576], mqt: [16, 64, 576], parcel: [64, 576]}"]),
        (
            [
                "methods=[vanilla, parcel]",
                "hygiene={contamination: report}",
                "train_budgets={parcel: [16, 256]}",
                "watch={probe: {benchmark: chartqa}}",
                "stages=[{name: own, methods: [parcel]}]",
                "num_pretrain_seeds=2",
            ],
            ["train_budgets={parcel: [576]}", "budgets=[64, 576]"],
        ),
        (["methods=[vanilla, m3]", "train_budgets={}", STAGE_2], ["budgets=[576]"]),
    ],
    ids=["demo", "hygiene", "stage2"],
)
def test_a_backbone_has_the_steps_of_a_study_of_it_alone(words: list[str], alone: list[str]):
    stated = [
        f"model.vision={{family: clip, {SMALL[1:]}",
        f"model.text={{family: llama, {LLAMA[1:]}",
        "budgets=[16, 64, 576]",
        # The demo declares shapes, which are of 16 x 16 patches.
        "connectors={mqt: {num_heads: 4}, parcel: {num_heads: 4}}",
    ]
    both = digests(graph_of(study(*words)))
    steps = {
        "@paligemma2": digests(graph_of(load(overrides=words))),
        "@clip+llama": digests(graph_of(load(overrides=[*words, *stated, *alone]))),
    }
    # A name tells the backbone, unless the step is of all of them.
    for suffix, of_alone in steps.items():
        found = {
            name.replace(suffix, "", 1): digest
            for name, digest in both.items()
            if suffix in name or not any(other in name for other in steps)
        }
        assert found == of_alone
    assert len(both) == len({*both.values()})


def test_one_backbone_is_named_by_nothing_and_has_every_key_and_name_of_the_plain_study():
    plain, one = (load(overrides=words) for words in ([], ["backbones=[paligemma2]"]))
    assert digests(graph_of(one)) == digests(graph_of(plain))
    assert results_plan(one) == results_plan(plain)
    assert "backbone" not in identity_json(results_plan(one))


def test_what_all_backbones_read_is_named_by_none_and_made_once():
    config = load(overrides=[f"backbones={{paligemma2: {{}}, siglip2+gemma3: {{model: {PAIR}}}}}"])
    names = [step.name for step in graph_of(config).steps]
    assert len(names) == len({*names})
    shared = {name for name in names if name.startswith(("prepare", "tokenizer", "mask", "chance"))}
    assert {"prepare mixture/web", "tokenizer", "mask codec", "chance chartqa"} <= shared
    assert not any("@" in name for name in shared)
    assert {"stage1 vanilla@paligemma2", "stage1 vanilla@siglip2+gemma3"} <= {*names}
    cells = {str(cell) for cell in graph_of(config).cells}
    seed = config.seeds[0]
    assert f"chartqa@siglip2+gemma3/parcel/64/{seed}" in cells
    assert f"chartqa@paligemma2/parcel/64/{seed}" in cells


def test_a_stage_2_ends_names_with_the_resolution_and_then_the_backbone():
    config = study(STAGE_2, "methods=[vanilla]")
    assert [view.view_suffix for view in config.views] == [
        "@paligemma2",
        "@448@paligemma2",
        "@clip+llama",
        "@448@clip+llama",
    ]
    plan = results_plan(config)
    assert [(p.resolution, p.backbone, p.full) for p in plan.views] == [
        (224, "paligemma2", 256),
        (448, "paligemma2", 1024),
        (336, "clip+llama", 576),
        (448, "clip+llama", 1024),
    ]
    assert plan.views[3].benchmarks == ("chartqa@448@clip+llama", "refcoco@448@clip+llama")


def test_budgets_are_as_many_tokens_on_each_tower_but_for_all_tokens():
    own, clip = study().backbone_studies
    assert (own.budgets, clip.budgets) == ((16, 64, 256), (16, 64, 576))
    # Halves of 24 x 24 patches: M³ serves 1, 9, 36, 144 and 576 tokens, PARCEL those from 36 on.
    assert clip.train_budgets["m3"] == (576,)
    assert clip.train_budgets["parcel"] == (64, 576)
    assert clip.connectors["parcel"].buckets == ()
    assert own.connectors["parcel"].buckets == (62, 64, 256)
    stated = "budgets: [36, 576], train_budgets: {mqt: [576]}, connectors: {mqt: {num_heads: 2}}"
    clip = study("train_budgets.m3=[256]", clip=f"model: {PAIR}, {stated}").backbone_studies[1]
    assert (clip.budgets, clip.train_budgets["mqt"], clip.train_budgets["m3"]) == (
        (36, 576), (576,), (576,),
    )  # fmt: skip
    assert clip.connectors["mqt"].num_heads == 2
    assert {p.num_images for p in training_programs(study("compute.topology=v4:2x2x1"))} == {1}


def test_the_other_decoder_has_its_own_caps_and_the_rows_of_the_trained_tokenizer():
    words = ["model.attn_softcap=50", "model.final_softcap=30"]
    own, clip = study(*words).backbone_studies
    assert (own.model.attn_softcap, clip.model.attn_softcap) == (50, 0)
    assert clip.model.text.vocab_size == own.model.text.vocab_size
    llama = ["model.text={family: llama, " + LLAMA[1:]]
    first, second = load(
        overrides=[*llama, "backbones=[siglip+llama, siglip+gemma2]"]
    ).backbone_studies
    assert (first.model.attn_softcap, second.model.attn_softcap) == (0, 50)


def test_a_start_is_of_the_backbone_whose_tower_and_decoder_it_has():
    words = ["start=/a", "tokenizer.path=/a/tokenizer.model"]
    stated = f"model: {PAIR}, start: /b, tokenizer: {{path: /b/tokenizer.model}}, stage1: null"
    config = study(*words, clip=stated)
    assert [pair.start for pair in config.backbone_studies] == ["/a", "/b"]
    assert [pair.stage1 is None for pair in config.backbone_studies] == [False, True]
    assert config.input_paths == {
        "backbones.paligemma2.tokenizer.path": "/a/tokenizer.model",
        "backbones.paligemma2.start": "/a",
        "backbones.clip+llama.tokenizer.path": "/b/tokenizer.model",
        "backbones.clip+llama.start": "/b",
    }
    # A file that is missing is named with its backbone, before anything runs.
    with pytest.raises(ConfigError, match=r"^backbones\.paligemma2: tokenizer\.path must be an"):
        check_study(config)


def test_a_stage_of_a_backbone_changes_the_studys():
    own, clip = study(clip=f"model: {PAIR}, stage1: {{peak_lr: 0.5}}").backbone_studies
    assert own.stage1 is not None
    assert clip.stage1 == dataclasses.replace(own.stage1, peak_lr=0.5)


def test_a_record_is_read_as_it_was_written_and_takes_overrides():
    config = study("num_seeds=1", clip=f"model: {PAIR}, stage1: {{peak_lr: 0.5}}, start: null")
    record = pydantic.TypeAdapter(StudyConfig).dump_python(config, mode="json")
    assert json.loads(json.dumps(record)) == record
    again = check_config(record, source="record")
    assert (again, again.backbone_studies) == (config, config.backbone_studies)
    changed = apply_overrides(
        record,
        [
            "num_seeds=2",
            "intermediary.total_steps=7",
            "model.remat=full",
            "backbones.clip+llama.budgets=[16, 576]",
        ],
        source="record",
    )
    own, clip = changed.backbone_studies
    assert (own.num_seeds, clip.num_seeds) == (2, 2)
    assert own.intermediary is not None
    assert own.intermediary.total_steps == 7
    assert clip.intermediary == own.intermediary
    assert (own.model.remat, clip.model.remat, clip.budgets) == ("full", "full", (16, 576))
    assert list(apply_overrides(record, ["backbones.clip+llama=null"], source="x").backbones) == [
        "paligemma2"
    ]


def test_a_file_adds_to_the_backbones_of_its_base_and_a_list_replaces_them(tmp_path: Path):
    base, over, own = (tmp_path / name for name in ("base.yaml", "over.yaml", "list.yaml"))
    base.write_text("base: demo\nbackbones: [paligemma2, siglip2+llama3.2-1b]\n")
    over.write_text("base: base.yaml\nbackbones: {siglip2+gemma3: {}, paligemma2: null}\n")
    own.write_text("base: base.yaml\nbackbones: [siglip+gemma3]\n")
    assert list(load(over).backbones) == ["siglip2+llama3.2-1b", "siglip2+gemma3"]
    assert list(load(own).backbones) == ["siglip+gemma3"]
    words = ["backbones.siglip2+llama3.2-1b.budgets=[64, 256]"]  # The name itself has a dot.
    assert load(base, words).backbone_studies[1].budgets == (64, 256)
    assert read_study_file(over)["backbones"]["siglip2+gemma3"] == {}


def test_flops_are_each_models_own(tmp_path: Path):
    path = tmp_path / "two.yaml"
    path.write_text(f"base: demo\nbackbones: {{paligemma2: {{}}, clip+llama: {{model: {PAIR}}}}}\n")
    models = flops_models(str(path), None)
    assert [*models] == ["paligemma2", "clip+llama"]
    assert {m.vision.family for m in models["clip+llama"]} == {"clip"}
    costs = [
        {c.tflops for c in plan.costs if (c.method, c.budget) == ("mqt", 64)}
        for plan in results_plan(load(path)).views
    ]
    assert all(costs)
    assert costs[0].isdisjoint(costs[1])


def test_a_sweep_adds_to_every_backbone_and_decides_on_each():
    config = study(clip=f"model: {PAIR}, budgets: [16, 576]")
    assert Sweep(budgets=(64, 144), methods=("avgpool4",)).grid(config) == [
        "methods=[vanilla, m3, mqt, parcel, avgpool4]",
        "budgets=[16, 64, 256, 144]",
        "backbones.clip+llama.budgets=[16, 576, 64, 144]",
    ]
    for pair in config.backbone_studies:
        _, rows = _compared_rows(pair, set(), "parcel", "mqt")
        assert [row.name for row in rows] == [
            f"chartqa{pair.backbone_suffix}",
            f"refcoco{pair.backbone_suffix}",
        ]


@pytest.mark.parametrize("others", ["", "paligemma2: {}, "])
def test_a_difference_has_the_key_that_states_the_value(others: str):
    pair = PAIR.replace("head_dim: 48", "head_dim: 48, vocab_size: 3152")
    own = f"model: {pair}, stage1: {{peak_lr: 0.5}}, tokenizer: {{vocab_size: 2000}}"
    graph = graph_of(load(overrides=[f"backbones={{{others}clip+llama: {{{own}}}}}"]))
    steps, on = {step.name: step for step in graph.steps}, "@clip+llama" if others else ""

    def key(step: str, path: str) -> str:
        return _describe_difference(path, 1, 2, steps[step]).removesuffix(" 1 → 2")

    mine = "backbones.clip+llama"
    assert key(f"stage1 vanilla{on}", "train.peak_lr") == f"{mine}.stage1.peak_lr"
    assert key(f"stage1 vanilla{on}", "model.text.width") == f"{mine}.model.text.width"
    assert key(f"tokenizer{on}", "vocab_size") == f"{mine}.tokenizer.vocab_size"
    # What it does not state is the study's.
    assert key(f"stage1 vanilla{on}", "model.prompt") == "model.prompt"
    assert key(f"intermediary parcel{on}", "train.peak_lr") == "intermediary.peak_lr"
    if others:
        assert key("stage1 vanilla@paligemma2", "train.peak_lr") == "stage1.peak_lr"
        assert key("stage1 vanilla@paligemma2", "model.text.width") == "model.text.width"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["backbones=[paligemma2, siglp2+gemma3]"], "did you mean siglip2\\+gemma3\\?"),
        (["backbones=[palligemma2]"], "did you mean paligemma2\\?"),
        (["backbones={mine: {}}"], "backbones.mine must state its model, or be named"),
        (["backbones={mine+own: {start: /a}}"], "mine\\+own must state its model"),
        (["backbones=[paligemma2, siglip+gemma2]"], "which are the same; leave one out"),
        (["backbones=[paligemma2, paligemma2]"], "must be distinct names, or a mapping"),
        (["backbones={siglip+llama: {model: {text: gemma3}}}"], "must be llama, as the"),
        (["backbones={mine: {model: {text: lama}}}"], "did you mean llama\\?"),
        (["backbones=[paligemma2, siglip2+gemma3]", "start=/a"], "start must be stated"),
        (
            ["backbones=[paligemma2, siglip2+gemma3]", "tokenizer.path=/a"],
            "siglip2\\+gemma3: tokenizer must be stated for gemma3",
        ),
        (
            ["backbones=[paligemma2, clip-b-224+gemma2]", "budgets=[16, 200, 256]"],
            "clip-b-224\\+gemma2: budgets: no method serves \\[200\\]. Accepted: even ones from 2",
        ),
        (
            ["backbones={clip+llama: {model: {connector: {num_heads: 12}}}}", "connectors={}"],
            "clip\\+llama: connector.num_heads must divide vision.width=1024, got 12",
        ),
        (
            ["backbones=[paligemma2, clip+llama]", "stage2={image_px: 336}", *PLAIN],
            "clip\\+llama: stage2.image_px must be above model.vision.image_px=336",
        ),
        (
            ["backbones=[paligemma2, clip-b-224+llama]", "stage2={image_px: 450}"],
            "stage2: vision.image_px must be a multiple of vision.patch_px",
        ),
        (
            [
                f"backbones={{paligemma2: {{}}, clip+llama: {{model: {PAIR}, start: /b}}}}",
                *("methods=[vanilla, parcel]", "train_budgets={}", "num_seeds=1"),
                *(
                    "start=/a",
                    "stage1=null",
                    "intermediary=null",
                    "transfers.chartqa.zero_shot=true",
                ),
            ],
            "paligemma2: transfers.chartqa.zero_shot must come with a stage that trains parcel",
        ),
        (["backbones.mine=null"], "null drops a backbone, and there is none of that name"),
        (["backbones={paligemma2: {vision: clip}}"], "no such key. Accepted: model, tokenizer"),
        (
            ["backbones={paligemma2: {stage1: {pek_lr: 1, total_steps: 3}}}"],
            r"backbones\.paligemma2\.stage1\.pek_lr: no such key; did you mean peak_lr\? Accepted: "
            r"[a-z0-9_, ]+$",
        ),
        (["backbones={paligemma2: {start: 3}}"], r"backbones\.paligemma2\.start: must be .* got 3"),
        (["backbones=[a, a]", "num_seeds=1"], "must be distinct names, or a mapping"),
        (["backbones=3"], "backbones: must be a mapping, as {key: value}, got 3"),
        (["backbones={A/b: {model: {text: llama}}}"], "must be small letters, digits"),
        (["backbones={mine: {model: {connector: {kind: 'm:C'}}}}"], "kind must be left out"),
    ],
)
def test_a_wrong_backbone_is_told_in_a_line(words: list[str], problem: str):
    with pytest.raises(ConfigError, match=problem) as refused:
        load(overrides=words)
    assert "\n" not in str(refused.value)


def test_a_recipe_is_the_registrys_for_the_backbones_images():
    model: dict[str, Any] = {"vision": {"family": "siglip", "image_px": 448}}
    values = {
        "name": "wide",
        "methods": ["vanilla"],
        "budgets": [256],
        "transfers": {"gqa": {}, "infovqa": {"train": {"peak_lr": 0.25}}},
        "backbones": {"paligemma2": {}, "large": {"model": model}},
    }
    small, large = check_config(values, source="here").backbone_studies
    alone = check_config(
        {**values, "backbones": {}, "budgets": [1024], "model": model}, source="here"
    )
    assert large.transfers == alone.transfers
    assert small.transfers["gqa"].train != large.transfers["gqa"].train
    assert large.transfers["infovqa"].train.peak_lr == 0.25


def test_a_screening_reads_the_same_roles_as_alone():
    graph = graph_of(study("methods=[vanilla, parcel]", "hygiene={}", "train_budgets={}"))
    steps = {step.name: step for step in graph.steps}
    screened = steps["screen mixture/web@clip+llama"]
    assert {"chartqa/eval", "refcoco/eval", "dataset"} <= {*screened.inputs}
    assert steps["stage1 vanilla@clip+llama"].inputs["data/0"] is screened
