"""The store: commits are all or nothing, hits are verified, racers cannot both win."""

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.manifest import Input, Manifest, Step
from infra.store.store import Attempt, Store

STEP = Step(kind="dataset", name="prepare toy", config={"px": 7}, code="c0de", seed=3)


def make(store: Store, step: Step = STEP, text: str = "hello"):
    attempt = Attempt(store, step)
    (attempt.path / "part").mkdir()
    (attempt.path / "part" / "a.txt").write_text(text)
    attempt.counts["records"] = 5
    return attempt.commit({"prefect": {"flow_run_id": "f"}})


def test_committed_artifact_is_found_with_all_that_is_known_of_it(tmp_path: Path):
    store = Store(tmp_path)
    made = make(store)
    found = store.find(STEP.key)
    assert found is not None
    assert found.manifest == made.manifest
    assert (found.path / "part" / "a.txt").read_text() == "hello"
    assert found.manifest.counts == {"records": 5}
    assert found.manifest.files["part/a.txt"].size == 5
    assert found.manifest.environment["prefect"] == {"flow_run_id": "f"}
    assert [entry["id"] for entry in found.manifest.attempts] == [found.path.name]


def test_attempt_without_commit_is_never_found(tmp_path: Path):
    store = Store(tmp_path)
    attempt = Attempt(store, STEP)
    (attempt.path / "a.txt").write_text("half")
    assert store.find(STEP.key) is None
    with store.lock(STEP.key):
        assert not attempt.path.exists()


@pytest.mark.parametrize("damage", ["delete", "truncate"])
def test_damaged_artifact_is_a_miss_and_can_be_made_again(tmp_path: Path, damage: str):
    store = Store(tmp_path)
    file = make(store).path / "part" / "a.txt"
    file.unlink() if damage == "delete" else file.write_text("hel")
    assert store.find(STEP.key) is None
    make(store, text="hello again")
    found = store.find(STEP.key)
    assert found is not None
    assert (found.path / "part" / "a.txt").read_text() == "hello again"
    assert len(found.manifest.attempts) == 2


def _race(root: str, text: str, barrier, won) -> None:
    attempt = Attempt(Store(root), STEP)
    (attempt.path / "a.txt").write_text(text)
    barrier.wait()
    won.put((text, attempt.commit({}).path.joinpath("a.txt").read_text()))


def test_of_many_racers_one_wins_and_all_see_it(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    barrier, won = context.Barrier(5), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), str(i), barrier, won)) for i in range(5)
    ]
    for racer in racers:
        racer.start()
    seen = [won.get(timeout=30) for _ in racers]
    for racer in racers:
        racer.join()
    assert len({text for _, text in seen}) == 1
    assert len(list((tmp_path / "artifacts" / STEP.key / "attempts").iterdir())) == 1


def _hold(root: str, ready) -> None:
    with Store(root).lock(STEP.key) as scratch:
        (scratch / "progress").write_text("12")
        ready.set()
        signal.pause()


def test_lock_of_a_killed_process_is_free_and_its_progress_is_kept(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready))
    holder.start()
    assert ready.wait(30)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with Store(tmp_path).lock(STEP.key) as scratch:
        assert (scratch / "progress").read_text() == "12"


def test_stated_content_replaces_the_files_digest(tmp_path: Path):
    store = Store(tmp_path)
    attempt = Attempt(store, STEP)
    attempt.content = "abc"
    assert attempt.commit({}).manifest.content == "abc"


@given(
    field=st.sampled_from(["kind", "config", "code", "seed", "inputs"]),
    value=st.integers(4, 9),
)
def test_every_part_of_a_step_but_its_name_changes_its_key(field: str, value: int):
    changed: dict[str, object] = {
        "kind": "checkpoint",
        "config": {"px": 10 + value},
        "code": str(value),
        "seed": value,
        "inputs": {"data": Input(key="k", content=str(value))},
    }
    assert dataclasses.replace(STEP, **{field: changed[field]}).key != STEP.key
    assert dataclasses.replace(STEP, name=str(value)).key == STEP.key


def test_key_of_a_step_does_not_drift():
    # A new value here makes every artifact of every store anew: change it knowingly.
    assert STEP.key == "dataset-fd9acd1a39436a79-c0de"


def test_keys_with_equal_beginnings_are_told_apart(tmp_path: Path):
    store = Store(tmp_path)
    make(store)
    make(store, dataclasses.replace(STEP, seed=4))
    with pytest.raises(KeyError, match="unambiguous beginning"):
        store.resolve("dataset-")
    assert store.resolve(STEP.key[:16]).key == STEP.key
    for no_key in ("*", f"{STEP.key[:16]}*", str(tmp_path / "artifacts")):
        with pytest.raises(KeyError, match="matches: none"):
            store.resolve(no_key)


def test_remote_store_is_refused_in_one_line():
    with pytest.raises(ValueError, match="store must be a local folder, got 'gs://b/x'"):
        Store("gs://b/x")


@given(st.text(max_size=40))
def test_text_that_is_no_manifest_is_refused(text: str):
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json(text)
