"""The store: commits are all or nothing, hits are verified, racers cannot both win."""

import dataclasses
import json
import multiprocessing
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.processes.identity import ProcessIdentity
from infra.store.history import AttemptNote
from infra.store.manifest import Input, Manifest, Recipe
from infra.store.store import Artifact, Attempt, Store, canonical_uri, manifest_name
from tests.infra.store.faults import BROKEN, STALE, fail, journal

STEP = Recipe(kind="dataset", name="prepare toy", config={"px": 7}, code="c0de", seed=3)


def make(store: Store, step: Recipe = STEP, text: str = "hello") -> Artifact:
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
    with pytest.raises(KeyError, match="no artifact"):
        store.get(STEP.key)


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


def test_attempts_count_once_for_an_artifact_that_is_made_again(tmp_path: Path):
    store = Store(tmp_path)
    first = make(store)
    here = ProcessIdentity.of_this_process()
    notes = [
        AttemptNote(id=id, started="", holder=here, device_seconds=cost)
        for id, cost in [
            ("failed", 5.0),
            (first.manifest.attempt, 7.0),
            ("lost", 3.0),
            ("own", 9.0),
        ]
    ]
    assert store.cost_of_failures(STEP.key, notes, "own") == 3.0
    assert store.cost_of_failures(STEP.key, notes[:1], "own") == 5.0


def _race(root: str, text: str, barrier, won) -> None:
    attempt = Attempt(Store(root), STEP)
    (attempt.path / "a.txt").write_text(text)
    barrier.wait()
    won.put((text, attempt.commit({}).path.joinpath("a.txt").read_text()))


@pytest.mark.slow
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


@pytest.mark.parametrize("uri", ["gcs://bucket/x", "s3://", "gs://b/x", "gs://Bucket"])
def test_what_is_no_store_is_refused_in_one_line(uri: str):
    with pytest.raises(ValueError, match=f"store .*gs://bucket/prefix .*'{uri}'"):
        Store(uri)


@pytest.mark.slow
@given(st.text(max_size=40))
def test_text_that_is_no_manifest_is_refused(text: str):
    with pytest.raises(ValueError, match="the manifest"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("files", {"x": {"sha256": "0" * 64, "size": -1}}, "a file must have a size and 64 hex"),
        (
            "files",
            {"x": {"sha256": "0" * 64, "size": "1"}},
            r"files\.x\.size must be a whole number",
        ),
        ("files", {"x": {"sha256": "../../y", "size": 1}}, "64 hex digits, got 1 and '../../y'"),
        ("inputs", {"a": {"key": STEP.key, "content": "x"}}, "inputs must be other artifacts"),
        ("seconds", "long", "seconds must be a number, got 'long'"),
        ("seconds", -1, "seconds must be a time"),
        ("counts", {"score": None}, r"counts\.score must be .* got None"),
        ("attempts", [{"id": 5}], r"attempts\[0\]\.id must be a text, got 5"),
        ("seed", True, "seed must be"),
    ],
)
def test_every_field_of_a_manifest_has_its_type(tmp_path: Path, field: str, value, message: str):
    values = json.loads(make(Store(tmp_path)).manifest.to_json())
    assert Manifest.from_json(json.dumps(values)).key == STEP.key
    with pytest.raises(ValueError, match=r"^the manifest: ") as refused:
        Manifest.from_json(json.dumps(values | {field: value}))
    assert re.search(message, str(refused.value))


# What a failing disk may do.


@pytest.mark.parametrize("error", [STALE, BROKEN])
def test_error_of_the_disk_is_no_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int):
    made = make(Store(tmp_path))
    with monkeypatch.context() as failing:
        fail(failing, "stat", error, when=lambda path: path.endswith("part/a.txt"))
        with pytest.raises(OSError, match=r"a\.txt"):
            Store(tmp_path).find(STEP.key)
    with Store(tmp_path).lock(STEP.key):
        pass  # What was set aside would be swept now.
    found = Store(tmp_path).find(STEP.key)
    assert found is not None
    assert found.manifest == made.manifest


def test_manifest_that_cannot_be_opened_is_no_miss(tmp_path: Path):
    store = Store(tmp_path)
    make(store)
    place = store.state / manifest_name(STEP.key)
    place.rename(tmp_path / "kept")
    place.symlink_to(place)  # A loop: an error of the system, and not "not found".
    for look in (store.find, store.get):
        with pytest.raises(OSError, match="symbolic links"):
            look(STEP.key)


def test_damage_is_not_repaired_by_looking(tmp_path: Path):
    store = Store(tmp_path)
    made = make(store)
    (made.path / "part" / "a.txt").rename(tmp_path / "kept")
    assert store.find(STEP.key) is None
    (tmp_path / "kept").rename(made.path / "part" / "a.txt")  # The disk has it after all.
    found = store.find(STEP.key)
    assert found is not None
    assert found.path == made.path


def test_damaged_artifact_is_set_aside_whole_when_its_step_commits(tmp_path: Path):
    store = Store(tmp_path)
    with store.lock(STEP.key):
        old = make(store)
    (old.path / "other.txt").write_text("what is left of it")
    (old.path / "part" / "a.txt").unlink()
    with store.lock(STEP.key):
        new = make(store, text="again")
    with store.lock(STEP.key):
        pass
    assert store.get(STEP.key).path == new.path
    assert [kept.manifest for kept in store.quarantined(STEP.key).values()] == [old.manifest]
    assert (old.path / "other.txt").exists()
    assert [found.path for found in store.artifacts()] == [new.path]


def test_lost_reply_to_the_manifests_creation_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as failing:
        fail(failing, "link", BROKEN, when=lambda path: STEP.key in path, after=True)
        made = make(Store(tmp_path))
    found = Store(tmp_path).find(STEP.key)
    assert found is not None
    assert found.manifest == made.manifest


def test_repeated_creation_that_finds_itself_is_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # NFS sends the call again when its reply is lost, and the server answers "exists".
    with monkeypatch.context() as failing:
        fail(failing, "link", 17, when=lambda path: STEP.key in path, after=True)
        made = make(Store(tmp_path))
    assert (made.path / "part" / "a.txt").read_text() == "hello"


def test_creation_that_fails_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as failing:
        fail(failing, "link", BROKEN, when=lambda path: path.endswith(manifest_name(STEP.key)))
        with pytest.raises(OSError, match=STEP.key):
            make(Store(tmp_path))
    assert len(list(tmp_path.glob("artifacts/*/attempts/*/part/a.txt"))) == 1


def test_data_are_on_the_disk_before_their_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store(tmp_path)
    with monkeypatch.context() as watched:
        noted = journal(watched)
        made = make(store)
    link = noted.index(("link", (store.state / manifest_name(STEP.key))))
    before = [path for what, path in noted[:link] if what == "sync"]
    way = [made.path / "part" / "a.txt", made.path / "part", made.path, *made.path.parents]
    for path in way[: way.index(tmp_path) + 1]:
        assert path in before, path
    assert before[-1].parent == tmp_path / "partial"  # The manifest's own bytes.
    assert ("sync", (store.state / manifest_name(STEP.key)).parent) in noted[link:]


def test_link_is_no_file_of_an_artifact(tmp_path: Path):
    attempt = Attempt(Store(tmp_path), STEP)
    (attempt.path / "shards").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="files only, got 'shards'"):
        attempt.commit({})


# Records that lead elsewhere, or cannot be read.


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("folder", "../../other", "folder must be attempts/<id>, got '../../other'"),
        ("folder", "/etc", "folder must be"),
        (
            "files",
            {"../a.txt": {"sha256": "0" * 64, "size": 1}},
            r"plain path .* got '\.\./a\.txt'",
        ),
        ("files", {"/etc/passwd": {"sha256": "0" * 64, "size": 1}}, "plain path"),
        ("files", {"a//b": {"sha256": "0" * 64, "size": 1}}, "plain path"),
        ("inputs", {"raw": {"key": "../../x", "content": "0"}}, r"got '\.\./\.\./x'"),
        ("key", "../dataset-0123456789abcdef-01234567", "key must be <kind>-"),
        ("kind", "checkpoint", "key must begin with its kind 'checkpoint'"),
    ],
)
def test_manifest_that_leaves_the_store_is_refused(
    tmp_path: Path, part: str, value: object, told: str
):
    store = Store(tmp_path)
    make(store)
    place = store.state / manifest_name(STEP.key)
    place.write_text(json.dumps({**json.loads(place.read_text()), part: value}))
    for look in (store.find, store.get):
        with pytest.raises(ValueError, match=told) as caught:
            look(STEP.key)
        assert str(place) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_manifest_that_leaves_the_store_is_not_written(tmp_path: Path):
    step = dataclasses.replace(STEP, inputs={"raw": Input(key="../x", content="0")})
    with pytest.raises(ValueError, match="key must be <kind>-"):
        make(Store(tmp_path), step)


@pytest.mark.parametrize("key", ["", "../x", "/etc/passwd", "dataset-12", "dataset/../../x"])
def test_key_of_another_form_is_refused(tmp_path: Path, key: str):
    store = Store(tmp_path)
    for use in (store.get, store.find, manifest_name):
        with pytest.raises(ValueError, match="key must be <kind>-"):
            use(key)
    with pytest.raises(ValueError, match="key must be <kind>-"), store.lock(key):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", "\0\0\0\0"])
def test_garbled_manifest_is_an_error_that_names_the_file(tmp_path: Path, text: str):
    store = Store(tmp_path)
    with store.lock(STEP.key):
        made = make(store)
    (store.state / manifest_name(STEP.key)).write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read: .*; restore it") as caught:
        store.find(STEP.key)
    assert str(store.state / manifest_name(STEP.key)) in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read"), store.lock(STEP.key):
        pass
    assert (made.path / "part" / "a.txt").exists()


def test_manifest_under_another_ones_name_is_refused(tmp_path: Path):
    store = Store(tmp_path)
    make(store)
    other = dataclasses.replace(STEP, seed=4).key
    (store.state / manifest_name(STEP.key)).rename(store.state / manifest_name(other))
    with pytest.raises(ValueError, match=f"it is the manifest of {STEP.key}"):
        store.get(other)


# The format.


def test_store_has_a_number(tmp_path: Path):
    Store(tmp_path)
    assert json.loads((tmp_path / "store.json").read_text()) == {"format": 3}
    Store(tmp_path)


@pytest.mark.parametrize("found", [1, 2, 4])
def test_store_of_another_format_is_refused_with_the_cure(tmp_path: Path, found: int):
    (tmp_path / "store.json").write_text(json.dumps({"format": found}))
    told = (
        f"has format {found}, and this version understands 3: name another folder, or use a "
        f"checkout of the version that made it."
    )
    with pytest.raises(ValueError, match=told):
        Store(tmp_path)


def test_artifacts_without_a_number_are_of_an_older_format(tmp_path: Path):
    (tmp_path / "artifacts" / STEP.key).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"format 1\b.* understands 3\b"):
        Store(tmp_path)


def _open(root: str, barrier, opened) -> None:
    barrier.wait()
    opened.put(make(Store(root)).key)


@pytest.mark.slow
def test_new_store_may_be_opened_by_many_at_once(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    barrier, opened = context.Barrier(4), context.Queue()
    openers = [
        context.Process(target=_open, args=(str(tmp_path / "new"), barrier, opened))
        for _ in range(4)
    ]
    for opener in openers:
        opener.start()
    assert {opened.get(timeout=30) for _ in openers} == {STEP.key}
    for opener in openers:
        opener.join()


# Looking things up.


def test_artifacts_of_one_identity_are_listed_newest_first(tmp_path: Path):
    store = Store(tmp_path)
    keys = [make(store, dataclasses.replace(STEP, code=code)).key for code in ("c1", "0d", "a0")]
    make(store, dataclasses.replace(STEP, seed=4))
    assert [found.key for found in store.artifacts_of_identity(STEP.identity)] == keys[::-1]
    assert store.artifacts_of_identity("checkpoint-0123456789abcdef") == []
    assert store.resolve(keys[1]).key == keys[1]


def test_artifacts_are_listed_by_kind(tmp_path: Path):
    store = Store(tmp_path)
    key = make(store, dataclasses.replace(STEP, kind="mask_codec")).key
    make(store)
    assert key.startswith("mask-codec-")
    assert [found.key for found in store.artifacts("mask_codec")] == [key]
    assert len(list(store.artifacts())) == 2
    assert manifest_name(key) == f"manifests/mask_codec/{key}.json"


def test_changed_manifest_is_read_again(tmp_path: Path):
    reader, writer = Store(tmp_path), Store(tmp_path)
    first = make(writer)
    assert reader.get(STEP.key).path == first.path
    (first.path / "part" / "a.txt").unlink()
    second = make(writer, text="again")
    assert reader.get(STEP.key).path == second.path != first.path


# Attempts that came to nothing.


def _begin(root: str) -> None:
    store = Store(root)
    with store.lock(STEP.key):
        (Attempt(store, STEP).path / "half.txt").write_text("half")
        os._exit(9)


def test_attempt_of_a_killed_process_is_swept_by_the_next_holder(tmp_path: Path):
    child = multiprocessing.get_context("spawn").Process(target=_begin, args=(str(tmp_path),))
    child.start()
    child.join(30)
    assert len(list(tmp_path.glob("artifacts/*/attempts/*"))) == 1
    with Store(tmp_path).lock(STEP.key):
        assert list(tmp_path.glob("artifacts/*/attempts/*")) == []


def test_failed_attempt_is_swept_by_the_next_holder(tmp_path: Path):
    store = Store(tmp_path)
    with store.lock(STEP.key):
        attempt = Attempt(store, STEP)
    assert attempt.path.exists()
    with store.lock(STEP.key):
        assert not attempt.path.exists()


@pytest.mark.parametrize(("error", "failed"), [(SystemExit(143), 0), (OSError("no space"), 1)])
def test_a_holder_that_is_told_to_stop_has_not_failed(
    tmp_path: Path, error: BaseException, failed: int
):
    def hold() -> None:
        with store.lock(STEP.key):
            Attempt(store, STEP)
            raise error

    store = Store(tmp_path)
    with pytest.raises(type(error)):
        hold()
    assert store.count_failures(STEP.key) == failed


def test_attempt_of_a_living_process_is_not_swept(tmp_path: Path):
    attempt = Attempt(Store(tmp_path), STEP)  # Its lease, if it had one, is lost.
    with Store(tmp_path).lock(STEP.key):
        assert attempt.path.exists()


@pytest.mark.parametrize("uri", ["", "s3:/bucket/x", "gs:bucket", "hdfs://host/x"])
def test_what_is_neither_a_folder_nor_a_bucket_is_refused(uri: str):
    with pytest.raises(ValueError, match=r"store .*gs://bucket/prefix"):
        canonical_uri(uri)


@pytest.mark.parametrize("text", ["", "null", "3", '{"format": "3"}'])
def test_a_damaged_number_of_the_layout_is_told_with_what_to_write(text: str, tmp_path: Path):
    Store(tmp_path)
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(ValueError, match=r'store\.json is damaged: .*\{"format": \d\}'):
        Store(tmp_path)
