"""Tests of a plan's estimates for data not prepared yet: sampled once, stored, and reused."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from flows.graph.explain import Explanation
from flows.plan.prepared import MissingDataset, estimate_text, plan_data
from flows.run.approval import approval_text
from flows.steps import worker
from flows.steps.step_lookup import look_up_step
from flows.study.load import load
from infra.source_code import checkout
from infra.store.store import Artifact, Store
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus
from tests.flows.graphs import checked_graph

WORDS = ["transfers={chartqa: {eval_splits: [test], train: {batch_size: 8, total_steps: 4}}}"]
STEPS = {"prepare mixture/web", "prepare chartqa/train", "prepare chartqa/eval"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus")
    sizes = CorpusConfig(num_web=60, num_charts=20, num_scenes=0, num_videos=0, num_defects=0)
    render_corpus(sizes, str(out))
    time.sleep(2.1)  # Files that are younger than the clock's tick are new each time.
    return out


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def study(corpus: Path, *words: str):
    return load(overrides=[f"data_root={corpus}", *WORDS, *words])


def rows(config, store: Store, count: int | None = None) -> dict[str, MissingDataset]:
    return {row.name: row for row in plan_data(config, store, count=count).missing}


def prepare(config, store: Store, *names: str) -> None:
    """Prepares some datasets of a study, as a run does."""
    made: dict[str, Artifact] = {}
    source = store.save_source(checkout().files)
    for step in checked_graph(config).steps:
        if step.name in {*names, *(name.replace("prepare", "files") for name in names)}:
            inputs = {role: made[read.name] for role, read in step.inputs.items()}
            recipe = look_up_step(store, step, inputs, frozenset(), source=source).recipe
            *_, end = worker.make(store.uri, [recipe], {})
            assert isinstance(end, worker.StepOutcome)
            assert not end.error
            made[step.name] = store.get(recipe.key)


@pytest.mark.slow
def test_a_sample_is_taken_once_and_found_until_files_change(
    drawn: Path, store: Store, tmp_path: Path
):
    corpus = tmp_path / "corpus"
    shutil.copytree(drawn, corpus)  # With the times of its files.
    config, asked = study(corpus), []
    first = plan_data(config, store, count=20, on_sample=asked.append)
    assert set(asked) == STEPS == {row.name for row in first.missing}
    assert plan_data(config, store).missing == first.missing
    assert plan_data(config, store, count=15, on_sample=asked.append).missing == first.missing
    assert len(asked) == 3
    plan_data(config, store, count=30, on_sample=asked.append)
    assert len(asked) == 6
    (corpus / "web/00000.tar").touch()
    assert not rows(config, store)["prepare mixture/web"].measured
    assert rows(config, store)["prepare chartqa/train"].measured
    other = rows(study(corpus, "prepare.encoding=png"), store)
    assert not any(row.measured for row in other.values())


def test_what_was_sampled_is_told_in_rows_lines_and_bytes(drawn: Path, store: Store):
    config = study(drawn)
    found = plan_data(config, store, count=20)
    charts = next(row for row in found.missing if row.name == "prepare chartqa/train")
    assert charts.measured.startswith("sample of 2")
    assert charts.core_hours and charts.hours  # noqa: PT018
    assert charts.workers == 2
    assert charts.hours == pytest.approx([end / 2 for end in charts.core_hours])
    assert charts.inputs and charts.records  # noqa: PT018
    assert charts.inputs[0] == charts.inputs[1] >= charts.records[1]
    data, measured, *_, storage = found.lines
    assert data == "data: 0 of 3 datasets are prepared"
    assert re.match("preparing .*3 .*sampled takes ", measured)
    assert " core-hours of " in measured
    assert "dataset" not in storage.partition("not counted")[2]
    total = sum(found.expected.values())
    assert f"dataset {total / 1e6:.1f} MB" in storage


def test_datasets_of_a_runners_own_workers_have_core_hours_alone(drawn: Path, store: Store):
    elsewhere = "prepare.runner_options=[--environment_type=EXTERNAL]"
    for words in (["prepare.runner=FlinkRunner"], [elsewhere]):
        row = rows(study(drawn, *words), store, count=20)["prepare mixture/web"]
        assert row.core_hours
        assert row.hours is row.workers is None


@pytest.mark.slow
def test_what_is_prepared_is_not_sampled_and_tells_of_others_of_its_inputs(
    drawn: Path, store: Store
):
    config, asked = study(drawn), []
    prepare(config, store, "prepare mixture/web")
    found = plan_data(config, store, count=10, on_sample=asked.append)
    assert set(asked) == STEPS - {"prepare mixture/web"}
    assert found.lines[0].startswith("data: 1 of 3 datasets are prepared, ")
    other = study(drawn, "prepare.encoding=png")
    row = rows(other, store)["prepare mixture/web"]
    (known,) = store.artifacts("dataset")
    assert row.measured == f"as {known.key[:16]} took"
    assert row.inputs == (known.manifest.counts["inputs"],) * 2
    assert row.hours == pytest.approx([known.manifest.seconds / 3600] * 2)
    assert row.core_hours is None
    limited = study(drawn, "prepare.limit=10")
    assert not rows(limited, store)["prepare mixture/web"].measured


@pytest.mark.slow
def test_a_dataset_of_other_files_is_not_prepared_and_tells_nothing(
    drawn: Path, store: Store, tmp_path: Path
):
    prepare(study(drawn), store, "prepare mixture/web")
    larger = tmp_path / "larger"
    shutil.copytree(drawn, larger)
    shutil.copyfile(larger / "web/00000.tar", larger / "web/00099.tar")
    time.sleep(2.1)
    for words in ((), ("prepare.encoding=png",)):
        found = plan_data(study(larger, *words), store)
        assert found.lines[0] == "data: 0 of 3 datasets are prepared"
        assert found.records == {}
        row = next(row for row in found.missing if row.name == "prepare mixture/web")
        assert not row.measured
        assert row.inputs is None


def _processor_seconds() -> float:
    """Returns the processor time of this process and of those that it waited for [s]."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.mark.deep
def test_sampled_processor_time_is_that_of_preparing(drawn: Path, tmp_path: Path, store: Store):
    render_corpus(CorpusConfig(num_web=800, num_videos=0), str(tmp_path / "corpus"))
    config = study(tmp_path / "corpus")
    row = rows(config, store, count=100)["prepare mixture/web"]
    prepare(study(drawn), store, "prepare mixture/web")  # Imports Beam.
    began = _processor_seconds()
    prepare(config, store, "prepare mixture/web")
    took = (_processor_seconds() - began) / 3600
    assert row.core_hours
    assert sum(row.core_hours) / 2 / 3 < took < sum(row.core_hours) / 2 * 3
    came = max(int(found.manifest.counts["records"]) for found in store.artifacts("dataset"))
    assert row.records
    assert sum(row.records) / 2 == pytest.approx(came, rel=0.1)


def test_a_sample_that_would_fail_says_so(drawn: Path, store: Store, tmp_path: Path):
    corpus = tmp_path / "corpus"
    shutil.copytree(drawn, corpus)
    for picture in (corpus / "chartqa").rglob("*.png"):
        picture.write_bytes(b"")
    found = plan_data(study(corpus), store, count=10)
    row = next(row for row in found.missing if row.name == "prepare chartqa/train")
    assert row.rejected == 1.0
    assert row.records == (0, 0)
    told = "prepare chartqa/train would fail: its sample of "
    assert any(
        line.startswith(told) and "least 100%" in line and line.endswith("max_reject_rate=5%")
        for line in found.lines
    )


def test_one_that_cannot_be_read_leaves_the_others(drawn: Path, store: Store, tmp_path: Path):
    corpus = tmp_path / "corpus"
    shutil.copytree(drawn, corpus)
    for file in (corpus / "chartqa").rglob("test*.json"):
        file.write_text("{")
    found = plan_data(study(corpus), store, count=10)
    measured = {row.name for row in found.missing if row.measured}
    assert measured == STEPS - {"prepare chartqa/eval"}
    (line,) = (line for line in found.lines if "not known (prepare chartqa/eval)" in line)
    assert "is not JSON" in line


def test_what_is_not_known_says_how_it_would_be(drawn: Path, store: Store):
    told = plan_data(study(drawn), store).lines[1]
    assert re.match(r".*preparing 3 .*\(prepare mixture/web, ", told)
    assert told.endswith(": parcel plan --sample 200 measures it")
    told = plan_data(load(overrides=WORDS), store, count=10).lines[1]
    assert "corpus" in told.rpartition(": ")[2]


def test_the_page_of_a_run_that_waits_has_what_was_sampled(drawn: Path, store: Store):
    config = study(
        drawn, "compute.topology=h100:8", "stage1.batch_size=8", "intermediary.batch_size=8"
    )
    plan_data(config, store, count=10)
    page = approval_text(Explanation(store, checked_graph(config)))
    assert "| prepare chartqa/train | " in page
    assert "| sample of 1" in page
    assert re.search("- preparing .*3 .*sampled takes ", page)
    assert ", dataset " in page


def test_the_command_samples_and_tells_it_in_text_and_json(parcel, drawn: Path, store: Store):
    words = ["plan", f"data_root={drawn}", *WORDS, "--topology", "h100:8", "--store", store.uri]
    words += ["stage1.batch_size=8", "intermediary.batch_size=8"]
    done = parcel(*words, "--sample", 10)
    assert done.code == 0
    assert re.search("sample .*prepare mixture/web", done.err)
    assert "sample of 1" in done.out
    told = json.loads(parcel(*words, "--json").out)["datasets"]
    assert {row["name"] for row in told} == STEPS
    for row in told:
        low, high = row["core_hours"]
        assert 0 < low <= high
        assert row["measured"].startswith("sample of 1")


def test_a_wrong_request_is_one_line(parcel, drawn: Path, store: Store):
    words = ["plan", *WORDS, "--topology", "h100:8", "--store", store.uri]
    done = parcel(*words, f"data_root={drawn}", "--sample", 3)
    assert done.code == 2
    assert "'--sample'" in done.err
    assert "10" in done.err
    assert len(done.err.splitlines()) == 1
    done = parcel(*words, "data_root=/nowhere", "--sample", 20)
    assert done.code == 2
    assert re.fullmatch("parcel: data_root .*/nowhere.*\n", done.err)
    done = parcel("plan", f"data_root={drawn}", *WORDS, "--sample", 20, "--store", store.uri)
    assert done.code == 2
    assert done.err.startswith("parcel: compute.topology ")
    assert not (store.state / "samples").exists()


def test_ranges_have_three_digits_that_count():
    assert estimate_text((0.0012345, 0.0023456)) == "0.00123-0.00235"
    assert estimate_text((12, 12)) == "12"
    assert estimate_text((0, 0.00002)) == "0-<0.0001"
    assert estimate_text((1234.4, 99999)) == "1,234-99,999"
