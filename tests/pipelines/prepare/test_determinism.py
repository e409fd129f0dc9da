"""The same inputs give the same bytes: whoever works, in whatever order, and after any kill."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import apache_beam as beam
import psutil
import pytest

import flows
import infra
import model
import pipelines
from pipelines.prepare import job, listing
from pipelines.prepare.run import PrepareConfig, make_dataset, prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.lines import sorted_lines
from pipelines.sources.reading.spec import SourceSpec
from tests.processes import command_line
from tests.slices import day_slice

CONFIG = PrepareConfig(
    image_px=16,
    num_shards=3,
    num_workers=1,
    num_frames=2,
    frame_window="random",
    augment_resize=0.5,
    augment_jpeg=0.5,
    augment_crop=0.2,
    max_reject_rate=0.5,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, encoded, write_video):
    """Web images with captions and boxes, two clips, and what is rejected at every stage."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "web/clips").mkdir(parents=True)
    for shard in range(2):
        with tarfile.open(root / f"web/{shard:05d}.tar", "w") as archive:
            for i in range(8):
                image = encoded(40, 30, seed=10 * shard + i)
                metadata = {"objects": [{"label": "dog", "box": [i, 1, 20, 11]}]}
                for extension, data in (
                    ("jpg", image[:-50] if i == 3 else image),
                    ("txt", b"" if i == 5 else f"picture {i}".encode()),
                    ("json", b"{" if i == 7 else json.dumps(metadata).encode()),
                ):
                    member = tarfile.TarInfo(f"{i:03d}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    for i in range(2):
        write_video(root / f"web/clips/{i}.mp4", num_frames=12 + i)
    rows = [{"video": f"clips/{name}.mp4", "text": f"clip {name}"} for name in (0, 1, "none")]
    (root / "web/clips.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def run(corpus, out, **changes) -> dict[str, str]:
    config = dataclasses.replace(CONFIG, **changes)
    prepare_dataset(config, source="web", split="train", data_root=str(corpus), out=str(out))
    return digests(out)


def digests(folder) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory) -> dict[str, str]:
    return run(corpus, tmp_path_factory.mktemp("expected") / "out")


@pytest.mark.slow
def test_the_corpus_has_images_clips_and_rejects_of_every_stage(corpus, tmp_path, expected):
    assert run(corpus, tmp_path / "a") == expected
    dataset = Dataset(tmp_path / "a")
    assert {"rejects.jsonl", "dataset.json"} < set(expected)
    images = {name: {len(one.images) for one in part} for name, part in dataset.parts.items()}
    assert images == {"caption": {1}, "caption@2": {2}, "detect": {1}, "grounded_caption": {1}}
    assert {reject.stage for reject in dataset.rejects()} == {"read", "decode"}
    plain = run(corpus, tmp_path / "b", augment_crop=0.0, augment_jpeg=0.0, augment_resize=0.0)
    assert plain != expected


@pytest.mark.slow
def test_processes_do_not_change_the_bytes(corpus, tmp_path, expected):
    """More processes than shards; two of them are tested with each runner option below."""
    assert run(corpus, tmp_path / "a", num_workers=5) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "limit", "num_inputs"),
    day_slice(
        [("train[:40%]", None, 18), ("train[-7:]", None, 7), ("train", 9, 9), ("train", 99, 45)],
        [("train[:40%]", None, 18), ("train", 9, 9)],
    ),
)
def test_a_part_is_the_same_however_it_is_listed(
    corpus, tmp_path, monkeypatch, split, limit, num_inputs
):
    config = dataclasses.replace(CONFIG, limit=limit, num_workers=2)
    found = []
    for name in ("apart", "whole"):
        if name == "whole":  # As one list, which is sorted in memory.
            monkeypatch.setattr(SourceSpec, "part_of", lambda spec, split, limit: (split, None))
        given = {"split": split, "data_root": str(corpus), "out": str(tmp_path / name)}
        info = prepare_dataset(config, source="web", **given)
        found.append(digests(tmp_path / name))
    assert found[0] == found[1]
    assert info.num_inputs == num_inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--direct_running_mode=in_memory",),
        ("--direct_running_mode=multi_threading",),
        ("--direct_running_mode=multi_processing",),
        ("--direct_runner_bundle_repeat=2",),
    ],
)
def test_runner_options_do_not_change_the_bytes(corpus, tmp_path, expected, options):
    assert run(corpus, tmp_path / "a", num_workers=2, runner_options=options) == expected


@pytest.mark.slow
def test_the_order_of_bundles_does_not_change_the_bytes(corpus, tmp_path, expected, monkeypatch):
    whole, given = beam.Create, []

    def backwards(values, **more):
        given.append(list(values)[::-1])
        return whole(given[-1], **more)

    monkeypatch.setattr(beam, "Create", backwards)
    assert run(corpus, tmp_path / "a") == expected
    assert [2, 1, 0] in given


@pytest.mark.slow
def test_the_order_of_a_folder_does_not_change_the_bytes(corpus, tmp_path, expected, monkeypatch):
    listdir, listed = os.listdir, []

    def backwards(path="."):
        listed.append(path)
        return sorted(listdir(path), reverse=True)

    monkeypatch.setattr(os, "listdir", backwards)
    assert run(corpus, tmp_path / "a") == expected
    assert corpus / "web" in listed


@pytest.mark.slow
def test_lists_longer_than_the_memory_do_not_change_the_bytes(
    corpus, tmp_path, expected, monkeypatch
):
    two_or_three = functools.partial(sorted_lines, run_size=1000)
    monkeypatch.setattr(listing, "sorted_lines", two_or_three)
    monkeypatch.setattr(job, "_CHUNK", 1000)
    assert run(corpus, tmp_path / "a") == expected


KEEPING = """
import json, pathlib, sys
from infra.store.disk import Disk
from pipelines.prepare.__main__ import main
remove = Disk.remove
def noting(self, folder):
    if folder == ".work":
        found = (pathlib.Path(self.uri) / ".work/pieces").glob("*.json")
        times = {str(path): path.stat().st_mtime_ns for path in found}
        pathlib.Path(sys.argv[1]).write_text(json.dumps(times))
    remove(self, folder)
Disk.remove = noting
sys.exit(main(sys.argv[2:]))
"""
"""The command, and a note of when each piece was finished that was there in the end."""


def command(corpus, out, *options: str) -> list[str]:
    words = [sys.executable, "-m", "pipelines.prepare", "web", "train"]
    words += ["--data-root", str(corpus), "--out", str(out), *options]
    for field in dataclasses.fields(PrepareConfig):
        value = getattr(CONFIG, field.name)
        if value != field.default and field.name != "num_workers":
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    "sign",
    day_slice(
        [
            "request.json",
            "lists/*.json",
            "todo/*.json",
            "pieces/*.json",
            "shards/*",
            "rejects.jsonl",
        ],
        ["lists/*.json", "pieces/*.json", "shards/*"],
    ),
)
def test_a_run_killed_at_any_time_leaves_no_dataset_and_the_next_goes_on(
    corpus, tmp_path, expected, sign
):
    killed, moment = tmp_path / "killed", random.Random(sign).uniform(0, 0.1)
    process = subprocess.Popen(
        command(corpus, killed), start_new_session=True, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not any((killed / ".work").glob(sign)):
        time.sleep(0.001)
    time.sleep(moment)
    with contextlib.suppress(ProcessLookupError):  # It may be done by now.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Killed processes need a moment to be gone; one that nobody killed would outlast the wait.
    deadline = time.monotonic() + 30
    while left := [p for p in psutil.process_iter() if _group(p) == process.pid]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    if (killed / "dataset.json").exists():  # It appears last: the dataset is whole.
        shutil.rmtree(killed / ".work", ignore_errors=True)
    elif (killed / ".work").exists():
        other = [*command(corpus, killed), "--seed", "1"]
        refused = subprocess.run(other, capture_output=True, text=True)
        assert refused.returncode == 2
        assert "left unfinished" in refused.stderr
        done = {p: p.stat().st_mtime_ns for p in (killed / ".work/pieces").glob("*.json")}
        wrapped = [
            sys.executable,
            "-c",
            KEEPING,
            str(tmp_path / "kept"),
            *command(corpus, killed)[3:],
        ]
        subprocess.run(wrapped, check=True, capture_output=True)
        kept = json.loads((tmp_path / "kept").read_text())
        assert {str(p): t for p, t in done.items()}.items() <= kept.items()
    assert digests(killed) == expected


def _group(process: psutil.Process) -> int | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getpgid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


@pytest.mark.deep
def test_a_killed_worker_ends_the_run_in_time_and_leaves_no_process(tmp_path, encoded):
    (tmp_path / "root/images").mkdir(parents=True)
    (tmp_path / "root/images/0.jpg").write_bytes(encoded(4000, 4000))
    for i in range(1, 100):
        os.link(tmp_path / "root/images/0.jpg", tmp_path / f"root/images/{i}.jpg")
    out = tmp_path / "out"
    words = [sys.executable, "-m", "pipelines.prepare", "images", "train", "--timeout-s", "30"]
    words += ["--data-root", str(tmp_path / "root"), "--out", str(out)]
    words += ["--runner-options", "direct_running_mode=multi_processing"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any(out.glob(".work/pieces/*.partial")):
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    next(p for p in workers if command_line(p).startswith("python")).kill()
    _, told = process.communicate(timeout=120)
    # The runner hangs, or tells of its loss: then what is missing is made by other workers.
    if process.returncode == 0:
        assert Dataset(out).info.num_records == 100
    else:
        assert process.returncode == 1
        assert "error: FnApiRunner did not finish within timeout_s=" in told
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


@pytest.mark.slow
def test_what_other_code_left_is_not_gone_on_with(corpus, tmp_path):
    given = {"source": "web", "split": "train", "data_root": str(corpus)}
    work = tmp_path / "work"
    config = dataclasses.replace(CONFIG, num_shards=1)
    for code, is_kept in (("other", None), ("", False), ("", True)):
        before = {p: p.stat().st_mtime_ns for p in work.glob("*/*.json")}
        made = make_dataset(config, **given, work=str(work), code=code)
        after = {p: p.stat().st_mtime_ns for p in work.glob("*/*.json")}
        assert made.info.num_inputs == 45
        if is_kept is not None:
            assert (before == after) == is_kept
            assert before.keys() == after.keys()


@pytest.mark.slow
def test_only_an_edit_of_code_that_prepares_the_source_throws_its_work_away(corpus, tmp_path):
    sources, work = tmp_path / "sources", tmp_path / "work"
    for package in (flows, infra, model, pipelines):
        shutil.copytree(package.__path__[0], sources / package.__name__)
    script = f"""
import dataclasses
from pipelines.prepare.run import PrepareConfig, make_dataset
config = PrepareConfig(image_px=16, num_shards=1, num_workers=1, max_reject_rate=0.5)
make_dataset(config, source="web", split="train", data_root={str(corpus)!r}, work={str(work)!r})
"""

    def is_kept(path: str, line: str) -> bool:
        """Whether work is kept when a file of the project has one more line."""
        with (sources / path).open("a") as file:
            file.write(f"\n{line}\n")
        before = {p: p.stat().st_mtime_ns for p in work.glob("*/*.json")}
        environment = {**os.environ, "PYTHONPATH": str(sources)}
        subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
        after = {p: p.stat().st_mtime_ns for p in work.glob("*/*.json")}
        assert before.keys() <= after.keys()
        return bool(before) and before == after

    assert not is_kept("pipelines/__init__.py", "")  # There is none yet.
    assert is_kept("infra/prefect/alerts.py", "# A comment.")
    assert is_kept("infra/store/store.py", "ADDED = 1")  # It moves bytes and decides none.
    assert is_kept("pipelines/prepare/shards.py", "# A comment.")
    assert is_kept("pipelines/sources/documents/chartqa.py", "ADDED = 1")  # Another reader.
    assert is_kept("pipelines/hygiene/screen.py", "ADDED = 1")
    assert not is_kept("pipelines/prepare/shards.py", "ADDED = 1")
    assert not is_kept("pipelines/sources/web/images.py", "ADDED = 1")
