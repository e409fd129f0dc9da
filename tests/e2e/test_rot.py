"""Bits that flip in a store: whatever file it is, no number is computed from it."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from infra.store.store import Artifact, Store, manifest_name
from tests.e2e.conftest import SMALLEST, Finished, parcel

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("one_server")]

FLIPS = {
    "corpus": "chartqa/ChartQA Dataset/train/png/000001.png",
    "tokenizer": "tokenizer.model",
    "stage1 vanilla": "model.json",
    "intermediary vanilla": "params-00000-of-00001.safetensors",
    "evaluate": "predictions.jsonl",
}
"""Beginning of a step's name -> a file of its artifact; parameters are read in ranges."""


def flip(path: Path) -> None:
    """Flips one bit of a file and leaves its size and time of change as they were."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


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
    flipped: dict[str, Artifact] = {}
    for step, name in FLIPS.items():
        artifact = next(a for a in artifacts if a.manifest.name.startswith(step))
        flip(smallest.store / artifact.folder / name)
        flipped[name] = artifact
    # All that reads one of them is to be made again; the flipped ones themselves look whole.
    kept = {"corpus", "tokenizer", "mask_codec", "raw_files"}
    for artifact in artifacts:
        manifest = artifact.manifest
        if manifest.kind not in kept and artifact not in flipped.values():
            (smallest.store / manifest_name(manifest.key)).unlink()
    named: set[str] = set()
    for _ in range(2 * len(FLIPS)):
        done = parcel(smallest.store, "run", SMALLEST)
        named |= {name for name in FLIPS.values() if f"{name} of " in done.stdout + done.stderr}
        if done.returncode == 0:
            break
        failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
        assert failed
        assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout[-2000:]
    assert digests(Store(smallest.store)) == before
    for name, artifact in flipped.items():
        damaged = smallest.store / artifact.folder / f"{name}.damaged"
        assert damaged.exists() == (name in named)
    assert {"tokenizer.model", "model.json", "params-00000-of-00001.safetensors"} <= named
    # The table itself: reading it is refused, and the next run writes it again.
    tables = [a for a in Store(smallest.store).artifacts() if a.manifest.kind == "results"]
    results = max(tables, key=lambda artifact: artifact.manifest.started)
    flip(smallest.store / results.folder / "results.json")
    shown = parcel(smallest.store, "results", "smallest")
    assert shown.returncode == 1
    assert f"results.json of {results.key}" in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert parcel(smallest.store, "run", SMALLEST).returncode == 0
    shown = parcel(smallest.store, "results", "smallest", "--format", "json")
    assert json.loads(shown.stdout)
