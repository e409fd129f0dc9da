"""The optimizer against the formulas it had before it was made of optax."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model.seeds import Seeds
from model.train.config import GroupConfig, TrainConfig
from model.train.loop import rates_of
from model.train.lora_config import LoraConfig
from model.train.optimizer import (
    group_of,
    init_optimizer,
    lr_schedule,
    lr_schedules,
    optimizer,
    split_frozen,
    unmatched_groups,
    update_params,
)

PARAMS = {
    "vision/dense/kernel": jnp.arange(6.0).reshape(2, 3),
    "text/embedding": jnp.linspace(-1.0, 1.0, 5),
}


def factor_by_formula(train: TrainConfig, step: int) -> float:
    """The factor of big_vision's `create_learning_rate_schedule`, in float64."""
    warmup = train.warmup * train.total_steps
    factor = min(1.0, step / warmup) if warmup >= 1 else 1.0
    if train.schedule == "cosine":
        done = min(1.0, max(0.0, (step - warmup) / max(1.0, train.total_steps - warmup)))
        return factor * 0.5 * (1 + math.cos(math.pi * done))
    if train.schedule == "rsqrt":
        return factor / math.sqrt(1 + max(0.0, step - warmup) / 10_000)
    return factor


@pytest.mark.parametrize("kind", ["cosine", "rsqrt", "constant"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.0), (7, 0.05), (60, 0.05), (59, 0.3)])
@pytest.mark.parametrize("times", [1, 211])
def test_schedules_equal_their_formulas(kind, steps: int, warmup: float, times: int):
    train = TrainConfig(total_steps=steps * times, warmup=warmup, schedule=kind)
    expected = [factor_by_formula(train, step) for step in range(train.total_steps)]
    # optax computes in float32, the formulas in float64.
    np.testing.assert_allclose(lr_schedule(train), expected, rtol=1e-6, atol=2e-7)


@pytest.mark.slow
def test_schedules_at_places_one_can_check_by_hand():
    cosine = lr_schedule(TrainConfig(total_steps=100, warmup=0.1, schedule="cosine"))
    assert cosine[[0, 5, 10]].tolist() == [0.0, 0.5, 1.0]
    assert cosine[55] == pytest.approx(0.5)
    assert cosine[99] == pytest.approx(0.0, abs=1e-3)
    rsqrt = lr_schedule(TrainConfig(total_steps=20_000, warmup=0.0, schedule="rsqrt"))
    assert rsqrt[0] == 1.0
    assert rsqrt[10_000] == pytest.approx(0.5**0.5)
    assert lr_schedule(TrainConfig(schedule="constant", warmup=0.0))[73] == 1.0


class ByFormula:
    """Clip, Adam and decay, as they were written out; one update after another."""

    def __init__(self, params: dict[str, jax.Array], train: TrainConfig) -> None:
        self.params, self.train, self.updates = dict(params), train, 0
        self.first = {path: jnp.zeros_like(value) for path, value in params.items()}
        self.second = dict(self.first)

    def update(self, gradients: dict[str, jax.Array], rate: float, decay: float) -> None:
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in gradients.values()))
        scale = jnp.minimum(1.0, self.train.grad_clip / jnp.maximum(norm, 1e-16))
        self.updates += 1
        done = jnp.float32(self.updates)
        for path, gradient in gradients.items():
            clipped = gradient * scale
            self.first[path] = 0.9 * self.first[path] + (1 - 0.9) * clipped
            b2 = self.train.b2
            self.second[path] = b2 * self.second[path] + (1 - b2) * jnp.square(clipped)
            direction = (self.first[path] / (1 - 0.9**done)) / (
                jnp.sqrt(self.second[path] / (1 - b2**done)) + 1e-8
            )
            change = jnp.float32(rate) * direction
            if path.endswith("/kernel"):
                change = change + jnp.float32(decay) * self.params[path]
            self.params[path] = self.params[path] - change


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_updates_equal_the_formulas(limit: float):
    train = TrainConfig(grad_clip=limit, b2=0.97)
    theirs, ours, state = ByFormula(PARAMS, train), PARAMS, init_optimizer(train, PARAMS)

    @jax.jit
    def update(gradients, state, params, rate, decay):
        return update_params(optimizer(train, rate, decay), gradients, state, params)

    rng = np.random.default_rng(0)
    for step in range(40):
        rate, decay = np.float32(0.01 / (step + 1)), np.float32(1e-3)
        gradients = {
            path: jnp.asarray(rng.normal(size=value.shape), jnp.float32)
            for path, value in PARAMS.items()
        }
        theirs.update(gradients, float(rate), float(decay))
        ours, state = update(gradients, state, ours, rate, decay)
        for path in PARAMS:
            np.testing.assert_allclose(ours[path], theirs.params[path], rtol=2e-6, atol=1e-7)
    assert update._cache_size() == 1  # Rates are arguments of the program.


@pytest.mark.slow
def test_only_kernels_decay_and_not_by_the_learning_rate():
    train = TrainConfig()
    still = {path: jnp.zeros_like(value) for path, value in PARAMS.items()}
    chain = optimizer(train, 0.01, 0.1)
    after, _ = update_params(chain, still, init_optimizer(train, PARAMS), PARAMS)
    np.testing.assert_allclose(after["vision/dense/kernel"], 0.9 * PARAMS["vision/dense/kernel"])
    np.testing.assert_array_equal(after["text/embedding"], PARAMS["text/embedding"])


def test_freezing_takes_the_vision_tower_out():
    trained, frozen = split_frozen(PARAMS, TrainConfig(freeze_vision=True))
    assert set(trained) == {"text/embedding"}
    assert set(frozen) == {"vision/dense/kernel"}
    assert split_frozen(PARAMS, TrainConfig())[1] == {}


def test_all_that_comes_before_the_decoder_is_frozen_or_the_tower_alone():
    paths = ["vision/a", "connector/b", "projector/kernel", "text/d", "lora/text/d/a"]
    params = {path: jnp.zeros(i + 1) for i, path in enumerate(paths)}
    _, tower = split_frozen(params, TrainConfig(freeze_vision=True))
    trained, frozen = split_frozen(params, TrainConfig(freeze_vision="all"))
    assert list(tower) == ["vision/a"]
    assert list(frozen) == ["vision/a", "connector/b", "projector/kernel"]
    assert list(trained) == ["text/d", "lora/text/d/a"]
    with pytest.raises(ValueError, match="nothing would be trained"):
        TrainConfig(freeze_vision="all", freeze_text=True)
    assert TrainConfig(freeze_vision="all", freeze_text=True, lora=LoraConfig())


GROUPS = TrainConfig(
    total_steps=40,
    warmup=0.1,
    schedule="rsqrt",
    rsqrt_timescale=8.0,
    peak_lr=0.02,
    weight_decay=0.03,
    grad_clip=0.7,
    groups=(
        GroupConfig(params="vision/.*/kernel", lr=0.25, warmup=0.5),
        GroupConfig(params="vision/.*", lr=3.0),
        GroupConfig(params="text/frozen", lr=0),
    ),
)
MANY = {
    "vision/dense/kernel": jnp.arange(6.0).reshape(2, 3),
    "vision/dense/bias": jnp.linspace(0.0, 1.0, 3),
    "text/frozen": jnp.ones(4, jnp.float32),
    "text/embedding": jnp.linspace(-1.0, 1.0, 5),
    "projector/kernel": jnp.full((3, 2), 0.5, jnp.float32),
}


def test_the_first_group_that_matches_a_whole_path_counts():
    found = {path: group_of(GROUPS, path) for path in MANY}
    assert [found[path] for path in MANY] == [0, 1, 2, 3, 3]
    assert group_of(GROUPS, "text/frozen/more") == 3
    assert unmatched_groups(GROUPS, MANY) == []
    assert unmatched_groups(GROUPS, ["vision/a/bias", "text/frozen"]) == ["vision/.*/kernel"]


def test_a_group_has_a_warm_up_and_the_stage_a_timescale_of_its_own():
    rows = lr_schedules(GROUPS)
    assert rows.shape == (4, 40)
    slow, usual = rows[0], rows[3]
    assert slow[[0, 5, 20]].tolist() == [0.0, 0.25, 1.0]
    assert usual[[0, 2, 4, 12]] == pytest.approx([0.0, 0.5, 1.0, 0.5**0.5])
    np.testing.assert_array_equal(rows[1], usual)
    assert slow[28] == pytest.approx(0.5**0.5)
    np.testing.assert_array_equal(lr_schedules(TrainConfig())[0], lr_schedule(TrainConfig()))


def test_a_shifted_rsqrt_goes_on_where_another_stage_ended():
    whole = TrainConfig(total_steps=90, warmup=0.1, schedule="rsqrt", rsqrt_timescale=20.0)
    rest = dataclasses.replace(whole, total_steps=30, warmup=0.0, rsqrt_shift=60 - 9)
    np.testing.assert_allclose(lr_schedule(rest), lr_schedule(whole)[60:], rtol=1e-6)
    ramped = lr_schedule(dataclasses.replace(rest, warmup=0.2))
    assert ramped[3] == pytest.approx(0.5 * lr_schedule(rest)[0])
    assert ramped[6:] == pytest.approx(lr_schedule(rest)[:24])


def test_a_group_may_begin_the_schedule_that_the_stage_goes_on_with():
    stage = TrainConfig(
        total_steps=30, warmup=0.0, schedule="rsqrt", rsqrt_timescale=20.0, rsqrt_shift=51
    )
    group = GroupConfig(params="connector/.*", rsqrt_shift=0)
    rows = lr_schedules(dataclasses.replace(stage, groups=(group, GroupConfig(params="text/.*"))))
    np.testing.assert_array_equal(rows[0], lr_schedule(dataclasses.replace(stage, rsqrt_shift=0)))
    np.testing.assert_array_equal(rows[1], lr_schedule(stage))
    assert rows[0][0] == 1.0 > rows[2][0]


@pytest.mark.slow
def test_groups_update_as_plain_optax_does_parameter_by_parameter():
    trained, frozen = split_frozen(MANY, GROUPS)
    assert set(frozen) == {"text/frozen"}
    ours, state = trained, init_optimizer(GROUPS, trained)
    adam = optax.chain(optax.clip_by_global_norm(0.7), optax.scale_by_adam(0.9, 0.999, 1e-8))
    theirs, kept = dict(trained), adam.init(trained)
    mults = {"vision/dense/kernel": 0.25, "vision/dense/bias": 3.0}
    update = jax.jit(
        lambda g, s, p, rates: update_params(optimizer(GROUPS, rates[0], rates[1]), g, s, p)
    )
    rng = np.random.default_rng(3)
    for step in range(GROUPS.total_steps):
        gradients = {
            path: jnp.asarray(rng.normal(size=value.shape), jnp.float32)
            for path, value in trained.items()
        }
        rates = rates_of(GROUPS, lr_schedules(GROUPS)[:, step], Seeds.of(0), step)
        ours, state = update(gradients, state, ours, (rates.learning, rates.decay))
        with jax.numpy_dtype_promotion("standard"):
            direction, kept = adam.update(gradients, kept)
        for path, towards in direction.items():
            warmup = 20 if path == "vision/dense/kernel" else 4
            factor = min(1.0, step / warmup) / math.sqrt(1 + max(0, step - warmup) / 8)
            decay = 0.03 * theirs[path] if path.endswith("/kernel") else 0.0
            rate = 0.02 * mults.get(path, 1.0)
            theirs[path] = theirs[path] - (rate * towards + decay) * jnp.float32(factor)
        for path in trained:
            np.testing.assert_allclose(ours[path], theirs[path], rtol=3e-6, atol=2e-7)
    assert update._cache_size() == 1


def test_groups_of_one_rate_update_to_the_bit_as_none_do():
    plain = dataclasses.replace(GROUPS, groups=())
    grouped = dataclasses.replace(GROUPS, groups=(GroupConfig(params="vision/.*"),))
    gradients = jax.tree.map(lambda x: x + 0.3, MANY)
    changed = []
    for train in (plain, grouped):
        rates = rates_of(train, lr_schedules(train)[:, 7], Seeds.of(0), 7)
        chain = optimizer(train, rates.learning, rates.decay)
        after, _ = update_params(chain, gradients, init_optimizer(train, MANY), MANY)
        changed.append(after)
    jax.tree.map(np.testing.assert_array_equal, *changed)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"params": "(vision"}, r"groups\.params must be a regular expression, got '\(vision'"),
        (
            {"params": ".*", "lr": -1.0},
            r"groups\.lr must be at least 0 \(0 freezes the group\), got -1\.0",
        ),
        ({"params": ".*", "rsqrt_shift": -1}, r"groups\.rsqrt_shift must be at least 0 .* got -1"),
        ({"params": ".*", "warmup": 1.0}, r"groups\.warmup must be .* in \[0, 1\), .* got 1\.0"),
    ],
)
def test_a_bad_group_names_field_and_value(values: dict, message: str):
    with pytest.raises(ValueError, match=message):
        GroupConfig(**values)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("warmup", 1.5, r"warmup must be a fraction of total steps in \[0, 1\), got 1.5"),
        ("schedule", "linear", "schedule must be one of rsqrt, cosine, constant, got 'linear'"),
        ("sampling", "all", "sampling must be one of without_replacement, choice, uniform, got"),
        ("dropout", 1.0, r"dropout must be in \[0, 1\), got 1.0"),
        ("rsqrt_timescale", 0.0, "rsqrt_timescale must be positive"),
        ("batch_size", 0, "batch_size must be at least 1, got 0"),
        ("budgets", (), "budgets must be a list"),
        ("mixture", (("a", 1.0), ("a", 2.0)), "mixture must be without repeated parts"),
    ],
)
def test_bad_configuration_names_field_and_value(field: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{field: value})
