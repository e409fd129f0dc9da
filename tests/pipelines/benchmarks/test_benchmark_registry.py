"""Benchmarks: prompts as in big_vision's configs, the paper's rows, errors that list them."""

import dataclasses

import pytest

from pipelines.benchmarks.row import FinetuneRecipe
from pipelines.sources.paper_groups import MAIN_SUITE, paper_groups
from pipelines.sources.registry import BENCHMARKS, SOURCES, row_of_title


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("chartqa", "How {many}?"),
        ("docvqa", "How {many}?"),
        ("refcoco", "How {many}?"),
        ("msvd_qa", "answer en How {many}?"),
        ("nlvr", "answer en How {many}?"),
        ("cococap", "caption en"),
    ],
)
def test_prompt(name, prefix):
    assert BENCHMARKS[name].prefix("How {many}?") == prefix


def test_prompts_with_more_fields():
    asked = BENCHMARKS["ai2d"].prefix("{lang} {choices}?", choices="a \t {text}")
    assert asked == "answer en  {lang} {choices}? choose from: a \t {text}"
    assert BENCHMARKS["xm3600"].prefix(lang="quz") == "caption quz"
    assert BENCHMARKS["science_qa"].prefix("Q?", context="N/A", choices="(A) x, (B) y") == (
        "Question: Q?\nContext: N/A\nOptions: (A) x, (B) y\nAnswer:"
    )


def test_every_benchmark_has_a_source_with_its_splits():
    for row in BENCHMARKS.values():
        splits = [row.final_split, row.train_split, row.tune_split, row.eval_split]
        splits += [split for one in row.rows for split in (one.split, *one.averaged)]
        for split in filter(None, splits):
            names = [one.partition("[")[0] for one in split.split("+")]
            assert SOURCES[row.name].parse(split) == names


def test_the_main_suite_has_the_papers_27_rows():
    titles = [row.titles[0] for row in paper_groups()[MAIN_SUITE]]
    assert len(set(titles)) == len(titles) == 27
    assert {"xGQA", "MaRVL", "MSVD-QA", "RefCOCO-g (test)", "ChartQA (aug)"} <= {*titles}
    assert not {"VATEX", "AI2D", "COCO-Captions"} & {*titles}
    owners = [title.partition(" (")[0].rstrip("+") for title in titles]
    assert (owners.count("RefCOCO"), owners.count("ChartQA")) == (6, 2)


def test_titles_name_one_row_each():
    titles = [t for b in BENCHMARKS.values() for row in b.rows for t in row.titles]
    assert len(set(titles)) == len(titles)
    assert row_of_title("TallyQA (complex)")[1].split == "test_complex"
    with pytest.raises(ValueError, match="no benchmark has a row 'MMVP'"):
        row_of_title("MMVP")


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("nocaps", "cococap"),
        ("xm3600", "coco35l"),
        ("xgqa", "gqa"),
        ("marvl", "nlvr"),
        ("countbenchqa", "tallyqa"),
        ("pope", "vqav2"),
    ],
)
def test_zero_shot_benchmarks_have_a_parent_and_no_training(child, parent):
    row = BENCHMARKS[child]
    assert row.parent == parent
    assert (row.train_split, row.tune_split, row.num_train, dict(row.recipes)) == ("", "", 0, {})
    assert BENCHMARKS[parent].train_split
    assert row.prompt == BENCHMARKS[parent].prompt


def test_nothing_is_trained_on_that_is_scored():
    for row in BENCHMARKS.values():
        trained = set(row.train_split.split("+"))
        for scored in {row.eval_split, *(one.split for one in row.rows)}:
            assert not trained & set(scored.split("+")), row.name
    assert BENCHMARKS["docvqa"].train_split == "train[:-5%]"
    assert BENCHMARKS["vqav2"].train_split == "train+val[:-10240]"
    assert BENCHMARKS["chartqa"].train_split == "train+val"


def test_recipes_of_two_resolutions():
    for row in BENCHMARKS.values():
        sides = [224] if row.num_frames else [224, 448]
        assert list(row.recipes) == (sides if row.final_split else []), row.name
    gqa, infovqa = BENCHMARKS["gqa"].recipes, BENCHMARKS["infovqa"].recipes
    assert (gqa[224].freeze_vision, gqa[448].freeze_vision) == (False, "all")
    assert (infovqa[224].batch_size, infovqa[448].batch_size) == (256, 128)
    assert BENCHMARKS["vqav2"].recipes[224].weight_decay == pytest.approx(1e-6)
    assert BENCHMARKS["vqav2"].recipes[448].weight_decay == 0
    assert BENCHMARKS["nlvr"].recipes[448] == FinetuneRecipe(
        lr_pg1=3e-6, lr_pg2=6e-6, decay=True, epochs=10
    )


def test_some_images_are_filtered_in_training_only():
    assert SOURCES["vizwizvqa"].antialias_of("train+val")
    assert not SOURCES["vizwizvqa"].antialias_of("val")
    assert SOURCES["chartqa"].antialias_of("test")
    assert not SOURCES["nlvr"].antialias_of("train+dev")


def test_training_sizes_are_those_of_the_splits():
    assert BENCHMARKS["gqa"].num_train == 943_000 + 132_062
    assert BENCHMARKS["docvqa"].num_train - BENCHMARKS["docvqa"].rows[0].size == 39_463
    assert BENCHMARKS["science_qa"].num_train == 6_218 + 2_097


def test_msvd_takes_eight_frames():
    assert (BENCHMARKS["msvd_qa"].num_frames, BENCHMARKS["msvd_qa"].frame_stride) == (8, 26)
    assert SOURCES["msvd_qa"].num_frames == 8


def test_a_wrong_prompt_or_parent_is_refused():
    with pytest.raises(ValueError, match=r"prompt .*got \{q\} in 'ask \{q\}'"):
        dataclasses.replace(BENCHMARKS["nlvr"], prompt="ask {q}")
    with pytest.raises(ValueError, match="nlvr must have a final_split"):
        dataclasses.replace(BENCHMARKS["nlvr"], parent="gqa")
