"""Where people run: a store that may only be read, outputs without letters, a disk that is full."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import CONFIG, PARCEL, SMALLEST, Finished, environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

MOUNT = ["unshare", "--mount", "--map-root-user"]
"""Begins a command whose mounts nobody else sees."""

CAN_MOUNT = subprocess.run([*MOUNT, "true"], capture_output=True, check=False).returncode == 0

mounts = pytest.mark.skipif(
    not CAN_MOUNT, reason="mounts in a namespace of one's own are not allowed"
)


def mounted(script: str, commands: Sequence[Sequence[str]], store: Path, folder: Path):
    """Runs commands in one process after a shell's `script`; returns [code, output, errors]."""
    done = subprocess.run(
        [*MOUNT, "sh", "-ec", f'{script}; exec "$@"', "sh", sys.executable, "-m", "tests.commands"],
        input=json.dumps([*map(list, commands)]),
        env={**environment(store), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@mounts
def test_a_store_that_may_only_be_read_is_read_by_every_command(finished: Finished, tmp_path: Path):
    store = Store(finished.store)
    keys = {artifact.manifest.kind: artifact.manifest.key for artifact in store.artifacts()}
    readers = [
        ["run", CONFIG, "--explain"],
        ["sweep", CONFIG, "--add-seeds", "1", "--explain"],
        ["status"],
        ["results", "tiny"],
        ["results", "tiny", "--format", "html", "--out", f"{tmp_path}/html"],
        ["results", "tiny", "--format", "cells"],
        ["results", "tiny", "--format", "csv"],
        ["results", "tiny", "--format", "latex"],
        ["lineage", "show", keys["predictions"]],
        ["lineage", "trace", "tiny"],
        ["lineage", "verify"],
        ["lineage", "export", "tiny", "--out", f"{tmp_path}/events.json"],
        ["lineage", "summary", keys["checkpoint"]],
        ["data", "check", keys["dataset"]],
        ["data", "rejects", keys["dataset"]],
        ["data", "show", keys["dataset"], "--out", f"{tmp_path}/sheet.png"],
        ["data", "export", keys["dataset"], "--out", f"{tmp_path}/export"],
        ["gc"],
    ]
    read_only = f"mount --bind {store.state} {store.state}; mount -o remount,bind,ro {store.state}"
    writers = [["run", CONFIG], ["gc", "--delete"]]
    results = mounted(read_only, [*readers, *writers], finished.store, tmp_path)
    failures = {
        " ".join(words): result
        for words, result in zip(readers, results[: len(readers)], strict=True)
        if result[0] != 0 or "Read-only" in result[2]
    }
    assert not failures
    # What writes says so in a line that names the cure.
    for code, _, errors in results[len(readers) :]:
        assert (code, errors.count("\n")) == (1, 1)
        assert "Read-only file system; this command writes there: make it writable" in errors


def test_a_table_is_printed_where_the_output_has_latin_letters_only(finished: Finished):
    words = ["lineage", "trace", "tiny"]  # Drawn with lines that Latin-1 lacks.
    env = {**environment(finished.store), "PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}
    done = subprocess.run([PARCEL, *words], env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert rb"\u2500\u2500" in done.stdout
    assert b"Error" not in done.stderr


@mounts
@pytest.mark.deep
def test_a_full_disk_ends_a_run_with_its_line_and_no_noise(smallest: Finished, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["train", SMALLEST, "stage1.total_steps=5", "stage1.save_steps=1", "name=full"]
    used = sum(path.stat().st_blocks * 512 for path in smallest.store.rglob("*") if path.is_file())
    script = (
        f"mount -t tmpfs -o size={used + 4 * 2**20} none {disk}; "
        f"cp -a {smallest.store} {disk}/store; rm -rf {disk}/store/prefect; "
        f"! {PARCEL} {' '.join(words)} < /dev/null > full 2>&1; "
        f"mount -o remount,size={used + 2**29} {disk}"
    )
    [(code, _, errors)] = mounted(script, [words], disk / "store", tmp_path)
    lines = (tmp_path / "full").read_text().strip().splitlines()
    assert "No space left on device" in lines[-1]
    assert "; make room, then give the same command again" in lines[-1]
    assert not [line for line in lines if "Traceback" in line]
    assert code == 0, errors
