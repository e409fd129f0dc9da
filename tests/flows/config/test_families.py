"""A family, or a published size, stands for the values of a tower or a decoder."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.model_families import with_pair
from flows.config.normalise import normalise
from flows.config.validation import partial_adapter
from flows.study.load import apply_overrides, check_config, load
from flows.study.study import StudyConfig
from infra.errors import ConfigError
from infra.store.births import with_births
from infra.store.digest import canonical_json
from infra.typed_json import parse_typed
from model.config import ModelConfig
from model.text.config import RopeScaling, TextConfig
from model.text.registry import DECODERS
from model.vision.config import VisionConfig
from model.vision.registry import TOWERS

GEMMA3_4B = TextConfig(
    family="gemma3",
    vocab_size=262_144 + 1152,
    width=2560,
    depth=34,
    mlp_dim=10_240,
    num_heads=8,
    num_kv_heads=4,
    rope_base=1e6,
    local_rope_base=1e4,
    rope_scaling=RopeScaling(kind="linear", factor=8),
    sliding_window=1024,
)
TRAINED_ELSEWHERE = {"tokenizer": {"path": "tokenizer.model"}}


def model_of(model: dict[str, Any], **others: Any) -> ModelConfig:
    return check_config({"methods": ["m3"], **others, "model": model}, source="here").model


@pytest.mark.parametrize("text", ["gemma3-4b", {"family": "gemma3-4b"}])
def test_a_published_size_is_its_values(text: Any):
    model = model_of({"vision": "siglip2", "text": text}, **TRAINED_ELSEWHERE)
    assert model.text == GEMMA3_4B
    assert model.vision == VisionConfig(family="siglip2")


@pytest.mark.parametrize("part", ["vision", "text"])
def test_a_family_is_its_first_size_and_every_size_loads(part: str):
    for name, family in {"vision": TOWERS, "text": DECODERS}[part].items():
        sizes = {}
        for size in (name, *family.sizes):
            fields = family.sizes.get(size) or next(iter(family.sizes.values()))
            tower = VisionConfig(family=name, **fields) if part == "vision" else VisionConfig()
            all_tokens = {"methods": ["vanilla"], "budgets": [tower.num_patches]}
            sizes[size] = getattr(model_of({part: size}, **all_tokens, **TRAINED_ELSEWHERE), part)
        assert sizes[name] == sizes[next(iter(family.sizes))]
        assert {size.family for size in sizes.values()} == {name}
        assert len({*sizes.values()}) == len(family.sizes)


def test_stated_fields_stand_and_the_rest_is_the_sizes():
    stated = {"family": "gemma3-4b", "width": 64, "depth": 2, "rope_scaling": None}
    text = model_of({"text": stated}, **TRAINED_ELSEWHERE).text
    changes = {"width": 64, "depth": 2, "rope_scaling": None}
    assert text == dataclasses.replace(GEMMA3_4B, **changes)


def test_a_decoder_without_soft_caps_has_none_and_the_others_theirs():
    gemma3, gemma2 = (
        model_of({"text": name}, **TRAINED_ELSEWHERE) for name in ("gemma3", "gemma2")
    )
    assert (gemma3.attn_softcap, gemma3.final_softcap) == (0, 0)
    assert (gemma2.attn_softcap, gemma2.final_softcap) == (50, 30)
    with pytest.raises(ConfigError, match=r"attn_softcap must be 0 .*text\.family 'llama'"):
        model_of({"text": "llama", "attn_softcap": 50}, **TRAINED_ELSEWHERE)


def test_the_vocabulary_is_that_of_a_tokenizer_trained_here():
    assert model_of({"text": "llama"}, tokenizer={"vocab_size": 512}).text.vocab_size == 1664
    assert model_of({"text": "llama"}).text.vocab_size == 257_152
    assert model_of({"text": "llama"}, **TRAINED_ELSEWHERE).text.vocab_size == 33_152
    text = {"family": "llama", "vocab_size": 1500}
    with pytest.raises(ConfigError, match=r"vocab_size must be .* = 1664, got 1500"):
        model_of({"text": text}, tokenizer={"vocab_size": 512})


def test_the_tower_says_the_size_of_the_images():
    values = {"methods": ["m3"], "budgets": [36], "model": {"vision": "clip"}}
    config = check_config(values, source="here")
    assert config.model.vision.image_px == config.prepare.image_px == 336


@pytest.mark.parametrize(
    ("overrides", "family", "width", "depth"),
    [
        # A name stands for all values; a mapping, and a single key, change some.
        (["model.text=gemma3"], "gemma3", 1152, 26),
        (["model.text=gemma3", "model.text.width=64"], "gemma3", 64, 26),
        (["model.text.family=gemma3"], "gemma3", 96, 2),  # The demo states these.
    ],
)
def test_overrides_are_laid_over_names(overrides: list[str], family: str, width: int, depth: int):
    text = load(overrides=overrides).model.text
    assert (text.family, text.width, text.depth) == (family, width, depth)


def test_a_file_is_laid_over_the_names_of_its_base(tmp_path: Path):
    (tmp_path / "base.yaml").write_text("base: demo\nmodel: {text: gemma3-1b, vision: siglip2}\n")
    over = tmp_path / "over.yaml"
    over.write_text("base: base.yaml\nmodel: {text: {depth: 3}, vision: clip-l-224}\n")
    model = load(over).model
    assert (model.text.family, model.text.width, model.text.depth) == ("gemma3", 1152, 3)
    assert (model.vision.family, model.vision.width) == ("clip", 1024)


def test_a_pair_is_put_into_a_model():
    demo = load().model_of("parcel")
    pair = with_pair(demo, "clip", "vicuna-7b")
    assert (pair.vision.image_px, pair.text.num_heads, pair.connector.buckets) == (336, 32, ())
    assert with_pair(demo, None, None) == demo


def test_what_is_recorded_has_every_value():
    study = load(overrides=["model={vision: siglip2, text: gemma3-4b}", "methods=[m3]"])
    recorded = json.loads(json.dumps(dataclasses.asdict(study)))
    assert recorded["model"]["text"]["rope_scaling"]["factor"] == 8.0
    again = apply_overrides(recorded, [], source="the record")
    assert (again, again.statements) == (study, study.statements)
    once = normalise(partial_adapter(StudyConfig).validate_python(recorded))
    assert normalise(once) == once


def test_nested_values_are_read_back_from_json():
    model = ModelConfig(text=GEMMA3_4B, attn_softcap=0, final_softcap=0)
    text = canonical_json(model)
    read = parse_typed(TextConfig, json.dumps(json.loads(text)["text"]), "it")
    assert read == GEMMA3_4B
    with pytest.raises(ValueError, match=r"rope_scaling\.kind .*'linear', 'llama3'"):
        parse_typed(TextConfig, '{"rope_scaling": {"kind": "yarn", "factor": 2}}', "it")
    # A manifest that is older than a field has the value that the field was born with.
    old = json.loads(text)
    del old["text"]["rope_scaling"]["original_length"], old["vision"]["family"], old["projector"]
    assert with_births(ModelConfig, old) == json.loads(text)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            {"text": "gema3"},
            r"model\.text\.family must be .*gemma2, gemma3, llama.*did you mean gem",
        ),
        ({"vision": {"family": "clip_l_336"}}, r"model\.vision\.family.*did you mean clip-l-336\?"),
        ({"vision": "gemma3"}, r"model\.vision\.family must be .* got 'gemma3'"),
        ({"text": {"family": 3}}, r"here: model\.text\.family: .*got 3"),
        ({"text": 3}, r"here: model\.text: .*got 3"),
        (
            {"text": {"rope_scaling": {"kind": "yarn", "factor": 2}}},
            r"rope_scaling\.kind: .*'yarn'",
        ),
    ],
)
def test_a_wrong_name_is_one_line(model: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem) as refused:
        model_of(model)
    assert "\n" not in str(refused.value)
