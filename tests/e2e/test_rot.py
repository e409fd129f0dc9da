"""Bits that flip in a store: whatever file it is, no number is computed from it."""

import contextlib
import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from infra.store import digest_check
from infra.store.digest_check import DamagedArtifactError
from infra.store.store import Artifact, Store, manifest_name
from model.checkpoint.folder import params_of
from pipelines.records.dataset import Dataset
from tests.e2e.conftest import SMALLEST, Finished, parcel

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("one_server")]

FLIPS = {
    "corpus": "chartqa/ChartQA Dataset/train/png/000001.png",
    "tokenizer": "tokenizer.model",
    "mask codec": "mask_codec.npz",
    "prepare chartqa/train": "chartqa-00000-of-00002.tfrecord",
    "stage1 vanilla": "model.json",
    "intermediary vanilla": "params-00000-of-00001.safetensors",
    "evaluate": "predictions.jsonl",
    "chance": "chance.json",
}
"""Beginning of a step's name -> a file of its artifact; parameters are read in ranges."""


MADE = (
    *("corpus", "dataset", "screened", "tokenizer", "mask_codec", "checkpoint", "predictions"),
    *("scores", "chance", "results"),
)
"""Kinds of artifacts that the smallest study makes; raw files name what lies elsewhere."""


def flip(path: Path, at: int | None = None) -> None:
    """Flips one bit of a file and leaves its size and time of change as they were."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextlib.contextmanager
def flipped(path: Path, at: int | None = None) -> Iterator[None]:
    """Flips a bit as `flip` does, before this process has read the file; then it is whole again."""
    data, aside = path.read_bytes(), path.with_name(f"{path.name}.damaged")
    flip(path, at)
    digest_check._checked.clear()
    try:
        yield
    finally:
        if aside.exists():
            aside.rename(path)
        path.write_bytes(data)


@pytest.mark.parametrize("kind", MADE)
def test_a_flip_in_any_file_is_named_and_set_aside(smallest: Finished, kind: str):
    store = Store(smallest.store)
    files = [
        (artifact, name)
        for artifact in store.artifacts()
        if artifact.manifest.kind == kind
        for name, file in artifact.manifest.files.items()
        if file.size
    ]
    assert files
    for artifact, name in files:
        path = smallest.store / artifact.folder / name
        with flipped(path):
            with pytest.raises(DamagedArtifactError) as refused:
                _ = store.get(artifact.key).path
            who = f"{name} of {artifact.key} ({artifact.manifest.name}) has other bytes"
            assert str(refused.value).startswith(who)
            assert path.with_name(f"{path.name}.damaged").exists()
            assert store.find(artifact.key) is None  # So it is made again.
        assert store.find(artifact.key) is not None


def read_in_ranges(artifact: Artifact) -> None:
    """Reads all records or arrays of an artifact, as steps do, which never read it whole."""
    if artifact.manifest.kind == "checkpoint":
        for array in params_of(artifact.uri).arrays.values():
            np.asarray(array)
    else:
        for _ in Dataset(artifact.uri).records():
            pass


@pytest.mark.parametrize("kind", ["dataset", "screened", "checkpoint"])
def test_a_flip_anywhere_in_a_file_that_is_read_in_ranges_is_named(smallest: Finished, kind: str):
    store = Store(smallest.store)
    artifact = next(a for a in store.artifacts() if a.manifest.kind == kind)
    endings, rng = (".tfrecord", ".safetensors", ".idx", ".npz"), random.Random(kind)
    tried = 0
    for name, file in artifact.manifest.files.items():
        if name.endswith(endings) and file.size:
            # The first bytes are lengths; of safetensors a header follows, of 1 to 10 kB here.
            places = [0, 3, 7, 8, 11, file.size - 1, *rng.choices(range(min(file.size, 9000)), k=9)]
            for at in [*places, *rng.choices(range(file.size), k=9)]:
                tried += 1
                with flipped(smallest.store / artifact.folder / name, min(at, file.size - 1)):
                    with pytest.raises((DamagedArtifactError, ValueError)) as refused:
                        read_in_ranges(store.get(artifact.key))
                    assert name in str(refused.value)
    assert tried >= 24
    read_in_ranges(store.get(artifact.key))


def digests(store: Store) -> dict[str, dict[str, str]]:
    """Step -> file -> digest of what lies in the store, of data, parameters and answers."""
    kinds = ("dataset", "checkpoint", "predictions", "scores")
    return {
        artifact.manifest.name: {
            name: hashlib.sha256((artifact.path / name).read_bytes()).hexdigest()
            for name in artifact.manifest.files
            if name.endswith((".tfrecord", ".safetensors", ".jsonl", "digest.txt"))
            and name not in ("metrics.jsonl", "watch.jsonl")
        }
        for artifact in store.artifacts()
        if artifact.manifest.kind in kinds
    }


def test_every_flip_is_named_and_mended_and_the_numbers_are_the_same(smallest: Finished):
    store = Store(smallest.store)
    before, artifacts = digests(store), [*store.artifacts()]
    damaged: dict[str, Artifact] = {}
    for step, name in FLIPS.items():
        artifact = next(a for a in artifacts if a.manifest.name.startswith(step))
        flip(smallest.store / artifact.folder / name)
        damaged[name] = artifact
    # All that reads one of them is to be made again; the flipped ones themselves look whole.
    kept = {"corpus", "tokenizer", "mask_codec", "raw_files"}
    for artifact in artifacts:
        manifest = artifact.manifest
        if manifest.kind not in kept and artifact not in damaged.values():
            (smallest.store / manifest_name(manifest.key)).unlink()
    done = parcel(smallest.store, "run", SMALLEST)
    assert done.returncode == 0, done.stdout[-2000:]
    named = {name for name in FLIPS.values() if f"{name} of " in done.stdout}
    assert "Traceback" not in done.stdout + done.stderr
    assert digests(Store(smallest.store)) == before
    for name, artifact in damaged.items():
        aside = smallest.store / artifact.folder / f"{name}.damaged"
        assert aside.exists() == (name in named)
    assert {*FLIPS.values()} - named <= {"chartqa/ChartQA Dataset/train/png/000001.png"}
    # The table itself: reading it is refused, and a run writes it again, whoever finds it first.
    tables = [a for a in Store(smallest.store).artifacts() if a.manifest.kind == "results"]
    results = max(tables, key=lambda artifact: artifact.manifest.started)
    flip(smallest.store / results.folder / "results.json")
    again = parcel(smallest.store, "run", SMALLEST)
    assert again.returncode == 0, again.stdout[-2000:]
    assert f"results.json of {results.key}" in again.stdout
    flip(smallest.store / Store(smallest.store).get(results.key).folder / "results.json")
    shown = parcel(smallest.store, "results", "smallest")
    assert shown.returncode == 1
    assert f"results.json of {results.key}" in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert parcel(smallest.store, "run", SMALLEST).returncode == 0
    shown = parcel(smallest.store, "results", "smallest", "--format", "json")
    assert json.loads(shown.stdout)
