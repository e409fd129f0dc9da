"""A report made from artifacts of a store, and `parcel results RUN --mixed`."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from flows.lookup.results import show_results
from flows.lookup.runs import end_run_record
from flows.report.cells import CHANCE, SCREENED, CellKey, Plan
from flows.report.gather import gather_report
from flows.report.render import render_report
from flows.steps.kind import StepContext
from flows.steps.kinds import results
from infra.errors import ConfigError
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model.eval.items_file import write_items
from pipelines.hygiene.matches import CONTAMINATION, DUPLICATE, MATCHES, Match

PLAN = Plan(methods=("vanilla", "parcel"), benchmarks=("chartqa",), budgets=(256,), seeds=(1, 2, 3))
ITEMS = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
"""Id of a question -> its picture."""
QUESTIONS = {"a1": "How many bars?", "a2": "Is it red?", "b1": "how many lines?", "c1": "Is it on?"}


def commit(
    store: Store,
    recipe: Recipe,
    files: Mapping[str, str],
    accelerator: str,
    items: Sequence[Mapping[str, Any]] = (),
    counts: Mapping[str, Any] = MappingProxyType({}),
) -> Artifact:
    attempt = Attempt(store, recipe)
    attempt.counts = dict(counts)
    for name, text in files.items():
        (attempt.path / name).write_text(text)
    if items:
        write_items(attempt.path, items)
    packages = {"jax": "0.10.2", "prefect": "3.8.8"}
    hardware = {"accelerator": accelerator, "cpu": "old"}
    return attempt.commit({"packages": packages, "hardware": hardware})


def answers(right: str) -> list[dict[str, Any]]:
    """Items of which some are right: "1011"."""
    rows = zip(ITEMS.items(), right, strict=True)
    return [
        {
            "id": key,
            "source_sha256": source,
            "score": float(one),
            "prefix": f"answer en {QUESTIONS[key]}",
        }
        for (key, source), one in rows
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def study(store: Store, *, odd_one: str = "cpu", cast_one: str = "") -> dict[str, Artifact]:
    """Returns the inputs of a report; the last seed of parcel was trained on `odd_one`.

    The predictions of `cast_one`, "parcel 1", were decoded from a cast of the checkpoint.
    """
    data = commit(store, Recipe(kind="dataset", name="eval"), {"x": "x"}, "")
    found = {}
    right = {"vanilla": ("1111", "1110", "1111"), "parcel": ("1011", "0011", "1011")}
    for method, texts in right.items():
        for seed, text in zip(PLAN.seeds, texts, strict=True):
            name = f"{method} {seed}"
            kind = odd_one if name == "parcel 3" else "cpu"
            recipe = Recipe(kind="checkpoint", name=name, config={"method": method}, seed=seed)
            trained = commit(store, recipe, {"p": name}, kind)
            counts: dict[str, Any] = {}
            if name == cast_one:
                # A cast knows no accelerator: nothing is computed on one.
                recipe = Recipe(kind="cast", name=name, inputs={"checkpoint": trained.as_input})
                trained, counts = commit(store, recipe, {"p": name}, ""), {"precision": "bfloat16"}
            recipe = Recipe(
                kind="predictions",
                name=name,
                inputs={"checkpoint": trained.as_input, "data": data.as_input},
                config={"decode": {"text_len": 8, "batch_size": seed}},
            )
            answered = commit(store, recipe, {"p": name}, "cpu", counts=counts)
            recipe = Recipe(
                kind="scores",
                name=name,
                inputs={"predictions": answered.as_input, "data": data.as_input},
            )
            score = {"metric": "relaxed_accuracy", "score": 100 * text.count("1") / 4}
            files = {"score.json": json.dumps(score)}
            cell = CellKey(benchmark="chartqa", method=method, budget=256, seed=seed)
            found[str(cell)] = commit(store, recipe, files, "", answers(text))
    guesses = "".join(f"{json.dumps(row)}\n" for row in answers("0001"))
    files = {
        "predictions.jsonl": guesses,
        "chance.json": '{"score": 25.0, "without_question": 50.0}',
    }
    found[f"{CHANCE}chartqa"] = commit(store, Recipe(kind="chance", name="chance"), files, "")
    return found


def screened(store: Store, *matches: Match) -> Artifact:
    lines = "".join(f"{json.dumps(dataclasses.asdict(match))}\n" for match in matches)
    return commit(store, Recipe(kind="screened", name="screen web"), {MATCHES: lines}, "")


def match(kind: str, other: str, dataset: str) -> Match:
    return Match(id="t1", kind=kind, match=other, dataset=dataset, likeness=1.0, exact=True)


def results_of(store: Store, inputs: Mapping[str, Artifact], folder: Path) -> Artifact:
    """Makes the results artifact, and notes a run that came to it."""
    spec = results.ResultsSpec(plan=PLAN)
    read = {role: artifact.as_input for role, artifact in inputs.items()}
    attempt = Attempt(store, Recipe(kind="results", name="results", inputs=read, config=spec))
    scratch = folder / "scratch"
    work = StepContext(attempt.step, store, attempt.path, scratch)
    list(results.make(work))
    attempt.counts = work.counts
    made = attempt.commit({})
    end_run_record(
        store, {"name": "mine"}, "run", results=made.key, artifacts=[made.key], failed=[]
    )
    return made


def test_a_report_pairs_what_artifacts_say_by_seed_and_item(store: Store):
    report = gather_report(PLAN, (), study(store), store.get_cached)
    (section,) = report.sections
    assert (section.chance, section.metric) == (25.0, "relaxed_accuracy")
    cell = section.cell("parcel", 256)
    assert [s.score for s in cell.scores] == [75.0, 50.0, 75.0]
    assert cell.scores[0].items == {"a": (100.0, 0.0), "b": (100.0,), "c": (100.0,)}
    assert cell.error is not None
    (difference,) = section.comparisons
    assert (difference.mean, difference.over) == (pytest.approx(-25.0), "seeds and items")
    assert report.notes == ()


def test_a_cell_decoded_from_a_cast_is_marked_and_counts_by_its_training(store: Store):
    report = gather_report(PLAN, (), study(store, cast_one="parcel 1"), store.get_cached)
    (section,) = report.sections
    cell = section.cell("parcel", 256)
    assert [s.bfloat16 for s in cell.scores] == [True, False, False]
    assert report.notes == ()  # It is of the platform of the others.
    text = render_report(report, "md")
    (row,) = (line for line in text.splitlines() if line.startswith("| parcel | 66.7"))
    assert "66.7 ± 14.4 ‡" in row
    assert text.count("‡") == 2
    assert re.search("‡ .*parameters kept in bfloat16", text)
    (line,) = (
        r
        for r in csv.DictReader(io.StringIO(render_report(report, "csv")))
        if r["bfloat16"] == "True"
    )
    assert (line["method"], line["budget"]) == ("parcel", "256")


def test_a_table_of_float32_parameters_has_no_such_mark(store: Store):
    report = gather_report(PLAN, (), study(store), store.get_cached)
    assert "‡" not in render_report(report, "md")


def test_items_whose_picture_training_saw_are_left_out_beside_all(store: Store):
    hits = [match(CONTAMINATION, "a1", "chartqa/eval"), match(DUPLICATE, "b1", "")]
    inputs = {**study(store), f"{SCREENED}web": screened(store, *hits)}
    report = gather_report(PLAN, (), inputs, store.get_cached)
    (section,) = report.sections
    assert (section.seen, section.items) == (2, 4)  # Both questions about picture a.
    cell = section.cell("parcel", 256)
    assert (cell.mean, cell.unseen) == (pytest.approx(200 / 3), 100.0)
    text = render_report(report, "md")
    assert "| without 2 of 4 items | @256 |\n| :-- | --: |\n| vanilla | 83.3 |\n" in text
    assert "hygiene found in a training corpus" in text
    line = next(csv.DictReader(io.StringIO(render_report(report, "csv"))))
    assert line["unseen"] == "83.3333"
    (value,) = json.loads(render_report(report, "json"))["benchmarks"]
    assert (value["seen"], value["items"], value["cells"][1]["unseen"]) == (2, 4, 100.0)


def test_without_a_hit_there_is_nothing_to_leave_out(store: Store):
    other = screened(store, match(CONTAMINATION, "a1", "refcoco/eval"))
    report = gather_report(PLAN, (), {**study(store), f"{SCREENED}web": other}, store.get_cached)
    (section,) = report.sections
    assert (section.seen, section.cell("parcel", 256).unseen) == (0, None)
    assert "without" not in render_report(report, "md").split("Scores are")[0]


def test_a_table_of_an_earlier_version_names_the_cure(store: Store):
    inputs = study(store)
    cell = next(role for role in inputs if CellKey.of_role(role))
    earlier = store.get(inputs[cell].manifest.inputs["predictions"].key)
    with pytest.raises(ValueError, match=r"kind scores, got predictions-.*`parcel run`"):
        gather_report(PLAN, (), {**inputs, cell: earlier}, store.get_cached)


def test_an_artifact_without_any_score_is_no_report(store: Store):
    with pytest.raises(ValueError, match="no cell"):
        gather_report(PLAN, (), {}, store.get_cached)


def test_scores_of_another_accelerator_wait_for_mixed(store: Store, tmp_path: Path):
    made = results_of(store, study(store, odd_one="H200"), tmp_path)
    assert made.manifest.counts["cells"] == 5
    plain = show_results(store, "mine", "md", None)
    assert "62.5 ± 17.7 (2/3)" in plain
    assert "1 of 6 scores are left out" in plain
    assert "5 with jax 0.10.2 on cpu; 1 with jax 0.10.2 on H200, evaluated with jax" in plain
    assert "Left out: chartqa/parcel/256/3." in plain
    mixed = show_results(store, "mine", "md", None, mixed=True)
    assert "66.7 ± 14.4" in mixed
    assert "Scores of several platforms are mixed" in mixed
    header = (made.path / "comparisons.csv").read_text().splitlines()
    assert header[1].startswith("parcel,vanilla,256,chartqa,-25.0000,")
    with pytest.raises(ConfigError, match="--mixed needs RUN"):
        show_results(store, None, "md", Path("scores.csv"), mixed=True)


def test_scores_are_split_by_what_was_asked(store: Store, tmp_path: Path):
    results_of(store, study(store), tmp_path)
    lines = csv.DictReader(io.StringIO(show_results(store, "mine", "asked", None)))
    rows = {(row["asked"], row["method"]): row for row in lines}
    columns = "seeds", "pretrainings", "items", "score", "chance"
    told = {key: tuple(float(row[c]) for c in columns) for key, row in rows.items()}
    assert told == {  # Items in order: a1, a2, b1, c1; the guess is right on c1 alone.
        ("how many", "vanilla"): (3, 1, 2, 100.0, 0.0),
        ("how many", "parcel"): (3, 1, 2, pytest.approx(250 / 3, abs=1e-4), 0.0),
        ("yes or no", "vanilla"): (3, 1, 2, pytest.approx(250 / 3, abs=1e-4), 50.0),
        ("yes or no", "parcel"): (3, 1, 2, 50.0, 50.0),
    }
    own = rows["yes or no", "vanilla"]
    assert float(own["low"]) < float(own["score"]) < float(own["high"])


def test_methods_that_draw_other_budgets_are_a_note(store: Store):
    plan = dataclasses.replace(PLAN, draws={"m3": (16, 64), "parcel": ()})
    report = gather_report(plan, (), study(store), store.get_cached)
    assert report.sections[0].without_question == 50.0
    (note,) = report.notes
    assert "budgets" in note
    assert "m3 from 16, 64; parcel from all" in note
    assert note in render_report(report, "md")
