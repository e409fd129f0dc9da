"""A file whose bytes changed behind its artifact's back is found when it is first read."""

import os
import sqlite3
import subprocess
import sys
import types
from pathlib import Path

import pytest

from infra.store import digest_check
from infra.store.digest_check import FIRST_READS, DamagedArtifactError
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from tests.gcs.server import GCS

STEP = Recipe(kind="dataset", name="prepare toy", config={"px": 7}, code="c0de", seed=3)
FILES = {"model.json": b'{"depth": 2}', "part/records.tfrecord": bytes(range(256)) * 40}


def make(store: Store) -> Artifact:
    attempt = Attempt(store, STEP)
    for name, data in FILES.items():
        (attempt.path / name).parent.mkdir(exist_ok=True)
        (attempt.path / name).write_bytes(data)
    return attempt.commit({})


def flip(path: Path, at: int) -> None:
    """Flips one bit, and leaves size and time of change as they were, as a disk does."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "read"),
    [("model.json", "path"), ("model.json", "uri"), ("part/records.tfrecord", "path")],
)
def test_a_flipped_bit_is_found_named_and_set_aside(tmp_path: Path, name: str, read: str):
    store = Store(tmp_path)
    made = make(store)
    flip(tmp_path / made.folder / name, 5)
    assert store.find(STEP.key) is not None  # Its size is right.
    with pytest.raises(DamagedArtifactError) as refused:
        getattr(store.get(STEP.key), read)
    message = str(refused.value)
    assert message.startswith(f"{name} of {STEP.key} (prepare toy) has other bytes")
    assert "\n" not in message
    # What is damaged stays to be looked at, and the step that made it is missing again.
    assert (tmp_path / made.folder / f"{name}.damaged").exists()
    assert store.find(STEP.key) is None
    again = make(store)
    assert (again.path / name).read_bytes() == FILES[name]
    assert again.manifest.content == made.manifest.content


def test_files_with_checksums_that_are_read_in_ranges_are_left_to_their_readers(tmp_path: Path):
    store = Store(tmp_path)
    made = make(store)
    flip(tmp_path / made.folder / "part/records.tfrecord", 5)
    artifact = store.get(STEP.key)
    assert Path(artifact.uri).is_dir()
    with pytest.raises(DamagedArtifactError, match="has other bytes"):
        _ = artifact.path  # Here it would be read whole.


def test_what_a_reader_of_ranges_finds_is_set_aside_if_its_digest_agrees(tmp_path: Path):
    store = Store(tmp_path)
    made = make(store)
    shard = tmp_path / made.folder / "part/records.tfrecord"
    made.check_named(f"record 7 of {shard} is damaged")  # It is not, so nothing happens.
    flip(shard, 5)
    made.check_named(f"record 7 of {tmp_path}/other/records.tfrecord is damaged")
    assert store.find(STEP.key) is not None
    with pytest.raises(DamagedArtifactError, match=r"^part/records\.tfrecord of dataset-"):
        made.check_named(f"step: record 7 of {shard} is damaged; prepare it again.")
    assert store.find(STEP.key) is None


READ = """
import sys
import types
from infra.store.store import Store
print(Store(sys.argv[1]).get(sys.argv[2]).path)
"""


def test_a_file_is_read_once_on_a_machine_and_again_when_it_changed(tmp_path: Path):
    store = Store(tmp_path)
    made = make(store)
    for name in FILES:  # At rest: the time of a file that was just written identifies nothing.
        os.utime(tmp_path / made.folder / name, (1, 1))

    def read() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", READ, str(tmp_path), STEP.key]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert read().returncode == 0
    (place,) = tmp_path.glob(f"{FIRST_READS}.*")
    with sqlite3.connect(place) as memory:
        rows = memory.execute("SELECT path, sha256 FROM files").fetchall()
        assert {Path(os.fsdecode(path)).name for path, _ in rows} == {
            "model.json",
            "records.tfrecord",
        }
        # Whatever it remembers is believed while the file is as it was: so nothing is read again.
        memory.execute("UPDATE files SET sha256 = ?", ["0" * 64])
        # But not of another disk in its place, which may have the same inodes and times.
        size = len(FILES["model.json"])
        memory.execute("UPDATE files SET inode = '1' || inode WHERE size = ?", [size])
    assert "part/records.tfrecord of" in read().stderr
    make(store)
    assert read().returncode == 0


def test_of_two_that_find_a_flip_both_say_what_became_of_it(tmp_path: Path):
    made = make(Store(tmp_path))
    folder = tmp_path / made.folder
    sayings = {digest_check.set_aside(folder, "model.json", is_copy=False) for _ in range(2)}
    assert len(sayings) == 1
    assert "model.json.damaged" in sayings.pop()


def test_a_damaged_copy_of_what_a_bucket_holds_is_fetched_again(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "state"))
    store = Store(f"{server.uri}/first")
    make(store)
    # Another process, since each checks what it reads once.
    code = "import sys; from infra.store.store import Store; "
    code += "print(Store(sys.argv[1]).get(sys.argv[2]).path)"
    command = [sys.executable, "-c", code, store.uri, STEP.key]
    folder = Path(subprocess.check_output(command, text=True).strip())
    flip(folder / "model.json", 5)
    with pytest.raises(DamagedArtifactError, match="fetches it again"):
        _ = store.get(STEP.key).path
    assert (store.get(STEP.key).path / "model.json").read_bytes() == FILES["model.json"]


@pytest.mark.parametrize("read", ["path", "check_named"])
def test_what_is_damaged_in_a_bucket_is_set_aside_there(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
):
    monkeypatch.setattr(
        "infra.store.objects.object_client.time", types.SimpleNamespace(sleep=lambda _: None)
    )
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "state"))
    store = Store(f"{server.uri}/first")
    made = make(store)
    name = f"{made.folder}/model.json"
    data = bytearray(store.files.read(name))
    data[5] ^= 1
    store.files.put(name, bytes(data))
    # A machine that has no copy.
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "other"))
    store = Store(f"{server.uri}/first")
    artifact = store.get(STEP.key)
    message = f"{artifact.uri}/model.json is no JSON"
    with pytest.raises(DamagedArtifactError, match=r"^model\.json of .*model\.json\.damaged"):
        _ = artifact.path if read == "path" else artifact.check_named(message)
    assert store.files.read(f"{name}.damaged") == bytes(data)
    assert store.find(STEP.key) is None
    again = make(store)
    assert (again.path / "model.json").read_bytes() == FILES["model.json"]
