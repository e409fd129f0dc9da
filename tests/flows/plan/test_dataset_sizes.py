"""Tests of the number of records of datasets that are, or are not, prepared."""

import pytest

from flows.plan.dataset_sizes import DatasetSizes, num_examples
from flows.study.load import load
from pipelines.sources.registry import BENCHMARKS


def test_prepared_records_come_before_published_ones():
    (view,) = load(overrides=["transfers={chartqa: {}}"]).views
    chartqa = BENCHMARKS["chartqa"]
    (row, *_) = view.rows
    sizes = DatasetSizes({"chartqa/train": 40, f"{row}/eval": 7})
    assert (sizes.num_train(view, "chartqa"), sizes.num_eval(view, row)) == (40, 7)
    assert not sizes.is_any_published
    sizes = DatasetSizes({})
    assert sizes.num_train(view, "chartqa") == chartqa.num_train
    assert sizes.num_eval(view, row) == chartqa.rows[0].size
    assert sizes.is_any_published


def test_limits_apply_to_published_sizes():
    words = ["transfers={chartqa: {eval_limit: 50, prepare: {limit: 90}}}"]
    (view,), sizes = load(overrides=words).views, DatasetSizes({})
    (row, *_) = view.rows
    assert (sizes.num_train(view, "chartqa"), sizes.num_eval(view, row)) == (90, 50)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("aokvqa_da", 17_056),
        ("aokvqa_mc", 17_056),
        ("docvqa", 37_490),
        ("infovqa", 23_946),
        ("stvqa", 23_446),
        ("textvqa", 34_602),
        ("vatex_cap", 21_850),
        ("vizwizvqa", 20_523),
        ("vqav2", 647_871),
    ],
)
def test_a_benchmark_that_trains_without_its_scored_split_counts_without_it(name: str, count: int):
    (view,) = load(overrides=[f"transfers={{{name}: {{}}}}"]).views
    assert DatasetSizes({}).num_train(view, name) == count


def test_a_training_split_that_has_the_scored_one_counts_with_it():
    docvqa = "transfers={docvqa: {train_split: train+val, allow_train_on_eval: true}}"
    assert DatasetSizes({}).num_train(load(overrides=[docvqa]).views[0], "docvqa") == 44_812


def test_every_trained_benchmark_has_a_size_that_its_published_files_may_have():
    trained = {name: b for name, b in BENCHMARKS.items() if b.final_split}
    counts = {name: num_examples(b, b.train_split) for name, b in trained.items()}
    fewer = {name for name, b in trained.items() if counts[name] < b.num_train}
    # Those, and no others, hold a scored split out of their last training.
    assert fewer == {name for name, b in trained.items() if b.train_split != b.final_split}
    for name in fewer:
        # The scored part has one published size, and is the smaller one.
        (row,) = trained[name].rows
        assert row.size, name
        assert counts[name] > 4 * row.size, name


def test_another_split_has_no_published_size():
    (view,) = load(overrides=["transfers={chartqa: {train_split: 'train[:10%]'}}"]).views
    assert DatasetSizes({}).num_train(view, "chartqa") is None
