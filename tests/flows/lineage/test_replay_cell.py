"""An artifact made again by the worker of its own source tree, in a store of its own."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flows.lineage.replay import ReplayOutcome, autotuning_differences, replay_artifacts
from flows.lookup.target import find_target
from flows.steps.kinds.checkpoint import AUTOTUNING
from flows.steps.kinds.files import FilesSpec
from flows.steps.registry import step_code, typed_config
from flows.steps.remake import RemakeError
from flows.study.load import load
from infra.errors import ConfigError
from infra.source_code import Tree, checkout, code_sha256
from infra.store.digest import canonical_json, value_sha256
from infra.store.environment import execution_environment
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from tests.flows.graphs import checked_graph

MAKER = "flows/steps/kinds/files.py"
SPEC = FilesSpec(files=(("a.txt", "0" * 64, 1),))


def quick(folder: Path) -> Store:
    """A store that outlives no power cut: of a source tree every file would be synced."""
    store = Store(folder)
    store.files = store.volatile
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return quick(tmp_path / "store")


@pytest.fixture
def fresh(tmp_path: Path) -> Store:
    return quick(tmp_path / "fresh")


def made(store: Store, text: str, old: str = "", new: str = "", **hardware: Any) -> Artifact:
    """An artifact of the cheapest kind, and sources that are said to have made it.

    Args:
      store: where.
      text: its bytes.
      old: text of its maker that is another one in the sources.
      new: that one.
      hardware: that is noted as its machine's; none takes this machine's.
    """
    source = checkout().files[MAKER].decode()
    assert old in source
    tree = {**checkout().files, MAKER: source.replace(old, new, 1).encode()}
    code = code_sha256(step_code("files", SPEC, Tree(tree)))
    recipe = Recipe(
        kind="files", name="files x", config=SPEC, code=code, source=store.save_source(tree)
    )
    attempt = Attempt(store, recipe)
    (attempt.path / "files.txt").write_text(text)
    noted = execution_environment()["hardware"] | hardware
    return attempt.commit({"hardware": noted})


@pytest.mark.parametrize(
    ("then", "again", "text"),
    [
        ({"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "4"}, "of 1 in 2 kernels"),
        ({"a": "1", "b": "2"}, {"b": "2", "c": "4"}, ""),
        ({"a": "1"}, None, ""),  # Compiled to be deterministic, or on a CPU.
    ],
)
def test_kernels_that_were_chosen_otherwise_are_a_difference_of_machines(
    store: Store, fresh: Store, then: dict[str, str], again: dict[str, str] | None, text: str
):
    was, now = (tuned(each, digests) for each, digests in ((store, then), (fresh, again)))
    differences = tuple(autotuning_differences(was, now))
    outcome = ReplayOutcome(was=was.manifest, now=now.manifest, differences=differences)
    assert len(differences) == bool(text)
    assert outcome.is_near(0.0) == bool(text)
    assert (f"; another kind of machine: autotuning {text} " in outcome.line()) == bool(text)


def tuned(store: Store, digests: dict[str, str] | None) -> Artifact:
    """An artifact with the digests of kernels that a GPU's machine chose."""
    attempt = Attempt(store, Recipe(kind="files", name="files x", config=SPEC))
    (attempt.path / "files.txt").write_text(store.uri)
    if digests is not None:
        (attempt.path / AUTOTUNING).write_text(json.dumps(digests))
    return attempt.commit({})


@pytest.mark.slow
def test_the_code_of_then_makes_the_same_bytes(store: Store, fresh: Store):
    was = made(store, f"1  {'0' * 64}  a.txt\n", "{sha256}  {size}", "{size}  {sha256}")
    (again,) = replay_artifacts(store, find_target(store, was.key), fresh, from_raw=False)
    assert again.is_same
    assert again.is_near(0.0)
    assert again.now.key == was.key
    assert again.line().endswith(" s then: the same bytes, 1 files")
    assert fresh.keys() == [was.key]


@pytest.mark.slow
def test_other_bytes_on_the_same_machine_are_told(store: Store, fresh: Store):
    was = made(store, f"{'1' * 64}  1  a.txt\n")
    (again,) = replay_artifacts(store, find_target(store, was.key), fresh, from_raw=True)
    assert not again.is_near(100.0)
    assert [(d.sort, d.what) for d in again.differences] == [("data", "a.txt")]
    assert again.line().endswith("other contents; the same machine")


@pytest.mark.slow
@pytest.mark.parametrize(("accelerator", "platform"), [("cpu", "cpu"), ("NVIDIA H200", "cuda")])
def test_what_a_processor_made_is_made_by_one(
    store: Store, fresh: Store, monkeypatch: pytest.MonkeyPatch, accelerator: str, platform: str
):
    was = made(
        store,
        f"{platform}\n",
        '    lines = [f"{sha256}  {size}  {path}',
        "    from os import environ\n    lines = [f\"{environ['JAX_PLATFORMS']}",
        accelerator=accelerator,
        cpu="Abacus",
    )
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    (again,) = replay_artifacts(store, find_target(store, was.key), fresh, from_raw=False)
    assert again.is_same
    here = execution_environment()["hardware"]
    assert f"made again on {here['cpu']}, {here['threads']} threads, in" in again.line()


@pytest.mark.slow
@pytest.mark.parametrize("then", [{"NVIDIA_TF32_OVERRIDE": "0"}, {}])
def test_recorded_variables_are_set_as_they_were(
    store: Store, fresh: Store, monkeypatch: pytest.MonkeyPatch, then: dict[str, str]
):
    was = made(
        store,
        f"{then.get('NVIDIA_TF32_OVERRIDE')}\n",
        '    lines = [f"{sha256}  {size}  {path}',
        "    from os import environ\n    lines = [f\"{environ.get('NVIDIA_TF32_OVERRIDE')}",
        variables=then,
    )
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    (again,) = replay_artifacts(store, find_target(store, was.key), fresh, from_raw=False)
    assert again.is_same
    assert not [d for d in again.elsewhere if d.what in then]


@pytest.mark.slow
def test_other_bytes_of_another_kind_of_machine_are_told_and_are_near(store: Store, fresh: Store):
    was = made(store, f"{'1' * 64}  1  a.txt\n", cpu="Abacus")
    (again,) = replay_artifacts(store, find_target(store, was.key), fresh, from_raw=False)
    assert not again.is_same
    assert again.is_near(0.0)  # It has no score to lie off.
    here = execution_environment()["hardware"]["cpu"]
    assert again.line().endswith(f"other contents; another kind of machine: cpu Abacus → {here}")
    scored = dataclasses.replace(again, score=(50.0, 50.4))
    assert (scored.is_near(0.3), scored.is_near(0.5)) == (False, True)


@pytest.mark.slow
def test_a_step_that_fails_or_has_no_sources_says_so(store: Store, fresh: Store):
    broken = made(
        store, "", "    lines = [", "    raise ValueError('no such thing')\n    lines = ["
    )
    with pytest.raises(RemakeError, match=r"files x .*no such thing"):
        list(replay_artifacts(store, find_target(store, broken.key), fresh, from_raw=False))
    attempt = Attempt(store, Recipe(kind="files", name="files y", config=SPEC))
    (attempt.path / "files.txt").write_text("")
    with pytest.raises(ConfigError, match=r"files y .*its sources"):
        list(
            replay_artifacts(
                store, find_target(store, attempt.commit({}).key), fresh, from_raw=False
            )
        )


def test_every_config_of_a_study_is_read_back_from_its_manifest(tmp_path: Path):
    for folder in ("web", "chartqa"):
        (tmp_path / folder).mkdir()
    small = Path(__file__).parents[2] / "e2e" / "smallest.yaml"
    studies = (load(), load(small, [f"data_root={tmp_path}"]))
    steps = [step for study in studies for step in checked_graph(study).steps]
    for step in steps:
        plain = json.loads(canonical_json(step.config))
        assert value_sha256(typed_config(step.kind, plain)) == value_sha256(step.config), step.name
    with pytest.raises(ConfigError, match="config of a checkpoint"):
        typed_config("checkpoint", {"model": 3})
