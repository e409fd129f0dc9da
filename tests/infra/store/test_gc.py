"""Garbage collection: what nothing needs goes, what anything needs never does."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.processes.identity import ProcessIdentity
from infra.store import gc
from infra.store.disk import Disk
from infra.store.lease import Lease, hold_lease
from infra.store.lineage import verify_artifact
from infra.store.manifest import Recipe
from infra.store.pins import GC_LEASE
from infra.store.records import PRUNED, RecordError
from infra.store.store import Artifact, Attempt, Store, manifest_name
from tests.gcs.faults import Rule
from tests.gcs.server import GCS
from tests.infra.store.faults import STALE, fail

SPAWN = multiprocessing.get_context("spawn")
DAY = 86400.0


def step_of(name: str, *inputs: Artifact, source: str = "") -> Recipe:
    read = {found.manifest.name: found.as_input for found in inputs}
    return Recipe(kind="dataset", name=name, config=name, inputs=read, source=source)


def make(store: Store, name: str, *inputs: Artifact, source: str = "") -> Artifact:
    step = step_of(name, *inputs, source=source)
    with store.lock(step.key):
        attempt = Attempt(store, step)
        (attempt.path / "a.txt").write_text(name)
        return attempt.commit({})


def note_run(store: Store, *named: Artifact) -> None:
    (store.state / "runs").mkdir(exist_ok=True)
    links = [f"{store.state}/artifacts/{found.key}/a, lineage-{found.key}" for found in named[1:]]
    record = record_of(named[0].key, more={"links": links})
    (store.state / "runs" / "r.json").write_text(json.dumps(record))


def record_of(results: str | None, **more: Any) -> dict[str, Any]:
    """The record of a run with these results, and other fields."""
    fixed = {"name": "r", "finished": "2026-11-26T00:00:00", "failed": [], "config": {}}
    return {**fixed, "results": results, "artifacts": [], **more}


def make_old(path: Path, days: float = 30) -> None:
    then = time.time() - days * DAY
    for each in (path, *path.rglob("*")):
        os.utime(each, (then, then), follow_symlinks=False)


def snapshot(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file() and path.name != ".guard")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def names(found: list[gc.Garbage]) -> list[tuple[str, str]]:
    return sorted((each.sort, each.title or each.name) for each in found)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_dry_run_tells_and_deletes_nothing(store: Store):
    raw = make(store, "raw")
    make(store, "top", raw)
    before = snapshot(store.state)
    found = gc.find_garbage(store, older_than=0)
    assert names(found) == [("artifact", "raw"), ("artifact", "top")]
    assert [each.size for each in found] == [3, 3]
    assert snapshot(store.state) == before


def test_what_a_run_names_and_all_it_was_made_from_stays(store: Store):
    raw = make(store, "raw")
    data = make(store, "data", raw)
    note_run(store, make(store, "results", data), make(store, "other results"))
    spare = make(store, "spare", raw)
    assert names(gc.delete_garbage(store, older_than=0)) == [("artifact", "spare")]
    assert {found.manifest.name for found in store.artifacts()} == {
        "raw",
        "data",
        "results",
        "other results",
    }
    assert all(store.has_all_files(found) for found in store.artifacts())
    assert store.find(spare.key) is None
    assert not (store.state / "artifacts" / spare.key).exists()
    assert gc.find_garbage(store, older_than=0) == []


def test_what_is_young_stays_with_what_it_was_made_from(store: Store):
    raw = make(store, "raw")
    top = make(store, "top", raw)
    old = make(store, "old")
    for path in (raw, old):
        make_old(store.state / manifest_name(path.key))
    assert names(gc.delete_garbage(store, older_than=7 * DAY)) == [("artifact", "old")]
    assert store.find(raw.key) is not None
    assert store.find(top.key) is not None


def test_what_a_live_run_pinned_stays_and_goes_after_it(store: Store):
    raw = make(store, "raw")
    top = make(store, "top", raw)
    with store.pin_run("run-1") as pin:
        pin.add(top.key)
        assert gc.delete_garbage(store, older_than=0) == []
    assert len(gc.delete_garbage(store, older_than=0)) == 2


def test_pin_of_a_dead_process_counts_for_nothing(store: Store):
    made = make(store, "made")
    dead = ProcessIdentity(**{**vars(ProcessIdentity.of_this_process()), "began": 1})
    lease = Lease(token="t", holder=dead, since="", ttl=1000, keys=(made.key,))
    store.files.create_if_absent("pins/run.json", lease.to_json())
    assert names(gc.delete_garbage(store, older_than=0)) == [("artifact", "made")]
    assert store.files.listing("pins") == {}


def test_pin_of_another_machine_counts_long_after_it_lapsed(store: Store):
    made = make(store, "made")
    far = ProcessIdentity(host="far", machine="far", pid=1, began=1)
    lease = Lease(token="t", holder=far, since="", ttl=1, keys=(made.key,))
    store.files.create_if_absent("pins/run.json", lease.to_json())
    make_old(store.state / "pins" / "run.json", days=0.5 / 24)
    assert gc.delete_garbage(store, older_than=0) == []
    make_old(store.state / "pins" / "run.json")
    assert len(gc.delete_garbage(store, older_than=0)) == 1


def test_what_a_step_under_way_reads_and_makes_stays(store: Store):
    raw = make(store, "raw")
    step = step_of("top", raw)
    with store.lock(step.key) as scratch:
        (scratch.path / "progress").write_text("7")
        attempt = Attempt(store, step)
        (attempt.path / "half.txt").write_text("half")
        assert gc.delete_garbage(Store(store.state), older_than=0) == []
        assert (scratch.path / "progress").exists()
        attempt.commit({})
    assert store.find(step.key) is not None


def _die(root: str, name: str) -> None:
    store, step = Store(root), step_of(name)
    with store.lock(step.key) as scratch:
        (scratch.path / "progress").write_text("7")
        (Attempt(store, step).path / "half.txt").write_text("half")
        os._exit(9)


def test_attempts_scratch_and_set_aside_go_when_old_and_held_by_nobody(store: Store):
    child = SPAWN.Process(target=_die, args=(str(store.state), "killed"))
    child.start()
    child.join(30)
    damaged = make(store, "damaged")
    (damaged.path / "a.txt").unlink()
    again = make(store, "damaged")
    note_run(store, again)
    (store.state / "partial" / "0123").write_text("half a record")
    assert gc.find_garbage(store, older_than=7 * DAY) == []
    for folder in ("aside", "artifacts", "scratch", "partial"):
        make_old(store.state / folder)
    key = step_of("killed").key
    expected = [("attempt", key), ("partial", "0123"), ("scratch", key), ("set aside", "damaged")]
    assert names(gc.find_garbage(store, older_than=7 * DAY)) == expected
    assert names(gc.delete_garbage(store, older_than=7 * DAY)) == expected
    assert not damaged.path.exists()
    assert store.find(again.key) is not None
    left = {path.name for path in (store.state / "artifacts").iterdir()}
    assert left == {again.key}
    assert list((store.state / "scratch").iterdir()) == []


def test_attempt_of_a_living_process_stays(store: Store):
    attempt = Attempt(store, step_of("bare"))
    make_old(attempt.path)
    assert gc.delete_garbage(store, older_than=0) == []
    assert attempt.path.exists()


def test_source_goes_when_no_manifest_names_it_and_nothing_runs(store: Store):
    used = store.save_source({"a.py": b"a", "b.py": b"b"})
    note_run(store, make(store, "made", source=used))
    with store.pin_run("run-1"):
        spare = store.save_source({"a.py": b"a", "b.py": b"changed"})
        assert gc.delete_garbage(store, older_than=0) == []
    assert [each.sort for each in gc.delete_garbage(store, older_than=0)] == ["source"] * 2
    assert dict(store.open_source(used)) == {"a.py": b"a", "b.py": b"b"}
    with pytest.raises(KeyError):
        store.open_source(spare)


@pytest.mark.parametrize("place", ["manifests", "runs"])
def test_record_that_cannot_be_read_stops_it(store: Store, place: str):
    make(store, "spare")
    note_run(store, make(store, "made"))
    path = next(path for path in (store.state / place).rglob("*.json"))
    path.unlink()
    path.symlink_to(path)
    before = {name for name in snapshot(store.state) if name.startswith("artifacts")}
    with pytest.raises(OSError, match="symbolic links"):
        gc.delete_garbage(store, older_than=0)
    assert {name for name in snapshot(store.state) if name.startswith("artifacts")} == before


RECORDS = (
    "runs/*.json",
    "accepted/*.json",
    "pins/*.json",
    "leases/*.json",
    "manifests/*/*.json",
    "aside/*.json",
    "artifacts/*/history/*.json",
)
"""Files that say what is needed."""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store with a record of every sort, and their names.

    This process holds its pin and its lease; it lives, so they do in a copy of the store, too.
    """
    store = Store(tmp_path_factory.mktemp("busy") / "store")
    with store.pin_run("run-1") as pin:
        raw = make(store, "raw")
        damaged = make(store, "damaged")
        (damaged.path / "a.txt").unlink()
        make(store, "damaged")
        note_run(store, make(store, "results", make(store, "data", raw)))
        accepted = json.dumps({"artifact": make(store, "accepted").key, "code": "0123"})
        store.files.put("accepted/x-as-0123.json", accepted.encode())
        pin.add(make(store, "pinned").key)
        top = step_of("top", make(store, "read"))
        with store.lock(top.key):
            Attempt(store, top)
            make(store, "spare")
            copy = tmp_path_factory.mktemp("copy") / "store"
            shutil.copytree(store.state, copy)
    found_names = []
    for pattern in RECORDS:
        found = [path.relative_to(copy).as_posix() for path in copy.glob(pattern)]
        assert found, pattern
        found_names += sorted(found)
    return copy, found_names


def test_with_every_record_whole_it_deletes_what_none_needs(
    busy: tuple[Path, list[str]], tmp_path: Path
):
    shutil.copytree(busy[0], tmp_path / "store")
    deleted = names(gc.delete_garbage(Store(tmp_path / "store"), older_than=0))
    assert [found for found in deleted if found[0] == "artifact"] == [
        ("artifact", "damaged"),
        ("artifact", "spare"),
    ]


@given(data=st.data())
@settings(deadline=None, max_examples=120)
def test_any_record_that_is_damaged_stops_it_before_it_deletes_anything(
    busy: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("damaged") / "store"
    shutil.copytree(busy[0], folder)
    name = data.draw(st.sampled_from(busy[1]))
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(
        data.draw(
            st.one_of(
                st.integers(0, len(whole.rstrip()) - 1).map(lambda end: whole[:end]),
                st.sampled_from([b"null", b"3", b"[]", b'"x"', b"{}", b"\0" * 40, b"\xff\xfe"]),
            )
        )
    )
    before = snapshot(folder)
    with pytest.raises(ValueError, match="; restore it, or") as refused:
        gc.delete_garbage(Store(folder), older_than=0)
    assert f"{folder}/{name} " in str(refused.value)
    assert snapshot(folder) == before
    with pytest.raises(ValueError, match="; restore it, or"):
        gc.find_garbage(Store(folder), older_than=0)
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("format", 3, "format must be 1 or 2 for this version, got 3"),
        ("results", 3, "results must be a key or null, got 3"),
        ("artifacts", "dataset", 'artifacts must be a list of keys, got "dataset"'),
        ("artifacts", ["dataset-01"], 'artifacts must be a list of keys, got \\["dataset-01"\\]'),
        (PRUNED, {}, "let_go must be a list of keys, got {}"),
        ("config", "demo", 'config must be an object, got "demo"'),
        ("name", None, "name must be text, got null"),
    ],
)
def test_a_record_of_other_types_or_of_a_later_format_stops_it(
    store: Store, field: str, value: Any, told: str
):
    note_run(store, make(store, "made"))
    path = store.state / "runs" / "r.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    before = snapshot(store.state)
    with pytest.raises(RecordError, match=rf"runs/r\.json .*{told}"):
        gc.delete_garbage(store, older_than=0)
    assert snapshot(store.state) == before


def test_what_a_record_names_stays_whatever_its_config_says(store: Store):
    """gc does not interpret configs: one of an older version keeps its artifacts."""
    made = make(store, "made")
    note_run(store, made)
    path = store.state / "runs" / "r.json"
    config = {"field_of_long_ago": 7, "methods": ["/nowhere/mine.py:Own"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "config": config}))
    assert gc.delete_garbage(store, older_than=0) == []


def test_a_pin_of_unknown_content_stops_it_until_its_holder_must_be_dead(store: Store):
    make(store, "made")
    store.files.put("pins/run.json", b"")
    with pytest.raises(RecordError, match=r"pins/run\.json .*no lease"):
        gc.delete_garbage(store, older_than=0)
    make_old(store.state / "pins" / "run.json")
    assert names(gc.delete_garbage(store, older_than=0)) == [("artifact", "made")]


@pytest.mark.parametrize("place", ["runs", "runs/r.json", "manifests", "pins", "accepted"])
def test_records_behind_a_link_that_leads_nowhere_are_unknown_not_absent(
    store: Store, tmp_path: Path, place: str
):
    note_run(store, make(store, "made"))
    path = store.state / place
    if path.exists():
        path.rename(store.state.with_name(f"{store.state.name}-elsewhere"))
    path.symlink_to("/nowhere")
    with pytest.raises(OSError, match="leads nowhere"):
        gc.delete_garbage(store, older_than=0)
    assert (store.state / "artifacts" / step_of("made").key / "attempts").is_dir()


def test_a_listing_of_sources_that_is_damaged_stops_it(store: Store):
    source = store.save_source({"a.py": b"a"})
    note_run(store, make(store, "made", source=source))
    (store.state / "sources" / source).write_text("{")
    before = snapshot(store.state)
    with pytest.raises(ValueError, match="other bytes than its name"):
        gc.delete_garbage(store, older_than=0)
    assert snapshot(store.state) == before


def test_a_listing_that_fails_stops_it_wherever_it_does(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store(f"{server.uri}/store")
    raw = make(store, "raw")
    record = record_of(make(store, "results", raw).key)
    store.files.put("runs/r.json", json.dumps(record).encode())
    make(store, "spare")
    bucket = server.store.bucket("testing")

    def content() -> dict[str, bytes]:
        names = (name for name in bucket.names if "/gc" not in name and "/clock/" not in name)
        return {name: bucket.objects[name].data for name in names}

    module = "gcs.api" if server.scheme == "gs" else "s3.api"
    # Pages of two names, so that some fail in the middle of a listing.
    monkeypatch.setattr(f"tests.{module}.MAX_PAGE", 2)
    before = content()
    server.clear()
    gc.find_garbage(Store(f"{server.uri}/store"), older_than=0)
    num_lists = server.requests()["list"]["requests"]
    assert num_lists > 10
    for skip in range(num_lists):
        server.fail(Rule(action="answer", verb="list", status=403, skip=skip, times=None))
        with pytest.raises(OSError, match=r"Forbidden|403"):
            gc.delete_garbage(Store(f"{server.uri}/store"), older_than=0)
        server.clear()
        assert content() == before, skip
    deleted = names(gc.delete_garbage(Store(f"{server.uri}/store"), older_than=0))
    assert [found for found in deleted if found[0] == "artifact"] == [("artifact", "spare")]


def test_error_while_it_hides_a_manifest_leaves_whole_artifacts(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    every = [make(store, name) for name in ("one", "two", "three")]
    with monkeypatch.context() as failing:
        fail(failing, "unlink", STALE, when=lambda path: "manifests" in path)
        with pytest.raises(OSError, match="Stale"):
            gc.delete_garbage(store, older_than=0)
    assert all(store.find(made.key) is not None for made in every)
    assert len(gc.delete_garbage(store, older_than=0)) == 3
    assert list((store.state / "aside").iterdir()) == []


def test_what_is_left_when_it_is_killed_has_its_whole_history(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    chain = [make(store, "0")]
    for i in range(1, 6):
        chain.append(make(store, str(i), *chain))
    victim = chain[2].key
    with monkeypatch.context() as failing:
        fail(failing, "unlink", STALE, when=lambda path: f"manifests/dataset/{victim}" in path)
        with pytest.raises(OSError, match="Stale"):
            gc.delete_garbage(store, older_than=0)
    assert {made.key for made in store.artifacts()} == {made.key for made in chain[:3]}


def test_stopped_so_long_that_a_run_pinned_meanwhile_it_puts_everything_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    made = make(store, "made")
    hide = store.files.compare_and_delete

    def slow(name: str, content: bytes) -> bool:
        if name != manifest_name(made.key):
            return hide(name, content)
        # A run waits for the lease, takes it since it lapsed, and pins; then gc goes on.
        text = store.volatile.read(GC_LEASE)
        assert store.volatile.compare_and_delete(GC_LEASE, text)
        with hold_lease(store.volatile, GC_LEASE):
            pass
        return hide(name, content)

    monkeypatch.setattr(store.files, "compare_and_delete", slow)
    with pytest.raises(RuntimeError, match="put everything back"):
        gc.delete_garbage(store, older_than=0)
    assert store.find(made.key) is not None
    assert store.quarantined() == {}


NAMES = [f"data {i}" for i in range(6)]
ROUNDS = 40


def _study(root: str, seed: int, ready, told) -> None:
    """Makes or finds artifacts, and looks whether those it found stay while it relies on them."""
    store, draws, hits, lost = Store(root), random.Random(seed), 0, []
    ready.wait()
    for i in range(ROUNDS):
        with store.pin_run(f"run-{seed}-{i}") as pin:
            found = []
            for name in draws.sample(NAMES, 3):
                pin.add(step_of(name).key)
                hit = store.find(step_of(name).key)
                hits += hit is not None
                found.append(hit or make(store, name))
            for _ in range(3):
                time.sleep(0.003)
                fresh = Store(root)
                lost += [one.key for one in found if fresh.find(one.key) is None]
                lost += [one.key for one in found if not (one.path / "a.txt").exists()]
    told.put((hits, lost))


@pytest.mark.slow
def test_beside_running_studies_no_hit_is_ever_lost(store: Store):
    ready, told = SPAWN.Barrier(3), SPAWN.Queue()
    studies = [
        SPAWN.Process(target=_study, args=(str(store.state), i, ready, told)) for i in (1, 2)
    ]
    for study in studies:
        study.start()
    ready.wait()
    deleted = 0
    while any(study.is_alive() for study in studies) and told.qsize() < 2:
        deleted += len(gc.delete_garbage(store, older_than=0))
    outcomes = [told.get(timeout=60) for _ in studies]
    for study in studies:
        study.join()
    assert [lost for _, lost in outcomes] == [[], []]
    assert sum(hits for hits, _ in outcomes) > 10, "no hit was at stake"
    assert deleted > 10, "gc took nothing"


def test_what_old_jobs_told_goes_and_a_young_one_may_wait_for_its_turn(tmp_path: Path):
    store = Store(tmp_path)
    for name in ("old", "young"):
        store.files.put(f"jobs/{name}/work", b"work")
    week = time.time() - 8 * 86400
    for path in (tmp_path / "jobs" / "old" / "work", tmp_path / "jobs" / "old"):
        os.utime(path, (week, week))
    (found,) = [g for g in gc.delete_garbage(store, older_than=0) if g.sort == "job"]
    assert found.name == "old"
    assert store.files.folders("jobs") == ["young"]


def test_settled_journals_go_when_old(store: Store):
    for name in ("old", "young"):
        store.node_local.put(f"runs/ended/{name}.jsonl", b"{}")
    day = time.time() - 86400
    os.utime(store.state / "runs/ended/old.jsonl", (day, day))
    found = gc.delete_garbage(store, older_than=3600)
    assert [g.name for g in found if g.sort == "journal"] == ["old.jsonl"]
    assert [*store.node_local.listing("runs/ended")] == ["young.jsonl"]


def test_files_that_a_run_lets_go_of_go_and_their_manifest_stays(store: Store):
    raw = make(store, "raw")
    checkpoint = make(store, "checkpoint", raw)
    scores = make(store, "scores", checkpoint)
    note_run(store, scores)
    path = store.state / "runs" / "r.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {PRUNED: [checkpoint.key]}))
    assert names(gc.find_garbage(store, older_than=0)) == [("files", "checkpoint")]
    assert store.find(checkpoint.key) is not None
    assert gc.find_garbage(store, older_than=DAY) == []
    with store.pin_run("other") as pin:
        pin.add(checkpoint.key)
        assert gc.delete_garbage(store, older_than=0) == []
    assert names(gc.delete_garbage(store, older_than=0)) == [("files", "checkpoint")]
    assert store.find(checkpoint.key) is None
    gone = store.find_pruned(checkpoint.key)
    assert gone is not None
    assert gone.as_input == checkpoint.as_input
    assert list(verify_artifact(store, checkpoint.key)) == []
    assert store.find(raw.key)
    assert store.find(scores.key)
    assert gc.delete_garbage(store, older_than=0) == []
    again = make(store, "checkpoint", raw)
    assert store.find(again.key) is not None
    assert store.find_pruned(again.key) is None


def test_what_another_run_keeps_is_not_let_go(store: Store):
    checkpoint = make(store, "checkpoint")
    note_run(store, make(store, "scores", checkpoint))
    lets = record_of(None, **{PRUNED: [checkpoint.key]})
    (store.state / "runs" / "s.json").write_text(json.dumps(lets))
    keeps = record_of(None, artifacts=[checkpoint.key], **{PRUNED: []})
    (store.state / "runs" / "t.json").write_text(json.dumps(keeps))
    assert gc.find_garbage(store, older_than=0) == []


def requests_under_its_lease(folder: Path, artifacts: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns how often gc asks a store of some artifacts while all runs wait for its lease."""
    store, count, holds = Store(folder), [0], [False]
    for number in range(artifacts):
        make(store, f"cell {number}")
    note_run(store, next(iter(store.artifacts())))

    @contextlib.contextmanager
    def watched_lease(*args: Any, **options: Any) -> Iterator[Any]:
        with hold_lease(*args, **options) as lease:
            holds[0] = True
            yield lease
            holds[0] = False

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            count[0] += holds[0]
            return method(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(gc, "hold_lease", watched_lease)
        for name in ("read", "listing", "folders", "stat", "total_stat", "walk"):
            patch.setattr(Disk, name, counted(getattr(Disk, name)))
        assert gc.delete_garbage(store, older_than=7 * DAY) == []
    return count[0]


def test_runs_wait_no_longer_for_gc_in_a_larger_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few = requests_under_its_lease(tmp_path / "few", 3, monkeypatch)
    many = requests_under_its_lease(tmp_path / "many", 40, monkeypatch)
    assert few == many < 30


class MeetingDisk(Disk):
    """A disk whose reads below some names wait for each other, two by two."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meetings = {
            part: threading.Barrier(2, timeout=60) for part in ("/history/", "manifests/", "runs/")
        }

    def read(self, name: str) -> bytes:
        for part, meeting in self.meetings.items():
            if part in name:
                meeting.wait()
        return super().read(name)


def test_what_was_read_is_forgotten_with_its_artifact(tmp_path: Path):
    store = Store(tmp_path / "store")
    kept, spare = make(store, "kept"), make(store, "spare")
    note_run(store, kept)
    for artifact in (kept, spare):
        os.utime(artifact.path / "a.txt", (1, 1))  # At rest, so that its digest is remembered.
    subprocess.run([sys.executable, "-c", READ, store.uri, kept.key, spare.key], check=True)
    (memory,) = store.state.glob("first_reads.*.sqlite")
    # As another machine left it that has this disk at another place.
    other = store.state / "first_reads.elsewhere.sqlite"
    shutil.copyfile(memory, other)
    with contextlib.closing(sqlite3.connect(other)) as rows, rows:
        root = os.fsencode(store.uri)
        rows.execute("UPDATE files SET path = CAST(replace(path, ?, '/mnt/x') AS BLOB)", [root])
    gc.delete_garbage(store, older_than=0.0)
    for place in (memory, other):
        with contextlib.closing(sqlite3.connect(place)) as rows:
            ((path,),) = rows.execute("SELECT path FROM files").fetchall()
        assert kept.key in os.fsdecode(path)


READ = """
import sys
from infra.store.store import Store
for key in sys.argv[2:]:
    Store(sys.argv[1]).get(key).path
"""


def test_manifests_in_a_circle_stop_it(tmp_path: Path):
    store = Store(tmp_path / "store")
    first = make(store, "first")
    second = make(store, "second", first)
    name = store.state / manifest_name(first.key)
    values = json.loads(name.read_text())
    values["inputs"] = {"data": {"key": second.key, "content": second.manifest.content}}
    name.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="circle, got") as refused:
        gc.delete_garbage(store, older_than=0.0)
    assert first.key in str(refused.value)
    assert (first.path / "a.txt").exists()


def test_histories_manifests_and_records_are_read_several_at_a_time(store: Store):
    for name in ("first", "second"):
        make(store, name)
        record = json.dumps(record_of(None)).encode()
        store.files.put(f"runs/{name}.json", record)
    again = Store(store.uri)
    again.files = again.volatile = MeetingDisk(store.state)
    # One after the other, the first read would wait for ever, and its barrier break.
    assert names(gc.find_garbage(again, older_than=0)) == [
        ("artifact", "first"),
        ("artifact", "second"),
    ]


def test_a_snapshot_holds_until_something_is_deleted(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store(f"{server.uri}/store")
    spare = make(store, "spare")
    view = store.snapshot()
    server.clear()
    assert store.snapshot(view) is view
    assert view.snapshot() is view
    assert "list" not in server.requests()
    with store.pin_run("run-1") as pin:
        pin.add(spare.key)
        assert gc.delete_garbage(store, older_than=0) == []
        assert store.snapshot(view) is view
    assert names(gc.delete_garbage(store, older_than=0)) == [("artifact", "spare")]
    assert view.find(spare.key) is not None  # As it was: who relied on it would lack the files.
    later = store.snapshot(view)
    assert later.find(spare.key) is None
    assert store.snapshot(later) is later


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_snapshot_from_the_middle_of_a_gc_is_handed_on_to_nobody(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store(f"{server.uri}/store")
    spare = make(store, "spare")
    views: list[Store] = []
    hide = store.files.compare_and_delete

    def hide_after_a_listing(name: str, content: bytes) -> bool:
        if name != manifest_name(spare.key):
            return hide(name, content)
        views.append(store.snapshot())
        hidden = hide(name, content)
        if is_killed:
            raise KeyboardInterrupt
        return hidden

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(store.files, "compare_and_delete", hide_after_a_listing)
        gc.delete_garbage(store, older_than=0)
    (view,) = views
    assert view.find(spare.key) is not None
    later = store.snapshot(view)
    assert later.find(spare.key) is None
    assert (store.snapshot(later) is later) == (not is_killed)


_KILLED_WHILE_IT_LINKS = """
import os, sys
from pathlib import Path
from infra.store.disk import Disk
from infra.store.manifest import File
os.replace = lambda *names: os.kill(os.getpid(), 9)
file = File(sha256="0" * 64, size=1)
Disk(Path(sys.argv[1])).link("artifacts/a.txt", "artifacts/new/a.txt", file)
"""


def test_a_link_whose_process_is_killed_leaves_nothing_beside_its_target(tmp_path: Path):
    store = Store(tmp_path)
    store.files.put("artifacts/a.txt", b"a")
    command = [sys.executable, "-c", _KILLED_WHILE_IT_LINKS, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -9
    assert list((tmp_path / "artifacts" / "new").iterdir()) == []
    (left,) = (tmp_path / "partial").iterdir()
    assert gc.delete_garbage(store, older_than=0) == []  # Its process may be at it.
    make_old(tmp_path / "partial")
    assert names(gc.delete_garbage(store, older_than=0)) == [("partial", left.name)]
    assert not left.exists()
