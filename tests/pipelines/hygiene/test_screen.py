"""Hygiene: what is reported, what is removed, and that no input is ever lost."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from perf.hygiene import crop, recolour
from pipelines.hygiene.__main__ import main
from pipelines.hygiene.matches import MATCHES
from pipelines.hygiene.screen import COUNTS, HygieneConfig, screen_dataset
from pipelines.records.dataset import REJECTS, Dataset
from tests.pipelines.hygiene.conftest import draw

RNG = np.random.default_rng(0)


@pytest.fixture
def training(write_dataset, drawn):
    """Two contaminated records, three duplicates, two records of one file, four clean ones."""
    return write_dataset(
        "train",
        {
            "a#1": ("a.jpg", [drawn(0)]),
            "a#2": ("a.jpg", [drawn(0)]),
            "b": ("b.jpg", [crop(drawn(1), RNG)]),
            "c": ("c.jpg@same", [drawn(2)]),
            "d": ("d.jpg@same", [drawn(2)]),
            "e#1": ("e.jpg", [recolour(drawn(0), RNG)]),
            "e#2": ("e.jpg", [recolour(drawn(0), RNG)]),
            "f": ("f.mp4", [drawn(10), drawn(11), drawn(12)]),
            "g": ("g.mp4", [drawn(10), drawn(13), drawn(14)]),
            "h": ("h.mp4", [drawn(12), drawn(11), drawn(15)]),
            "i": ("i.jpg", [drawn(20)]),
        },
        rejects=2,
    )


@pytest.fixture
def held_out(write_dataset, drawn):
    return write_dataset(
        "eval", {"q1": ("q1.png", [drawn(1)]), "q2": ("q2.mp4", [drawn(30), drawn(13)])}
    )


def rows(folder):
    return [json.loads(line) for line in (folder / MATCHES).read_text().splitlines()]


def test_matches_are_reported_and_nothing_is_lost(training, held_out, tmp_path):
    out = tmp_path / "out"
    counts = screen_dataset(
        str(training), HygieneConfig(), against={"bench": str(held_out)}, out=str(out)
    )
    found = {(r["kind"], r["id"], r["match"], r["exact"]) for r in rows(out)}
    assert found == {
        ("contamination", "b", "q1", False),
        ("contamination", "g", "q2", False),
        ("duplicate", "d", "c", True),
        ("duplicate", "e#1", "a#1", False),
        ("duplicate", "e#2", "a#1", False),
        ("duplicate", "h", "f", False),
    }
    assert {r["dataset"] for r in rows(out)} == {"bench", ""}
    assert counts == json.loads((out / COUNTS).read_text())
    assert (counts["contamination"], counts["duplicate"], counts["duplicate_exact"]) == (2, 4, 1)
    assert counts["removed"] == 0
    for path in training.iterdir():  # Reported only: the same bytes.
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_a_split_that_is_scored_on_is_named_before_one_that_is_trained_on(
    training, held_out, write_dataset, drawn, tmp_path
):
    tuned = write_dataset("tuned", {"t1": ("b.jpg", [drawn(1)]), "t2": ("i.jpg", [drawn(20)])})
    out = tmp_path / "out"
    against = {"bench/train": str(tuned), "bench/eval": str(held_out)}
    screen_dataset(str(training), HygieneConfig(duplicates="off"), against=against, out=str(out))
    found = {r["id"]: (r["dataset"], r["match"]) for r in rows(out)}
    # "b" is of the same file as "t1", and looks like "q1".
    assert found["b"] == ("bench/eval", "q1")
    assert found["i"] == ("bench/train", "t2")


def test_removed_records_are_rejects_with_the_id_of_the_match(training, held_out, tmp_path):
    out = tmp_path / "out"
    config = HygieneConfig(contamination="remove", duplicates="remove")
    screen_dataset(str(training), config, against={"bench": str(held_out)}, out=str(out))
    before, after = Dataset(training), Dataset(out)
    ids = [r.id for r in after.records()] + [r.id for r in after.rejects()]
    assert sorted(ids) == sorted(
        [r.id for r in before.records()] + [r.id for r in before.rejects()]
    )
    assert after.info.num_inputs == before.info.num_inputs == 13
    assert {r.id for r in after.records()} == {"a#1", "a#2", "c", "f", "i"}
    reasons = {r.id: r.reason for r in after.rejects() if r.stage == "hygiene"}
    assert reasons["b"].startswith("contamination: shows q1 of bench (likeness 0.")
    assert reasons["d"] == "duplicate: shows what c shows (same file)"
    assert next(r for r in after.rejects() if r.id == "d").source_sha256 == "same"


PICTURES = [Image.new("RGB", (30, 30)), *(draw(seed, side=64) for seed in range(4))]
RECORDS = st.dictionaries(
    st.integers(0, 99).map(str),
    st.tuples(
        st.sampled_from(["a.jpg", "b.jpg", "c.mp4@same", "d.mp4@same"]),
        st.lists(st.sampled_from(PICTURES), min_size=1, max_size=3),
    ),
    max_size=6,
)
ACTIONS = st.sampled_from(["off", "report", "remove"])


@pytest.mark.slow
@given(RECORDS, RECORDS, ACTIONS, ACTIONS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_input_ends_in_the_dataset_or_in_the_rejects(
    write_dataset, tmp_path_factory, records, held_out, contamination, duplicates
):
    folder = tmp_path_factory.mktemp("screened")
    before = Dataset(write_dataset(f"{folder.name}-train", records, rejects=1))
    evaluation = write_dataset(f"{folder.name}-eval", held_out)
    config = HygieneConfig(contamination=contamination, duplicates=duplicates)
    screen_dataset(
        before.place.uri, config, against={"e": str(evaluation)}, out=str(folder / "out")
    )
    after = Dataset(folder / "out")
    kept, lost = [r.id for r in after.records()], [r.id for r in after.rejects()]
    assert sorted(kept + lost) == sorted([*records, "lost0"])  # Neither in both nor in none.
    assert after.info.num_inputs == len(kept) + len(lost)
    if "remove" not in (contamination, duplicates):
        assert lost == ["lost0"]
    matched = {r["id"]: r["kind"] for r in rows(folder / "out")}
    assert set(lost) - {"lost0"} <= set(matched)


def test_each_kind_has_its_own_switch(training, held_out, tmp_path):
    config = HygieneConfig(contamination="remove", duplicates="off")
    out = tmp_path / "out"
    counts = screen_dataset(str(training), config, against={"bench": str(held_out)}, out=str(out))
    assert (counts["contamination"], counts.get("duplicate", 0), counts["removed"]) == (2, 0, 2)
    assert {r.id for r in Dataset(out).rejects()} == {"lost0", "lost1", "b", "g"}


def test_the_same_inputs_give_the_same_bytes(training, held_out, tmp_path):
    for name in "xy":
        config = HygieneConfig(duplicates="remove")
        screen_dataset(
            str(training), config, against={"b": str(held_out)}, out=str(tmp_path / name)
        )
    for path in (tmp_path / "x").iterdir():
        assert path.read_bytes() == (tmp_path / "y" / path.name).read_bytes()


def test_progress_reaches_the_total(training, held_out, tmp_path):
    seen = []
    screen_dataset(
        str(training),
        HygieneConfig(),
        against={"bench": str(held_out)},
        out=str(tmp_path / "out"),
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (13, 13)


@pytest.mark.parametrize(
    ("field", "value"), [("duplicates", "drop"), ("min_likeness", 0.0), ("candidates", 0)]
)
def test_wrong_config_names_the_field(field, value):
    with pytest.raises(ValueError, match=rf"{field} must .*{value}"):
        HygieneConfig(**{field: value})


def test_command_reports_and_refuses(training, held_out, tmp_path, capsys):
    words = [str(training), "--against", f"bench={held_out}", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "contamination 2, contamination_exact 0, duplicate 4" in capsys.readouterr().out
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("error: out must be an empty")
    assert main([*words[:-1], str(tmp_path / "b"), "--duplicates", "drop"]) == 2
    assert not (tmp_path / "b" / REJECTS).exists()
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "c")]) == 2
