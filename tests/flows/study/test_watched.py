"""Tests of watching stages while they train: the datasets, and what a config may ask for."""

import pytest

from flows.graph.graph import graph_of
from flows.steps.kind import Step
from flows.steps.registry import step_code
from flows.study.load import load
from flows.study.study import StudyConfig
from infra.errors import ConfigError

WORDS = (
    "sources=[{reader: web, split: 'train[:75%]'}]",
    "watch={every: 5, examples: 7, sources: [{reader: web, split: 'train[75%:]'}], "
    "probe: {benchmark: chartqa, steps: 3, examples: 9, batch_size: 4}}",
)


def watched(*more: str) -> StudyConfig:
    return load(overrides=[*WORDS, *more])


def steps(config: StudyConfig) -> dict[str, Step]:
    return {step.name: step for step in graph_of(config).steps}


def test_every_stage_reads_what_it_is_watched_by_and_does_not_train_on_it():
    found = steps(watched("stage2={}"))
    for name, at, budgets in (
        ("stage1 vanilla", "", (256,)),
        ("intermediary parcel", "", (16, 64, 256)),
        ("stage2 parcel", "@448", (64, 256, 1024)),
    ):
        step = found[name]
        reads = {role: read.name for role, read in step.inputs.items()}
        assert reads["data/0"] == f"prepare mixture/web{at}"
        assert reads["watched/0"] == f"prepare watched/web{at}"
        assert reads["probe/train"] == f"prepare chartqa{at}/train"
        assert reads["probe/eval"] == f"prepare chartqa{at}/eval"
        watch = step.config.watch
        assert (watch.every, watch.examples, watch.budgets) == (5, 7, budgets)
        assert (watch.probe.train.total_steps, watch.probe.train.batch_size) == (3, 4)
        assert watch.probe.train.peak_lr == load().transfers["chartqa"].train.peak_lr
        assert watch.probe.model.vision.image_px == step.config.model.vision.image_px
        assert watch.probe.examples == 9
    assert "watched/web" not in found["tokenizer"].inputs
    assert not [s for s in found.values() if s.name.startswith("transfer") and s.config.watch]


def test_a_resolution_without_the_probed_benchmark_has_no_probe():
    found = steps(watched("stage2={transfers: {chartqa: null}}"))
    assert found["stage2 parcel"].config.watch.probe is None
    assert "probe/train" not in found["stage2 parcel"].inputs
    assert found["intermediary parcel"].config.watch.probe is not None


def test_who_looks_on_is_no_part_of_a_trainings_code():
    spec = steps(watched())["stage1 vanilla"].config
    code = step_code("checkpoint", spec)
    assert "model.train.loop" in code
    assert not [module for module in code if module.startswith(("model.watch", "model.eval"))]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["watch={}"], "watch: watch must have sources or a probe"),
        (
            ["watch={sources: [{reader: web}]}"],
            r"watch\.sources\.0\.split must be held out from sources\.0\.split, train, got train; ",
        ),
        (["watch={sources: [{reader: web, split: 'dev'}]}"], r"watch\.sources\.0\.split: "),
        (
            ["watch={probe: {benchmark: gqa}}"],
            r"watch\.probe\.benchmark must be a transfer of the study, chartqa, refcoco, got 'gqa'",
        ),
    ],
)
def test_what_cannot_be_watched_is_refused(words: list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        load(overrides=words)
