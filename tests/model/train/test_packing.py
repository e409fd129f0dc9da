"""Updates with packed texts are the updates without, whatever the model and its inputs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from infra.store.digest import identity_json
from model import vlm
from model.checkpoint.digest import flatten_params
from model.config import ModelConfig
from model.connector.budgets import bucket_of, supported_budgets
from model.connector.registry import KINDS
from model.data.loader import Batch, Loader
from model.seeds import Seeds
from model.sharding import make_mesh
from model.text.tokenizer import Tokenizer
from model.train.config import ProgramConfig, TrainConfig
from model.train.loop import StagePaths, fit
from model.train.lora_config import LoraConfig
from model.train.packing import deal, packed_batch, packed_batches, text_lengths, with_packing
from model.train.start import starting_params
from model.train.step import (
    LENGTH,
    NUMBER,
    Rates,
    StepPrograms,
    backward,
    dropout_key,
    make_state,
)
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model
from tests.model.tiny_models import tiny_config

TRAIN = ProgramConfig(batch_size=6, text_len=13, dropout=0.2, label_smoothing=0.1, pack=None)
BEGIN, END = np.array([[6, 1, 5, 2, 7, 3], [9, 4, 13, 3, 9, 3]])
"""First target and end of six texts; the last has no target."""


def batch_of(num_images: int = 1, px: int = 32, vocab: int = 37, lead: int = 0) -> Batch:
    """Returns six rows of unequal texts; the first `lead` tokens are read before the images."""
    rng, place = np.random.default_rng(0), np.arange(14)
    learned = place >= BEGIN[:, None]
    is_real = place < END[:, None]
    ar = np.where(place < lead, -1, learned.astype(np.int32))
    return {
        "image": rng.integers(0, 255, (6, num_images, px, px, 3), dtype=np.uint8),
        "text": np.where(is_real, rng.integers(3, vocab, (6, 14)), 0).astype(np.int32),
        "mask_ar": ar.astype(np.int32),
        "mask_loss": (learned & is_real).astype(np.int32),
    }


def test_a_text_is_read_up_to_its_last_target():
    # The token before the last target is the last that matters; without targets none does.
    np.testing.assert_array_equal(text_lengths(batch_of()["mask_loss"]), [8, 3, 12, 2, 8, 0])
    assert text_lengths(np.ones((1, 5), np.int32)) == 4


def test_rows_are_dealt_out_so_that_no_part_has_much_more_text_than_another():
    lengths = np.array([9, 1, 8, 2, 7, 3, 6, 4], np.int32)
    parts = deal(lengths, 4)
    np.testing.assert_array_equal(np.sort(parts.ravel()), range(8))
    np.testing.assert_array_equal(lengths[parts].sum(axis=1), [10, 10, 10, 10])
    np.testing.assert_array_equal(deal(np.zeros(4, np.int32), 2), [[0, 3], [1, 2]])


def test_a_batch_that_does_not_fit_says_no_lengths():
    batch = batch_of()
    dealt = packed_batch(batch, 2, 17, first=6)
    rows = dealt[NUMBER] - 6
    np.testing.assert_array_equal(np.sort(rows), range(6))
    np.testing.assert_array_equal(dealt[LENGTH], text_lengths(batch["mask_loss"])[rows])
    for name, array in batch.items():
        np.testing.assert_array_equal(dealt[name], array[rows])
    too_few = packed_batch(batch, 2, 16, first=6)
    assert LENGTH not in too_few
    np.testing.assert_array_equal(too_few[NUMBER], dealt[NUMBER])


def loss_and_gradients(
    model: ModelConfig, train: ProgramConfig, batch: Batch, slots: vlm.Slots
) -> tuple[float, dict[str, np.ndarray]]:
    """Returns the loss and the gradients of an update on one device."""
    params = dict(flatten_params(vlm.init_params(model, 0)))

    def derive(params: Any, batch: Batch, key: Any) -> Any:
        return backward(params, {}, batch, slots, key, model=model, train=train)

    loss, gradients = jax.jit(derive)(params, batch, dropout_key(train, 0, 0))
    return float(loss), jax.tree.map(np.asarray, gradients)


def assert_same_update(
    model: ModelConfig, train: ProgramConfig, batch: Batch, slots: vlm.Slots
) -> None:
    """Checks a packed update against one without, by 1e-6 of the loss and 3e-6 of the gradient."""
    loss, gradients = loss_and_gradients(model, train, batch, slots)
    rows = 6 // train.num_passes(6)
    dealt = packed_batch(batch, 6 // rows, rows * 9)
    assert LENGTH in dealt
    packed = dataclasses.replace(train, pack=9)
    other, others = loss_and_gradients(model, packed, dealt, slots)
    assert other == pytest.approx(loss, rel=1e-6)
    norm = np.linalg.norm([np.linalg.norm(g) for g in gradients.values()])
    errors = [np.linalg.norm(others[path] - g) for path, g in gradients.items()]
    assert np.linalg.norm(errors) <= 3e-6 * norm


MODELS = [
    ("mqt", {}, 1, (40, 16)),
    ("parcel", {"scan_layers": True, "remat": "minimal"}, 2, (62, 40)),
    ("m3", {"remat": "full"}, 1, (64, 64)),
    ("vanilla", {}, 0, (256, 256)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "changes", "num_images", "slots"), MODELS)
def test_a_packed_update_is_the_update(
    kind: str, changes: dict[str, Any], num_images: int, slots: tuple[int, int]
):
    model = tiny_config(kind, **changes)
    assert_same_update(model, TRAIN, batch_of(num_images), vlm.Slots(*slots))


FAMILIES = {
    "gemma2": {"sliding_window": 3},
    "gemma3": {"sliding_window": 3, "local_rope_base": 100.0},
    "llama": {"tied": False},
}


def model_of(kind: str, family: str) -> ModelConfig:
    """Returns a model with a decoder of a family, whose local layers have windows."""
    text = dataclasses.replace(tiny_config(kind).text, family=family, **FAMILIES[family])
    changes: dict[str, Any] = {"prompt": "llava" if family == "llama" else "paligemma"}
    if family != "gemma2":
        changes |= {"attn_softcap": 0.0, "final_softcap": 0.0}
    return tiny_config(kind, text=text, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_update_is_the_update_of_each_family(family: str):
    model = model_of("m3", family)
    lead = 2 if model.template.lead is not None else 0
    assert_same_update(model, TRAIN, batch_of(lead=lead), vlm.Slots(16, 16))


@pytest.mark.night
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_updates_of_all_connectors_families_and_budgets(kind: str, family: str):
    model = model_of(kind, family)
    lead = 2 if model.template.lead is not None else 0
    served = supported_budgets(model)
    for budget in {served[0], served[len(served) // 2], served[-1]}:
        slots = vlm.Slots(bucket_of(model, budget).size, budget)
        assert_same_update(model, TRAIN, batch_of(lead=lead), slots)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"microbatch": 2},
        {"microbatch": 3, "loss_weights": "tokens"},
        {"dropout": 0.0, "loss_weights": "tokens"},
    ],
)
def test_a_packed_update_is_the_update_of_each_recipe(changes: dict[str, Any]):
    train = dataclasses.replace(TRAIN, **changes)
    batch = batch_of(vocab=1400)
    assert_same_update(tiny_model("parcel", (30, 64)), train, batch, vlm.Slots(30, 24))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"freeze_vision": True}, {"freeze_text": True, "lora": LoraConfig(rank=2)}],
)
def test_programs_take_packed_batches_and_those_that_do_not_fit(changes: dict[str, Any]):
    model, mesh, batch = tiny_model("parcel", (30, 64)), make_mesh(), batch_of(vocab=1400)
    rates, states = Rates(1e-2, 0.0, dropout_key(TRAIN, 0, 0)), []
    for pack in (None, 6, 5):
        train = dataclasses.replace(TRAIN, pack=pack, **changes)
        programs = StepPrograms(model, train, mesh)
        state = make_state(model, starting_params(model, None, 0), train, mesh)
        if pack:
            programs.compile_ahead(state, [(30, 1)])
        given = packed_batch(batch, 1, 6 * pack) if pack else batch
        assert (LENGTH in given) == (pack == 6)  # 33 tokens in 36 places, or in 30.
        state, metrics = programs(state, given, 24, rates)
        states.append([metrics.loss, *metrics.norms.values()])
    for other in states[1:]:
        np.testing.assert_allclose(other, states[0], rtol=2e-6)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("inputs")
    data = write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]})
    return {"data": data, "tokenizer": write_tokenizer(root / "tokenizer.model")}


STAGE = TrainConfig(
    batch_size=6, total_steps=5, text_len=40, save_steps=2, log_steps=1, warmup=0.0, dropout=0.1
)


def loader_of(inputs: dict[str, str]) -> Loader:
    return Loader(
        inputs["data"],
        STAGE.batches,
        tokenizer=Tokenizer(inputs["tokenizer"]),
        mask_codec=None,
        image_px=32,
        seeds=Seeds.of(5),
    )


def test_auto_takes_what_the_first_updates_need_and_packs_nothing_on_a_cpu(
    inputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    loader, auto = loader_of(inputs), dataclasses.replace(STAGE, microbatch=3)
    assert with_packing(auto, loader).pack is None
    stated = dataclasses.replace(auto, pack=7)
    assert with_packing(stated, loader) is stated
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    chosen = with_packing(auto, loader)
    assert isinstance(chosen.pack, int)
    assert 1 <= chosen.pack < 40
    fitting = list(packed_batches(loader, chosen, make_mesh(), 0, STAGE.total_steps))
    assert all(LENGTH in batch for batch in fitting)
    assert [LENGTH in batch for batch in packed_batches(loader, stated, make_mesh(), 0, 2)]
    less = dataclasses.replace(chosen, pack=chosen.pack - 4)
    assert not all(LENGTH in batch for batch in packed_batches(loader, less, make_mesh(), 0, 5))
    # Texts that fill their places are left as they are.
    full = dataclasses.replace(auto, text_len=chosen.pack)
    assert with_packing(full, loader).pack is None
    assert with_packing(dataclasses.replace(auto, pack=40), loader).pack is None


def run(root: Path, inputs: dict[str, str], train: TrainConfig, stop: int = 99) -> Path:
    out = root / "out"
    out.mkdir(parents=True, exist_ok=True)
    paths = StagePaths(scratch=str(root / "scratch"), out=str(out), **inputs)
    for progress in fit(tiny_model("parcel", (30, 64)), train, paths, Seeds.of(5)):
        if progress.done >= stop and progress.resumable:
            break
    return out


@pytest.mark.slow
def test_a_packed_stage_resumes_to_the_same_bytes_and_is_the_stage_without(
    tmp_path: Path, inputs: dict[str, str]
):
    packed = dataclasses.replace(STAGE, pack=9)
    assert identity_json(packed) == identity_json(STAGE)
    whole = run(tmp_path / "whole", inputs, packed)
    run(tmp_path / "killed", inputs, packed, stop=2)
    resumed = run(tmp_path / "killed", inputs, packed)
    digests = {(folder / "digest.txt").read_text() for folder in (whole, resumed)}
    assert len(digests) == 1
    padded = run(tmp_path / "padded", inputs, STAGE)
    rows = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (whole, padded)
    ]
    for one, other in zip(*rows, strict=True):
        assert one["pack"] == 9
        assert "pack" not in other
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-5)
    batches = packed_batches(loader_of(inputs), packed, make_mesh(), 0, STAGE.total_steps)
    assert rows[0][-1].get("padded", 0) == sum(LENGTH not in batch for batch in batches)


def test_what_is_no_number_of_places_is_refused():
    for wrong in (0, -1, True, "some"):
        with pytest.raises(ValueError, match=r"pack must be at least 1 .* null .* auto for .* got"):
            TrainConfig(pack=wrong)
