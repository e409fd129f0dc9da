"""The tutorials after the demo make anew only what is theirs, and say how many steps that is."""

import sys
from pathlib import Path

import pytest

from flows.graph.graph import graph_of
from flows.study.load import load
from infra.store.digest import identity_json, value_sha256
from tests.docs.pages import ROOT, blocks


def nodes_of(config: Path | None) -> dict[str, str]:
    """Returns node of a study -> a digest of what its steps make and read."""
    graph, found = graph_of(load(config)), dict[int, str]()
    for step in graph.steps:
        reads = {role: found[id(read)] for role, read in step.inputs.items()}
        found[id(step)] = value_sha256([step.kind, identity_json(step.config), step.seed, reads])
    return {n.name: value_sha256([found[id(step)] for step in n.steps]) for n in graph.nodes}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "study", "new"),
    [
        ("own_connector.md", "ripple.yaml", ("intermediary connectors:Ripple", "transfer conn")),
        ("own_step.md", "distill.yaml", ("distill parcel", "transfer parcel")),
    ],
)
def test_a_tutorial_makes_anew_only_what_is_its_own(
    page: str, study: str, new: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for block in blocks(ROOT / "docs/tutorials" / page):
        first = block.text.partition("\n")[0]
        if block.language in ("python", "yaml") and first.startswith("# "):
            (tmp_path / first[2:].partition(",")[0].strip()).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    demo, nodes = {*nodes_of(None).values()}, nodes_of(tmp_path / study)
    made = [name for name, digest in nodes.items() if digest not in demo]
    assert all(name.startswith((*new, "results ")) for name in made), made
    text = (ROOT / "docs/tutorials" / page).read_text()
    assert f"{len(made)} of its {len(nodes)} steps are new" in text
