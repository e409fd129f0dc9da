"""Tests of the number of records of datasets that are, or are not, prepared."""

from flows.config.load import load
from flows.plan.dataset_sizes import DatasetSizes
from pipelines.sources.registry import BENCHMARKS


def test_prepared_records_come_before_published_ones():
    study, chartqa = load(overrides=["transfers={chartqa: {}}"]), BENCHMARKS["chartqa"]
    (row, *_) = study.rows
    sizes = DatasetSizes({"chartqa/train": 40, f"{row}/eval": 7})
    assert (sizes.num_train(study, "chartqa"), sizes.num_eval(study, row)) == (40, 7)
    assert not sizes.is_any_published
    sizes = DatasetSizes({})
    assert sizes.num_train(study, "chartqa") == chartqa.num_train
    assert sizes.num_eval(study, row) == chartqa.rows[0].size
    assert sizes.is_any_published


def test_limits_apply_to_published_sizes():
    words = ["transfers={chartqa: {eval_limit: 50, prepare: {limit: 90}}}"]
    study, sizes = load(overrides=words), DatasetSizes({})
    (row, *_) = study.rows
    assert (sizes.num_train(study, "chartqa"), sizes.num_eval(study, row)) == (90, 50)


def test_another_split_has_no_published_size():
    study = load(overrides=["transfers={chartqa: {train_split: 'train[:10%]'}}"])
    assert DatasetSizes({}).num_train(study, "chartqa") is None
