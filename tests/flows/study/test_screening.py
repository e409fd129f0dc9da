"""Screening in a study: the mixture against every evaluation split, and only if asked for."""

from typing import Any

from flows.study.load import load
from flows.study.plan import datasets_of
from flows.study.screening import screened


def submitted(*overrides: str) -> dict[str, tuple[Any, Any]]:
    config = load(overrides=list(overrides))
    datasets: Any = {name: name for name in datasets_of(config)}
    submit: Any = lambda spec, inputs: (spec, inputs)  # noqa: E731
    return screened(submit, config, datasets)  # type: ignore[return-value]


def test_nothing_is_screened_by_default():
    assert submitted() == {}


def test_the_mixture_is_held_against_every_evaluation_split():
    steps = submitted("hygiene.contamination=remove")
    ((name, (spec, inputs)),) = steps.items()
    assert name == "mixture/web"
    assert (spec.kind, spec.name) == ("screened", "screen mixture/web")
    assert spec.config.contamination == "remove"
    assert inputs == {
        "dataset": "mixture/web",
        "chartqa/eval": "chartqa/eval",
        "refcoco/eval": "refcoco/eval",
        "msvd_qa/eval": "msvd_qa/eval",
    }
