"""Programs, budgets and the sharded step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import vlm
from model.checkpoint.digest import flatten_params
from model.connector import budgets
from model.sharding import make_mesh
from model.train.config import GroupConfig, ProgramConfig, TrainConfig
from model.train.lora_config import LoraConfig
from model.train.programs import step_programs
from model.train.step import (
    Rates,
    StepPrograms,
    abstract_inputs,
    abstract_state,
    compiler_options,
    declared_buckets,
    dropout_key,
    loss_weights,
    make_state,
    norms_of,
)
from tests.model.tiny_model import tiny_model


def test_budgets_are_drawn_from_seed_and_step():
    model = tiny_model("parcel", (30, 64))
    drawn = [budgets.draw_budget(model, 3, step) for step in range(80)]
    assert drawn == [budgets.draw_budget(model, 3, step) for step in range(80)]
    assert set(drawn) <= set(range(16, 65, 2))
    assert len(set(drawn)) > 10
    assert {budgets.draw_budget(model, 3, step, (16, 64)) for step in range(40)} == {16, 64}


def test_declared_buckets_are_those_of_the_listed_budgets():
    model = tiny_model("mqt", (20, 40, 64))
    assert declared_buckets(model, TrainConfig()) == (20, 40, 64)
    assert declared_buckets(model, TrainConfig(budgets=(16, 2, 1024))) == (20,)


def test_undeclared_program_is_an_error():
    model, train = tiny_model("mqt", (20, 40, 64)), TrainConfig(budgets=(16,))
    with pytest.raises(ValueError, match=r"budget 64 .* declared: \[20\]"):
        step_programs(model, train)(None, {}, 64, None)  # type: ignore[arg-type]


def test_undeclared_number_of_images_is_an_error():
    rates, batch = Rates(learning=1e-3, decay=0.0), {"image": np.zeros((2, 4, 8, 8, 3), np.uint8)}
    programs = step_programs(tiny_model(), TrainConfig(), (1, 16))
    with pytest.raises(ValueError, match=r"\b4 images .*declared: \[1, 16\]"):
        programs(None, batch, 64, rates)  # type: ignore[arg-type]


def test_a_program_that_was_not_compiled_ahead_is_an_error():
    model, rates = tiny_model("parcel", (30, 64)), Rates(learning=1e-3, decay=0.0)
    programs = StepPrograms(model, TrainConfig(batch_size=1), make_mesh())
    programs.compile_ahead(None, [])  # type: ignore[arg-type]
    batch = {"image": np.zeros((1, 1, 32, 32, 3), np.uint8)}
    with pytest.raises(LookupError, match=r"bucket=30, num_images=1, packed=False"):
        programs(None, batch, 22, rates)  # type: ignore[arg-type]


def test_steps_of_a_gpu_are_deterministic_unless_told_otherwise():
    options = compiler_options("gpu", deterministic=True)
    assert options == {"xla_gpu_deterministic_ops": True}
    # Said, and not left out: the flags of a worker on a GPU ask for it.
    assert compiler_options("gpu", deterministic=False) == {"xla_gpu_deterministic_ops": False}
    assert compiler_options("cpu", deterministic=True) == {}
    assert compiler_options("tpu", deterministic=True) == {}
    # XLA knows the option, which it refuses where it does not.
    lowered = jax.jit(lambda x: x + 1).lower(np.float32(1))
    assert float(lowered.compile(compiler_options=options)(np.float32(1))) == 2
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_deterministic_opz"):
        lowered.compile(compiler_options={"xla_gpu_deterministic_opz": True})
    model, train = tiny_model(), TrainConfig()
    assert step_programs(model, train) is not step_programs(model, train, deterministic=False)


def test_norms_are_those_of_each_part():
    gradients = {"text/a": jnp.array([3.0]), "text/b": jnp.array([4.0]), "vision/c": jnp.ones(4)}
    norms = norms_of(gradients)
    assert {part: float(norm) for part, norm in norms.items()} == {"text": 5.0, "vision": 2.0}


def test_stages_that_differ_in_numbers_only_share_programs():
    model = tiny_model()
    one = step_programs(model, TrainConfig(total_steps=9, peak_lr=1e-4, schedule="rsqrt"))
    assert step_programs(model, TrainConfig(total_steps=3, weight_decay=0.1)) is one
    assert step_programs(model, TrainConfig(sampling="choice")) is one
    assert step_programs(model, TrainConfig(label_smoothing=0.1)) is not one


def test_fields_that_a_program_is_compiled_from_tell_stages_apart():
    one = TrainConfig(groups=(GroupConfig(params="vision/.*", lr=0.5, warmup=0.1),))
    same = dataclasses.replace(
        one,
        epochs=2.0,
        max_frames=4,
        mixture=(("a", 1.0),),
        groups=(GroupConfig(params="vision/.*", lr=3.0, rsqrt_shift=5.0),),
    )
    assert one.program == same.program
    others: dict[str, Any] = {
        "batch_size": 4,
        "grad_clip": 2.0,
        "b2": 0.9,
        "label_smoothing": 0.1,
        "loss_weights": "tokens",
        "dropout": 0.1,
        "text_len": 8,
        "budgets": (64,),
        "freeze_vision": True,
        "freeze_text": True,
        "lora": LoraConfig(),
        "exact_shards": 2,
        "num_replicas": 2,
        "microbatch": 1,
        "pack": 5,
        "groups": (GroupConfig(params="vision/.*", lr=0.0),),
    }
    for name, value in others.items():
        assert dataclasses.replace(one, **{name: value}).program != one.program, name
    assert set(others) == {f.name for f in dataclasses.fields(ProgramConfig)}


@pytest.mark.slow
def test_programs_are_the_same_whatever_the_rate_of_a_group():
    model, mesh = tiny_model(), make_mesh(jax.devices()[:1])
    groups = (GroupConfig(params="text/.*", lr=0.3, warmup=0.2, rsqrt_shift=1.0),)
    train = TrainConfig(batch_size=2, text_len=8, groups=groups)

    def text(config: ProgramConfig) -> str:
        batch, rates = abstract_inputs(model, config, mesh, 1)
        args = abstract_state(model, config, mesh), batch, vlm.Slots(64, 64), rates
        return StepPrograms(model, config, mesh).lower(args).as_text()

    assert text(train) == text(train.program)
    assert text(train) != text(dataclasses.replace(train, b2=0.5))


def test_dropout_is_drawn_from_seed_and_step_and_without_it_nothing_is():
    train = TrainConfig(dropout=0.1)
    drawn = {tuple(dropout_key(train, seed, step)) for seed in range(9) for step in range(99)}
    assert len(drawn) == 9 * 99
    assert tuple(dropout_key(train, 3, 7)) in drawn
    assert dropout_key(TrainConfig(), 3, 7) is None
    rates = Rates(learning=1e-3, decay=0.0)
    with pytest.raises(ValueError, match=r"dropout_key .*train\.dropout=0\.1"):
        step_programs(tiny_model(), train)(None, {}, 64, rates)  # type: ignore[arg-type]
    assert step_programs(tiny_model(), train) is not step_programs(tiny_model(), TrainConfig())


@pytest.mark.slow
def test_a_batch_of_text_alone_trains_the_decoder_and_nothing_else():
    model, mesh = tiny_model("mqt", (20, 64)), make_mesh(jax.devices()[:1])
    rng = np.random.default_rng(0)
    learned = np.broadcast_to((np.arange(9) > 4).astype(np.int32), (4, 9))
    batch = {
        "image": np.empty((4, 0, 32, 32, 3), np.uint8),
        "text": rng.integers(3, 1400, (4, 9), dtype=np.int32),
        "mask_ar": learned,
        "mask_loss": learned,
    }
    rates, results = Rates(learning=1e-2, decay=0.0), []
    for microbatch in (None, 2):
        train = TrainConfig(batch_size=4, text_len=8, microbatch=microbatch)
        programs = StepPrograms(model, train.program, mesh, (0, 1))
        start = jax.tree.map(np.array, vlm.init_params(model, 0))
        state = make_state(model, start, train, mesh)
        # One program for all budgets, whose slots are not there.
        programs.compile_ahead(state, [(20, 0), (64, 0)])
        for budget in (64, 16):
            state, metrics = programs(state, batch, budget, rates)
        assert np.isfinite(float(metrics.loss))
        for part, norm in metrics.norms.items():
            assert (float(norm) > 1e-3) == (part == "text"), part
        for path, leaf in flatten_params(start):
            if not path.startswith("text/"):
                np.testing.assert_array_equal(state.trained[path], leaf)
        results.append(float(metrics.loss))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


@pytest.mark.slow
def test_all_that_comes_before_the_decoder_keeps_its_bits_where_it_is_frozen():
    model, mesh = tiny_model("parcel", (30, 64)), make_mesh(jax.devices()[:1])
    rng = np.random.default_rng(0)
    learned = np.broadcast_to((np.arange(9) > 4).astype(np.int32), (4, 9))
    batch = {
        "image": rng.integers(0, 256, (4, 1, 32, 32, 3), dtype=np.uint8),
        "text": rng.integers(3, 1400, (4, 9), dtype=np.int32),
        "mask_ar": learned,
        "mask_loss": learned,
    }
    train = TrainConfig(batch_size=4, text_len=8, freeze_vision="all")
    start = jax.tree.map(np.array, vlm.init_params(model, 0))
    state = make_state(model, start, train, mesh)
    programs = StepPrograms(model, train.program, mesh)
    rates = Rates(learning=1e-2, decay=1e-2)
    for budget in (18, 30):
        state, metrics = programs(state, batch, budget, rates)
    assert set(metrics.norms) == {"text"}
    after = {**state.trained, **state.frozen}
    for path, leaf in flatten_params(start):
        moved = not np.array_equal(after[path], leaf)
        assert moved == path.startswith("text/"), path


def test_loss_is_a_mean_of_means():
    losses = jnp.asarray([[1.0, 3.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = jnp.asarray([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert float(jnp.sum(loss_weights(mask) * losses)) == pytest.approx((2 + 5 + 0) / 3)


def test_loss_by_tokens_is_a_mean_over_all_targets():
    losses = jnp.asarray([[1.0, 3.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = jnp.asarray([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert float(jnp.sum(loss_weights(mask, "tokens") * losses)) == pytest.approx((1 + 3 + 5) / 3)
    assert not np.any(loss_weights(jnp.zeros((2, 3)), "tokens"))
