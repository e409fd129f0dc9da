"""From a sample up: the steps that saw it are those of the loader, the cells those above them."""

import dataclasses
import re

import pytest

from flows.lineage.sample_trace import trace_sample
from flows.lookup.target import LookupTarget
from infra.errors import ConfigError
from infra.store.store import Artifact, Store
from model.data.loader import samples_of_step
from model.seeds import Seeds
from tests.flows.lineage.conftest import BATCHES, STEPS, made


def saw(store: Store, training: Artifact, ids: set[str]) -> list[int]:
    """Returns the steps of a training that hold one of these records, read step by step."""
    inputs = sorted(training.manifest.inputs.items())
    data = [store.get(e.key).uri for role, e in inputs if role.startswith("data/")]
    seeds = Seeds.of(training.manifest.seed or 0)
    return [
        step
        for step in range(STEPS)
        for record_id, *_ in samples_of_step(data, BATCHES, seeds, step)
        if record_id in ids
    ]


@pytest.mark.slow
def test_steps_are_those_whose_batches_hold_the_sample(table: tuple[Store, LookupTarget]):
    store, what = table
    trainings = {a.manifest.name: a for a in store.artifacts("checkpoint")}
    hits = 0
    for number in (3, 11, 18):
        found = trace_sample(store, what, f"{number:02d}")
        assert {place.id for place in found.places} == {f"{number:02d}", f"{number:02d}#ocr"}
        steps = {sight.training.name: list(sight.steps) for sight in found.training_uses}
        for name, training in trainings.items():
            expected = saw(store, training, {f"{number:02d}", f"{number:02d}#ocr"})
            assert steps.get(name, []) == expected
            hits += len(expected)
        of_stage1 = "stage1" in steps
        assert len(found.cells.get("trained on it", ())) == (
            2 if of_stage1 else sum(name in steps for name in ("transfer 5", "transfer 6"))
        )
        in_words = 2 if number < 12 else 0
        assert len(found.cells.get("with its words in the tokenizer", ())) == in_words
        assert "scored on it" not in found.cells
    assert hits > 0


def test_one_record_is_told_with_its_place_its_steps_and_its_cells(
    table: tuple[Store, LookupTarget],
):
    store, what = table
    found = trace_sample(store, what, "color/001")
    (split,) = [a for a in store.artifacts("dataset") if a.manifest.name == "prepare eval"]
    origin, seen, scored = found.lines()
    place = rf"color/001 .* 1 of color in prepare eval {split.key} ← color\.png sha256:{'0' * 64}"
    assert re.fullmatch(place, origin)
    assert seen == "seen by no training"
    assert re.fullmatch("2 of 2 cells .*: x/parcel/16/5, x/parcel/16/6", scored)
    (record,) = trace_sample(store, what, "03#ocr").places
    assert (record.id, record.position) == ("03#ocr", 7)


def test_a_training_with_packed_texts_says_so(table: tuple[Store, LookupTarget]):
    store, what = table
    samples = (trace_sample(store, what, f"{number:02d}") for number in range(20))
    found = next(found for found in samples if found.training_uses)
    use = found.training_uses[0]
    assert use.pack == 0
    assert not any("packed" in line for line in found.lines())
    packed = dataclasses.replace(found, training_uses=(dataclasses.replace(use, pack=51),))
    (line,) = [line for line in packed.lines() if line.startswith("seen by ")]
    assert line.endswith(f"{use.steps[-1]}; texts packed where they fitted, 51 places an example")


def test_a_guess_rests_on_the_records_that_it_was_made_from(table: tuple[Store, LookupTarget]):
    store, _ = table
    data = {a.manifest.name: a for a in store.artifacts("dataset")}
    read = {"train": data["prepare web"], "eval": data["prepare eval"]}
    results = made(
        store, "results", "guesses", {"chance/x": made(store, "chance", "chance x", read)}
    )
    target = LookupTarget(name="guesses", artifacts=(results,))
    for sample in ("color/001", "03"):
        assert [*trace_sample(store, target, sample).lines()][-1].startswith("chance/x ")


def test_an_unknown_sample_names_the_datasets(table: tuple[Store, LookupTarget]):
    with pytest.raises(ConfigError, match=r"got '99', which none .* prepare eval, prepare more"):
        trace_sample(*table, "99")
