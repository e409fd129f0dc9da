"""`parcel gc`: tells first, deletes on request, and refuses in one line."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store, manifest_name
from tests.infra.store.test_gc import record_of


def make(store: Store, name: str, size: int) -> Artifact:
    step = Recipe(kind="dataset", name=name, config=name)
    with store.lock(step.key):
        attempt = Attempt(store, step)
        (attempt.path / "a.bin").write_bytes(b"x" * size)
        made = attempt.commit({})
    then = time.time() - 9 * 86400
    os.utime((store.state / manifest_name(step.key)), (then, then))
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    kept = make(store, "kept", 3)
    make(store, "spare", 2_500_000)
    (store.state / "runs").mkdir()
    (store.state / "runs" / "r.json").write_text(json.dumps(record_of(kept.key)))
    return store


def test_it_tells_first_and_deletes_on_request(store: Store, parcel):
    spare = next(made for made in store.artifacts() if made.manifest.name == "spare")
    line = f"artifact {spare.key} (spare): 2.5 MB, 9.0 days old\n"
    code, out, _ = parcel("gc", "--store", store.state)
    total = "1 artifact: 2.5 MB; nothing is deleted without --delete\n"
    assert (code, out) == (0, f"would delete {line}would delete {total}")
    assert spare.path.exists()
    told = "would delete nothing: 0 bytes\n"
    assert parcel("gc", "--store", store.state, "--older-than", "30d") == (0, told, "")
    code, out, _ = parcel("gc", "--store", store.state, "--delete")
    assert (code, out) == (0, f"deleted {line}deleted 1 artifact: 2.5 MB\n")
    assert not spare.path.exists()
    assert [made.manifest.name for made in store.artifacts()] == ["kept"]


def test_wrong_requests_are_one_line(store: Store, parcel):
    code, _, err = parcel("gc", "--store", store.state, "--older-than", "week")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search("--older-than .* 7d, got 'week'", err)
    (store.state / "store.json").write_text('{"format": 7}')
    code, _, err = parcel("gc", "--store", store.state)
    assert (code, err.count("\n")) == (2, 1)
    assert "has format 7, and this version understands 3" in err


@pytest.mark.parametrize("text", ["", "{", '{"results": null', "[]"])
def test_a_record_that_cannot_be_read_is_one_line_and_nothing_goes(store: Store, parcel, text: str):
    record = store.state / "runs" / "r.json"
    record.write_text(text)
    for words in (["gc", "--delete", "--older-than", "0s"], ["gc"], ["results", "r"]):
        code, _, err = parcel(*words, "--store", store.state)
        assert (code, len({*err.splitlines()})) == (1, 1), words
        assert err.startswith(f"parcel: {record} cannot be read: "), words
        assert "; restore it, or move it out of the store: gc then deletes" in err, words
    assert len(store.keys()) == 2
    assert all(store.has_all_files(artifact) for artifact in store.artifacts())
