"""The configs that are shipped: what they say is the paper's, and every step of theirs is told."""

from pathlib import Path

import pytest

from flows.config.input_files import data_folders
from flows.config.load import load
from flows.config.study import StudyConfig
from flows.study.explain import Explanation
from flows.study.graph import graph_of
from infra.store.store import Store
from model.checkpoint.config_json import config_to_json
from model.files import CONFIG, DIGEST
from model.train.optimizer import lr_schedules
from pipelines.sources.registry import BENCHMARKS

CONFIGS = Path(__file__).parents[3] / "configs"


def shipped(name: str, *words: str) -> StudyConfig:
    return load(CONFIGS / f"{name}.yaml", words)


def given(name: str, folder: Path) -> StudyConfig:
    """A shipped study, and empty folders and small files in place of what it is given."""
    study = shipped(name)
    for part in data_folders(study):
        (folder / "data" / part).mkdir(parents=True)
    start = folder / "start"
    start.mkdir()
    (start / CONFIG).write_text(config_to_json(study.model))
    (start / DIGEST).write_text("0\n")
    for file in ("pieces", "codec"):
        (folder / file).write_bytes(b"bytes")
    return shipped(
        name,
        f"data_root={folder}/data",
        f"start={start}",
        f"tokenizer.path={folder}/pieces",
        f"mask_codec.path={folder}/codec",
    )


def test_the_papers_stages_are_as_long_as_it_says():
    study = shipped("paper_448")
    assert study.stage1 is not None
    assert study.stage2 is not None
    assert study.intermediary == study.stage1
    for train, samples in ((study.stage1, 100e6), (study.stage2.train, 10e6)):
        assert train.batch_size == 8192
        assert abs(train.total_steps * train.batch_size - samples) < 8192
        assert (train.schedule, train.peak_lr, train.b2) == ("rsqrt", 1e-5, 0.999)
    assert (study.stage1.text_len, study.stage2.train.text_len) == (128, 512)
    vision, text = study.model.vision, study.model.text
    assert (vision.depth, vision.width, text.depth, text.width) == (27, 1152, 26, 2304)
    assert (study.model.attn_softcap, study.model.final_softcap) == (50, 30)
    transfer = study.model_of("parcel", transfer=True)
    assert (transfer.attn_softcap, transfer.final_softcap) == (0, 0)


def test_stage_2_goes_on_with_the_rate_that_the_intermediary_ended_at():
    study = shipped("paper_448")
    assert study.intermediary is not None
    assert study.stage2 is not None
    before, after = lr_schedules(study.intermediary), lr_schedules(study.stage2.train)
    assert after[-1, 0] == pytest.approx(before[-1, -1], rel=1e-4)
    slow, usual = before
    assert slow[1200] == pytest.approx(1200 / (0.2 * 12207), rel=1e-3)
    assert usual[1200] > 0.9


def test_the_papers_rows_and_budgets_are_those_of_its_tables():
    low, high = shipped("paper_448").resolutions
    assert set(low.transfers) == set(BENCHMARKS) - {"pope"}
    assert sum(row.main for row in low.rows.values()) == 27
    listed = {n for n, b in BENCHMARKS.items() if any(448 in row.resolutions for row in b.rows)}
    assert set(high.transfers) == listed
    assert (low.budgets, high.budgets) == ((16, 64, 256), (64, 256, 1024))
    assert (len(low.seeds), len(high.seeds)) == (3, 1)
    assert high.seeds[0] in low.seeds
    # Every elastic method draws from all that it serves.
    assert low.train_budgets == high.train_budgets == {}


def test_the_paper_at_448_px_reuses_all_of_the_paper_at_224_px():
    low, both = shipped("paper_224"), shipped("paper_448").resolutions[0]
    for field in ("stage1", "intermediary", "sources", "prepare", "hygiene", "transfers", "model"):
        assert getattr(low, field) == getattr(both, field)


def test_the_labs_mixture_is_the_public_one_without_videos():
    study, public = shipped("pali3b_8gpu"), shipped("public_mixture")
    assert study.intermediary is not None
    assert public.intermediary is not None
    stills = [(s.reader, s.split) for s in public.sources if s.reader != "activitynet_cap"]
    assert [(s.reader, s.split) for s in study.sources] == stills
    parts = [part for part in public.intermediary.mixture if part[0] != "activitynet_cap"]
    assert list(study.intermediary.mixture) == parts
    assert study.intermediary.batch_size % study.compute.gpus_per_cell == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("paper_224", ["stage1 vanilla", "intermediary parcel"]),
        ("paper_448", ["stage1 vanilla", "intermediary parcel", "stage2 parcel"]),
        ("pali3b_8gpu", ["start", "intermediary vanilla", "intermediary parcel"]),
    ],
)
def test_every_step_is_told_before_anything_runs(name: str, stages: list[str], tmp_path: Path):
    study = given(name, tmp_path)
    graph = graph_of(study)
    explanation = Explanation(Store(tmp_path / "store").snapshot(), graph)
    lines = list(explanation.lines(study.keep))
    told = {line[10:].partition("  ")[0] for line in lines if line.startswith("new ")}
    assert told == {node.name for node in graph.nodes}
    assert set(stages) <= told
    transfers = sum(
        len(view.fine_tunings) * len(study.methods) * len(view.seeds) for view in study.resolutions
    )
    assert sum(name.startswith("transfer ") for name in told) == transfers
    assert any(name.startswith("stage1") for name in told) == (study.stage1 is not None)
