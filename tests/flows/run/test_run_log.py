"""The lines that a run's log is read by."""

import dataclasses
import datetime
import re

import pytest

from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.report.durations import duration_text
from flows.run.run_log import (
    beginning_line,
    closing_line,
    opening_line,
    progress_line,
)
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.scores import ScoreSpec
from flows.steps.labels import labels_of_step_name
from infra.prefect import journal
from infra.progress import Progress
from model.decode.config import DecodeConfig
from model.train.config import TrainConfig
from tests.model.tiny_model import tiny_model


def node(name: str, config: object = None) -> GraphNode:
    step = Step(kind="any", labels=labels_of_step_name(name), config=config)
    return GraphNode(labels=step.labels, jobs=(StepJob(steps=(step,)),))


NODES = tuple(node(name) for name in ("files web", "prepare web", "prepare eval", "results"))
GRAPH = StudyGraph(nodes=NODES, cells={}, results=None)


@pytest.mark.parametrize(
    ("reused", "told"),
    [
        ((), "4 steps, none of them there; to make: files 1, prepare 2, results 1"),
        (NODES[:2], "4 steps, 2 of them there already; to make: prepare 1, results 1"),
        (NODES, "4 steps, 4 of them there already: nothing is to be made"),
    ],
)
def test_the_first_line_tells_what_there_is_to_do(reused, told: str):
    assert opening_line(GRAPH, reused) == told


def test_the_first_line_names_a_few_sorts_of_steps():
    nodes = tuple(node(f"{sort} {n}") for sort in "abcdefg" for n in range(2))
    told = opening_line(StudyGraph(nodes=nodes, cells={}, results=None), ())
    assert re.match("14 steps, none .*: a 2, b 2, c 2, d 2, e 2 and 4 others", told)


def test_a_training_begins_with_what_it_will_do():
    train = TrainConfig(batch_size=32, total_steps=1000)
    stage = node("stage1", FitSpec(model=tiny_model(), train=train))
    told = "stage1 begins, with 1,000 updates of 32 examples"
    assert beginning_line(stage, stage.steps, None) == told
    assert beginning_line(stage, stage.steps, 41.2) == f"{told}; others like it took 41 s"
    assert beginning_line(NODES[1], NODES[1].steps, None) == "prepare web begins"


def test_what_is_only_scored_again_does_not_read_like_a_training():
    train = FitSpec(model=tiny_model(), train=TrainConfig(batch_size=32, total_steps=1000))
    evaluate = EvaluateSpec(budget=64, decode=DecodeConfig())
    score = ScoreSpec(benchmark="chartqa", budget=64, metric="exact_match")
    configs = {"transfer a": train, "evaluate a": evaluate, "score a": score}
    steps = tuple(
        Step(kind="any", labels=labels_of_step_name(name), config=config)
        for name, config in configs.items()
    )
    transfer = GraphNode(
        labels=labels_of_step_name("transfer a"), jobs=tuple(StepJob(steps=(s,)) for s in steps)
    )
    whole = "transfer a begins, with 1,000 updates of 32 examples and 1 evaluation"
    assert beginning_line(transfer, steps, None) == whole
    assert re.match(
        "transfer a .* 1 evaluation .*no training", beginning_line(transfer, steps[1:], None)
    )
    assert re.match(
        "transfer a .* 1 score .*no training", beginning_line(transfer, steps[2:], None)
    )
    graph = StudyGraph(nodes=(transfer,), cells={}, results=None)
    assert opening_line(graph, (), lambda step: step in steps[:2]).endswith("to make: score 1")


def test_a_step_under_way_and_the_end():
    assert progress_line("stage1", Progress(done=600, total=1000, note="loss 2.3")) == (
        "stage1: 600 of 1,000, loss 2.3"
    )
    assert progress_line("files", Progress(done=6, total=10)) == "files: 6 of 10"
    told = closing_line("33 made, 9 reused", ["a: no", "b: no"], 250.0, None)
    assert told == "33 made, 9 reused, in 4 min 10 s; a: no"
    assert (
        closing_line("1 made", [], 3.2, "results-1") == "1 made, in 3.2 s; the table is results-1"
    )


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(3.24, "3.2 s"), (119.2, "119 s"), (119.9, "120 s"), (7260.0, "2 h 1 min")],
)
def test_times_are_spoken(seconds: float, told: str):
    assert duration_text(seconds) == told


def test_a_line_tells_the_time_of_the_work_without_the_wait_for_a_place():
    began = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC)
    ended = began + datetime.timedelta(seconds=260)
    node = journal.JournalNode(
        name="a", outcome="made", detail="@16 50.0", started=began, ended=ended
    )
    assert node.summary == "made in 260.0 s: @16 50.0"
    assert dataclasses.replace(node, took=21.0).summary == "made in 21.0 s: @16 50.0"
