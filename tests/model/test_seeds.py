"""Tests of the seeds: what each controls, and that it controls nothing else."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from model import vlm
from model.connector import budgets
from model.data.config import BatchConfig
from model.data.loader import Draw, Examples
from model.data.sampling import words_generator
from model.seeds import PURPOSES, Purpose, Seeds, seed_of
from model.train.config import TrainConfig
from model.train.step import dropout_key
from tests.model.tiny_data import color_record, write_dataset
from tests.model.tiny_model import tiny_model

SEEDS = Seeds.of(11)
STEPS = range(6)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [
        dataclasses.replace(color_record(i), suffixes=("red", "green", "blue")) for i in range(7)
    ]
    return write_dataset(tmp_path_factory.mktemp("data") / "d", {"color": records})


def drawn(data: str, seeds: Seeds) -> dict[Purpose, Any]:
    """Returns all that a stage draws, by purpose."""
    model, examples = tiny_model("parcel"), Examples(data, BatchConfig(batch_size=5), seeds)
    draws = [draw for step in STEPS for draw in examples.draws(step)]
    # The texts of one record, at its visits: which record comes where is the order's affair.
    record = examples.parts["color"][0]
    texts = [
        (
            examples.texts(Draw(part="color", position=0, visit=n, number=n), record),
            words_generator(seeds.texts, n).permutation(9).tolist(),
        )
        for n in range(30)
    ]
    params = jax.tree.leaves(vlm.init_params(model, seeds.init))
    train = TrainConfig(dropout=0.1)
    return {
        "init": [np.asarray(leaf).tobytes() for leaf in params],
        "order": [(draw.part, draw.position) for draw in draws],
        "texts": texts,
        "budget": [budgets.draw_budget(model, seeds.budget, step) for step in STEPS],
        "dropout": [tuple(dropout_key(train, seeds.dropout, step)) for step in STEPS],
    }


@pytest.mark.slow
@pytest.mark.parametrize("purpose", PURPOSES)
def test_another_seed_of_a_purpose_changes_what_is_drawn_for_it_and_nothing_else(
    data: str, purpose: Purpose
):
    before = drawn(data, SEEDS)
    assert before == drawn(data, Seeds.of(11))  # Equal seeds: equal bits.
    after = drawn(data, dataclasses.replace(SEEDS, **{purpose: seed_of(12, purpose)}))
    assert [name for name in PURPOSES if before[name] != after[name]] == [purpose]


def test_streams_of_neighbouring_seeds_and_of_purposes_are_unlike():
    seeds = np.array([[seed_of(s, p) for p in PURPOSES] for s in range(2000)], np.uint32)
    assert len(np.unique(seeds)) == seeds.size
    bits = np.unpackbits(seeds.view(np.uint8), axis=1).reshape(2000, len(PURPOSES), 32)
    assert abs(bits.mean() - 0.5) < 0.005
    # Half of the bits differ between two seeds that have nothing to do with each other.
    for one, other in ((bits[1:], bits[:-1]), (bits[:, 1:], bits[:, :-1])):
        assert abs((one != other).mean() - 0.5) < 0.005


def test_the_seeds_are_what_they_were():
    assert (
        Seeds(
            init=213907198, order=1982228470, texts=504589216, budget=3118949013, dropout=906654279
        )
        == SEEDS
    )


def test_large_seeds_reach_jax_whole():
    keys = {tuple(jax.random.key_data(jax.random.key(s)).tolist()) for s in (2**32 - 1, 2**31, 0)}
    assert len(keys) == 3
