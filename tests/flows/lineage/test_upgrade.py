"""A store that an earlier version made: it is refused, upgraded, found again, read and replayed."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from flows.config.load import load
from flows.lineage.open_store import open_store
from flows.lineage.replay import replay_artifacts
from flows.lineage.target import LineageTarget, find_lineage_target
from flows.lineage.trace import trace_lineage
from flows.lineage.upgrade import upgrade_store
from flows.steps.accepted import accept_artifact, accepted_codes
from flows.study.explain import explain_study
from infra.errors import ConfigError
from infra.store.bucket import Bucket
from infra.store.manifest import UPGRADED, Manifest
from infra.store.store import FORMAT, Store

STORES = Path(__file__).parents[2] / "stores"
CONFIG = str(STORES / "2026-11.yaml")


@pytest.fixture
def old(tmp_path: Path) -> str:
    """The store of a study of 14 nodes, made by the last version of format 2."""
    with tarfile.open(STORES / "2026-11.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return str(tmp_path / "store")


def test_it_is_refused_with_the_command_that_upgrades_it(old: str):
    with pytest.raises(ConfigError, match=f"`parcel store upgrade --store {old}`"):
        open_store(old)


def test_what_it_has_is_found_and_no_byte_of_it_was_touched(old: str):
    files = {path: os.stat(path) for path in Path(old, "artifacts").rglob("*") if path.is_file()}
    assert len(files) > 60
    (line,) = upgrade_store(old)
    renamed = [a for a in Store(old).artifacts() if UPGRADED in a.manifest.environment]
    assert line == f"{len(renamed)} artifacts have a new key; `parcel gc` deletes the old names"
    # Their identity is formed in another way, whatever later edits do to their code.
    kinds = {artifact.manifest.kind for artifact in renamed}
    assert kinds >= {"checkpoint", "predictions", "results"}, kinds
    assert {path: (s.st_ino, s.st_mtime_ns) for path, s in files.items()} == {
        path: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in files
    }
    explanation = explain_study(load(CONFIG), Store(old))
    states = {
        step.name: verdict.state
        for step, verdict in explanation.steps.items()
        if step.kind not in ("scores", "results")  # Which that version did not have.
    }
    assert len(states) == 15
    # Later edits of the code make them stale, as they do any artifact; none is new.
    assert "new" not in states.values(), states
    assert [*upgrade_store(old)] == [f"{old} has format 3 already: nothing to do"]


@pytest.mark.usefixtures("gcs")
def test_in_a_bucket_it_is_what_it_is_on_a_disk(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "state"))
    bucket = Bucket("gs://testing/old")
    for path in Path(old).rglob("*"):
        if path.is_file():
            bucket.put(str(path.relative_to(old)), path.read_bytes())
    assert [*upgrade_store(bucket.uri)] == [*upgrade_store(old)]
    stores = Store(bucket.uri), Store(old)
    assert [store.format for store in stores] == [FORMAT, FORMAT]
    there, here = ({artifact.key: artifact for artifact in s.artifacts()} for s in stores)
    assert there.keys() == here.keys()
    for key, artifact in there.items():
        assert stores[0].find(key) is not None, artifact.manifest.name
        assert artifact.manifest.files == here[key].manifest.files
        assert artifact.manifest.inputs == here[key].manifest.inputs
    records = [
        {name: store.files.read(f"runs/{name}") for name in store.files.listing("runs")}
        for store in stores
    ]
    assert records[0] == records[1] != {}


def test_what_was_accepted_is_accepted_under_its_new_key(old: str, tmp_path: Path):
    shutil.copytree(old, tmp_path / "copy")
    list(upgrade_store(str(tmp_path / "copy")))
    renamed: dict[str, Manifest] = {
        artifact.manifest.environment[UPGRADED]["key"]: artifact.manifest
        for artifact in Store(tmp_path / "copy").artifacts()
        if UPGRADED in artifact.manifest.environment
    }
    codes = {m.environment[UPGRADED]["code"]: m.code for m in renamed.values()}
    # Code that made an artifact of this store has another digest now, by which it is looked for.
    then, now = next((then, now) for then, now in codes.items() if then != now)
    before = Store(old, formats=(2,))
    artifact = before.get(next(iter(renamed)))
    other_code = "0" * 64
    accept_artifact(before, artifact, then)
    accept_artifact(before, artifact, other_code)
    list(upgrade_store(old))
    assert accepted_codes(Store(old)) == {
        renamed[artifact.key].key: sorted([now[:16], other_code[:16]])
    }


def test_its_records_and_lineage_can_be_read(old: str):
    list(upgrade_store(old))
    store = Store(old)
    text = "\n".join(trace_lineage(store, find_lineage_target(store, "old"), samples=1))
    assert "results old" in text
    assert "chartqa/ChartQA Dataset/test/png/" in text
    assert [key for key in store.keys("results")]


def test_killed_in_the_middle_it_goes_on(old: str, monkeypatch: pytest.MonkeyPatch):
    publish, published = Store.publish, []

    def killed(store: Store, manifest):
        if len(published) == 7:
            raise KeyboardInterrupt
        published.append(manifest.key)
        return publish(store, manifest)

    monkeypatch.setattr(Store, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        list(upgrade_store(old))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="has format 2"):
        open_store(old)
    list(upgrade_store(old))
    steps = explain_study(load(CONFIG), Store(old)).steps
    assert [s.name for s, v in steps.items() if v.state == "new" and s.kind == "checkpoint"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokenizer", "predictions"])
def test_it_is_replayed_to_the_byte_by_the_code_of_then(old: str, tmp_path: Path, kind: str):
    list(upgrade_store(old))
    store = Store(old)
    artifact = next(iter(store.artifacts(kind)))
    assert kind != "predictions" or UPGRADED in artifact.manifest.environment
    target = LineageTarget(name=artifact.key, artifacts=(artifact,))
    (outcome,) = replay_artifacts(store, target, Store(tmp_path / "fresh"), from_raw=False)
    assert outcome.is_same, outcome.line
