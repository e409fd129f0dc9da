"""Reports of item logs that have budgets, seeds and checkpoints."""

import random

import pytest

from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from flows.logs.logs_report import report_logs
from flows.report.cells import Comparison

LUCK = {11: 0.2, 23: -0.2, 47: 0.0}
"""Seed -> how much better model `b` is, on every task."""


def _log(
    model: str, task: str, seed: int, *, checkpoint: str = "", pretraining: int = 0
) -> ItemLog:
    rng = random.Random(f"{model} {task} {seed}")
    right = 0.5 + (LUCK[seed] if model == "b" else 0.0)
    items = tuple(
        LoggedItem(
            id=f"{i:03d}",
            source=f"{i}.png",
            question="",
            prompt="How many?",
            target="4",
            answer="",
            score=float(rng.random() < right),
        )
        for i in range(400)
    )
    return ItemLog(
        file=f"{model}-{task}-{seed}.json",
        model=model,
        task=task,
        metric="exact_match",
        split="",
        items=items,
        budget=64,
        seed=seed,
        pretraining=pretraining,
        checkpoint=checkpoint,
    )


def _over_tasks(*, shared: bool) -> Comparison:
    logs = [
        _log(model, task, seed, checkpoint=f"{model}-{seed}-{'' if shared else task}")
        for model in "ab"
        for task in ("x", "y", "z")
        for seed in LUCK
    ]
    (over,) = report_logs(logs).comparisons
    return over


def test_tasks_that_share_a_checkpoint_share_its_luck():
    apart, together = _over_tasks(shared=False), _over_tasks(shared=True)
    assert together.mean == apart.mean
    assert (together.seeds, together.items) == (3, 1200)
    assert together.high is not None
    assert apart.high is not None
    # Three trainings' luck averages out over three tasks; one training's does not.
    assert together.high - together.mean > 1.3 * (apart.high - apart.mean)


def test_a_seed_of_two_pretrainings_is_refused():
    logs = [_log("a", "x", 11), _log("b", "x", 11, pretraining=1)]
    with pytest.raises(ItemLogError, match=r"pretraining .*seed 11 must be 0 .*a-x-11\.json"):
        report_logs(logs)


def test_a_checkpoint_of_two_seeds_is_refused():
    logs = [_log("a", "x", seed, checkpoint="0f" * 32) for seed in LUCK]
    message = (
        r"23\.json: seed must be 11 as in a-x-11\.json, .* same, 0f0f0f0f0f0f0f0f, got 23: one"
    )
    with pytest.raises(ItemLogError, match=message):
        report_logs(logs)


def test_a_seed_twice_is_refused():
    with pytest.raises(ItemLogError, match=r"a has x in a-x-11\.json"):
        report_logs([_log("a", "x", 11), _log("a", "x", 23), _log("a", "x", 11)])
