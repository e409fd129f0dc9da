"""Decoding with a cache equals reading everything anew for each token."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from model import vlm
from model.decode import generate as module
from model.decode.config import SamplingParams
from model.decode.generate import choose_token, generate, prefill
from model.text.decoder import Decoder
from tests.model.eval import recomputed
from tests.model.eval.recomputed import NUM_NEW, Case
from tests.model.tiny_models import TEXT, init_params, tiny_config
from tests.slices import day_slice

SHAPES = {"vanilla": (256, 256), "m3": (16, 16), "mqt": (24, 18), "parcel": (22, 18)}
"""Connector -> (bucket, budget): where a bucket serves several budgets, one with masked slots."""


def make_case(kind: str, num_images: int = 2, **changes: typing.Any) -> Case:
    cfg = tiny_config(kind, **changes)
    return Case(cfg, init_params(cfg, 4), *SHAPES[kind], num_images=num_images)


def _generate(case: Case, real: np.ndarray | None = None, **options: typing.Any) -> np.ndarray:
    options = {"max_new_tokens": NUM_NEW, "stop": None, **options}
    structure, params, prompt, slots = case.inputs
    return np.asarray(generate(structure, params, prompt._replace(real=real), slots, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_images"),
    day_slice([("vanilla", 1), ("m3", 2), ("mqt", 5), ("parcel", 5)], [("m3", 2), ("parcel", 5)]),
    ids=["vanilla-image", "m3-pair", "mqt-video", "parcel-video"],
)
def test_cached_tokens_equal_recomputed_ones(kind: str, num_images: int):
    case = make_case(kind, num_images)
    np.testing.assert_array_equal(_generate(case), recomputed.greedy(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scanned", "window"),
    day_slice([(True, 6), (True, 0), (False, 6), (False, 0)], [(True, 6), (False, 0)]),
)
def test_layers_scanned_or_not_and_sliding_windows(scanned: bool, window: int):
    text = dataclasses.replace(TEXT, sliding_window=window)
    case = make_case("parcel", scan_layers=scanned, text=text)
    np.testing.assert_array_equal(_generate(case), recomputed.greedy(case))


@pytest.mark.slow
@pytest.mark.parametrize("kind", day_slice(["parcel", "mqt"], ["parcel"]))
def test_cached_logits_equal_recomputed_ones(kind: str):
    case = make_case(kind, 3)
    expected_tokens = recomputed.greedy(case)

    @jax.jit
    def cached(tokens: jax.Array) -> list[jax.Array]:
        model = vlm.merge(vlm.structure(case.cfg), case.params)
        start = prefill(model, case.prompt, case.slots)
        layers, batch, _, *head = start.past.keys.shape
        empty = jnp.zeros((layers, batch, NUM_NEW, *head))
        done, found = jnp.zeros(batch, bool), [start.logits]
        state = module._State(jnp.int32(0), start.logits, tokens, done, empty, empty)
        for step in range(NUM_NEW - 1):
            state = module._extend(model, start, state, tokens[:, step])
            found.append(state.logits)
        return found

    for step, logits in enumerate(cached(expected_tokens)):
        # A whole model has a tower's tolerance: an entry near zero is a difference of larger ones.
        expected = case.logits(expected_tokens[:, :step])
        assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_stops_and_pads_after_the_stop_token():
    case = make_case("m3")
    free = _generate(case)
    stop = int(free[0, 1])
    stopped = _generate(case, stop=stop)
    for row, whole in zip(stopped, free, strict=True):
        end = list(whole).index(stop) + 1 if stop in whole else NUM_NEW
        np.testing.assert_array_equal(row[:end], whole[:end])
        assert np.all(row[end:] == 0)
    filler = _generate(case, real=np.array([True, False, True]))
    np.testing.assert_array_equal(filler[[0, 2]], free[[0, 2]])
    assert np.all(filler[1] == 0)


@pytest.mark.slow
def test_ends_once_every_real_row_has_stopped(monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    embed = Decoder.embed

    def counted(self: Decoder, tokens: jax.Array, **more: typing.Any) -> jax.Array:
        if tokens.shape[1] == 1:  # Not of the prompt.
            jax.debug.callback(lambda token: read.append(int(token)), tokens[0, 0])
        return embed(self, tokens, **more)

    case = make_case("m3")
    free = _generate(case)
    monkeypatch.setattr(Decoder, "embed", counted)
    # Another M is another program, traced with the counter inside.
    stopped = _generate(case, max_new_tokens=40, stop=int(free[0, 1]), real=np.arange(3) < 1)
    jax.effects_barrier()
    end = list(free[0]).index(free[0, 1])
    assert read == list(free[0, :end])
    np.testing.assert_array_equal(stopped[0, : end + 1], free[0, : end + 1])


@pytest.mark.slow
def test_budgets_of_a_bucket_share_a_program():
    case = make_case("parcel")
    case = dataclasses.replace(case, lengths=(2, 4, 6))
    _generate(case)
    before = generate._cache_size()
    counted = [dataclasses.replace(case, budget=b) for b in (16, 18, 20, 22)]
    answers = [_generate(one, max_new_tokens=9) for one in counted]
    assert generate._cache_size() == before + 1
    assert len({answer.tobytes() for answer in answers}) > 1


def test_nucleus_draws_only_the_likeliest_tokens():
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))
    sampling = SamplingParams(temperature=1.0, top_p=0.7)
    drawn = {int(choose_token(logits, sampling, jax.random.key(i))[0]) for i in range(40)}
    assert drawn == {0, 1}
    with pytest.raises(ValueError, match=r"top_p must be in \(0, 1\], got 0"):
        SamplingParams(top_p=0)


def test_temperature_draws_as_often_as_the_scaled_logits_say():
    logits = jnp.tile(jnp.log(jnp.array([[0.6, 0.3, 0.1]])), (20_000, 1))
    drawn = np.bincount(
        choose_token(logits, SamplingParams(temperature=2.0), jax.random.key(3)), minlength=3
    )
    roots = np.sqrt([0.6, 0.3, 0.1])
    assert_allclose(drawn / drawn.sum(), roots / roots.sum(), atol=0.02)


def test_a_seed_draws_the_same_tokens_again():
    case, draw = make_case("m3"), SamplingParams(temperature=1.5)
    one = _generate(case, sampling=draw, key=jax.random.key(1))
    np.testing.assert_array_equal(one, _generate(case, sampling=draw, key=jax.random.key(1)))
    assert not np.array_equal(one, _generate(case, sampling=draw, key=jax.random.key(2)))
    with pytest.raises(ValueError, match=r"key .*temperature 1\.5"):
        _generate(case, sampling=draw)
