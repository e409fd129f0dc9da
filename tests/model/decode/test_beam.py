"""Beam search against the same rule in plain Python, without a cache."""

import jax.numpy as jnp
import numpy as np
import pytest

from model.decode import beam
from model.decode.beam import Hypotheses, grow_hypotheses
from model.decode.config import Decoding
from model.decode.decoding import decode_tokens, draw_key
from model.decode.generate import generate
from tests.model.decode.test_generate import make_case
from tests.model.eval import recomputed
from tests.model.eval.recomputed import NUM_NEW, Case
from tests.slices import day_slice


def _search(
    case: Case,
    num_beams: int,
    stop: int,
    *,
    real: np.ndarray | None = None,
    max_new_tokens: int = NUM_NEW,
) -> np.ndarray:
    structure, params, prompt, slots = case.inputs
    options = {"num_beams": num_beams, "stop": stop, "max_new_tokens": max_new_tokens}
    return np.asarray(
        beam.beam_search(structure, params, prompt._replace(real=real), slots, **options)
    )


def _stop(case: Case) -> int:
    """Returns a token that ends some hypotheses soon."""
    return int(recomputed.greedy(case)[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_images", "num_beams"),
    day_slice(
        [("vanilla", 1, 2), ("m3", 2, 3), ("mqt", 4, 2), ("parcel", 4, 3), ("parcel", 1, 1)],
        [("vanilla", 1, 2), ("parcel", 4, 3)],
    ),
)
def test_answers_equal_those_of_the_rule(kind: str, num_images: int, num_beams: int):
    case = make_case(kind, num_images)
    # A token of the greedy path ends answers early; a rarer one makes the length cap end them.
    for stop in (_stop(case), 1):
        expected = recomputed.beams(case, num_beams, stop)
        np.testing.assert_array_equal(_search(case, num_beams, stop), expected)
        assert all(stop in row for row in expected)


@pytest.mark.slow
def test_scanned_layers_give_the_same_answers():
    case = make_case("parcel", scan_layers=True)
    stop = _stop(case)
    np.testing.assert_array_equal(_search(case, 2, stop), recomputed.beams(case, 2, stop))


@pytest.mark.slow
def test_one_beam_is_greedy():
    case = make_case("m3")
    options = {"max_new_tokens": NUM_NEW, "stop": _stop(case)}
    one = decode_tokens(*case.inputs, **options, decoding=Decoding(beams=1))
    np.testing.assert_array_equal(one, generate(*case.inputs, **options))


@pytest.mark.slow
def test_rows_that_fill_the_batch_are_padding_and_change_nothing():
    case = make_case("m3")
    stop = _stop(case)
    whole, filled = (
        _search(case, 2, stop),
        _search(case, 2, stop, real=np.array([True, False, True])),
    )
    np.testing.assert_array_equal(filled[[0, 2]], whole[[0, 2]])
    assert np.all(filled[1] == 0)


def _hypotheses(tokens: list, scores: list, best: list, best_score: float) -> Hypotheses:
    return Hypotheses(
        step=jnp.int32(1),
        tokens=jnp.array([tokens], jnp.int32),
        scores=jnp.array([scores], jnp.float32),
        best_tokens=jnp.array([best], jnp.int32),
        best_score=jnp.array([best_score], jnp.float32),
    )


def test_ties_go_to_the_older_the_first_and_the_lower():
    found = _hypotheses([[5, 0], [4, 0]], [-1.0, -1.0], [1, 0], -1.0 - np.log(6))
    flat = jnp.zeros((1, 2, 6))  # Every token is as likely: all sums are equal.
    longer, parents = grow_hypotheses(found, flat, 2, 1)
    assert longer.best_tokens.tolist() == [[1, 0]]  # Not [5, 1], which is as good.
    assert longer.tokens.tolist() == [[[5, 0], [5, 2]]]
    assert parents.tolist() == [[0, 0]]
    found = found._replace(best_score=found.best_score - 1)
    assert grow_hypotheses(found, flat, 2, 1)[0].best_tokens.tolist() == [[5, 1]]  # Not [4, 1].


def test_the_finished_hypothesis_is_the_likeliest_and_no_longer_one_gains_by_its_length():
    found = _hypotheses([[5, 0]], [-0.1], [1, 0], -3.0)
    logits = jnp.log(jnp.array([[[0.1, 0.4, 0.2, 0.1, 0.1, 0.1]]]))
    longer, _ = grow_hypotheses(found, logits, 2, 1)
    assert longer.best_tokens.tolist() == [[5, 1]]
    np.testing.assert_allclose(longer.best_score, [-0.1 + np.log(0.4)], rtol=1e-6)
    assert longer.tokens.tolist() == [[[5, 2], [5, 0]]]  # The stop token goes on nowhere.


def test_errors_name_the_range():
    case = make_case("m3")
    with pytest.raises(ValueError, match=r"num_beams .*1\.\.36 .*got 37"):
        _search(case, 37, 1, max_new_tokens=2)
    with pytest.raises(ValueError, match="beams must be at least 1"):
        Decoding(beams=0)
    with pytest.raises(ValueError, match=r"temperature must be 0 .*beams=2.*got 0\.5"):
        Decoding(beams=2, temperature=0.5)
    with pytest.raises(ValueError, match=r"top_p .*temperature above 0.*got 0\.5"):
        Decoding(top_p=0.5)


@pytest.mark.slow
def test_a_choice_of_decoding_is_what_it_names():
    case = make_case("m3")
    options = {"max_new_tokens": NUM_NEW, "stop": _stop(case)}

    def decoded(decoding: Decoding, number: int = 0) -> np.ndarray:
        key = draw_key(decoding, number)
        return np.asarray(decode_tokens(*case.inputs, key, **options, decoding=decoding))

    greedy = generate(*case.inputs, **options)
    np.testing.assert_array_equal(decoded(Decoding()), greedy)
    np.testing.assert_array_equal(decoded(Decoding(beams=2)), _search(case, 2, options["stop"]))
    drawn = decoded(Decoding(temperature=2.0, seed=5))
    np.testing.assert_array_equal(drawn, decoded(Decoding(temperature=2.0, seed=5)))
    assert not np.array_equal(drawn, decoded(Decoding(temperature=2.0, seed=6)))
    assert not np.array_equal(drawn, decoded(Decoding(temperature=2.0, seed=5), number=1))
