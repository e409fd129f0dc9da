"""What a node reads and is damaged is made again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.graph.nodes import GraphNode
from flows.run.repair import repair_inputs
from flows.run.session import StepFailedError
from tests.flows.run.sessions import session_of
from tests.flows.run.test_run_order import node


class Shelf:
    """A store of artifacts by key, some of them damaged; steps are their own keys."""

    def __init__(self, *keys: str) -> None:
        self.keys, self.makes = {*keys}, list[str]()

    def find(self, key: str) -> Any:
        return key in self.keys or None

    find_pruned = find

    def repair(self, folder: Path, nodes: list[GraphNode], damaged: set[str], spoils: int) -> str:
        """Makes the last node where files of `damaged` turn out damaged `spoils` times each."""
        left, last = dict.fromkeys(damaged, spoils), nodes[-1]
        steps = [step for node in nodes for step in node.steps]
        session = session_of(
            folder,
            nodes,
            store=self,
            artifacts={step: SimpleNamespace(key=step.name) for step in steps},
            expected_keys={step: step.name for step in steps},
        )

        def make(node: GraphNode) -> str:
            repaired = {*session.repaired}
            try:
                return attempt(node)
            except StepFailedError as error:
                repair_inputs(session, node, error, repaired, make)
            return make(node)

        def attempt(node: GraphNode) -> str:
            (step,) = node.steps
            for read in step.inputs.values():
                if left.get(read.name, 0) and read.name in self.keys:
                    left[read.name] -= 1
                    self.keys.remove(read.name)
                if read.name not in self.keys:
                    raise StepFailedError(f"{read.name} is damaged")
            assert step not in session.expected_keys or node is last
            self.keys.add(step.name)
            self.makes.append(step.name)
            return "made"

        return make(last)


def chain() -> list[GraphNode]:
    """Three nodes, each of which reads the one before."""
    first = node("tokenizer")
    second = node("stage1", first)
    return [first, second, node("transfer", second)]


def test_what_a_node_reads_and_is_damaged_is_made_again_with_what_that_reads(tmp_path: Path):
    shelf = Shelf("tokenizer", "stage1")
    assert shelf.repair(tmp_path, chain(), {"tokenizer", "stage1"}, spoils=1) == "made"
    assert shelf.makes == ["tokenizer", "stage1", "transfer"]


def test_what_is_damaged_twice_is_not_made_for_ever(tmp_path: Path):
    shelf = Shelf("tokenizer", "stage1")
    with pytest.raises(StepFailedError, match="stage1 is damaged"):
        shelf.repair(tmp_path, chain(), {"stage1"}, spoils=2)
    assert shelf.makes == ["stage1"]


def test_a_failure_without_damage_stays_one(tmp_path: Path):
    class Whole(Shelf):
        def find(self, key: str) -> Any:
            return True

    shelf = Whole("tokenizer", "stage1")
    with pytest.raises(StepFailedError, match="stage1 is damaged"):
        shelf.repair(tmp_path, chain(), {"stage1"}, spoils=1)
    assert shelf.makes == []
