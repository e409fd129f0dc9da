"""Raw files, on a disk or in a bucket: looked at where they changed, never read in vain."""

import dataclasses
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flows.graph.explain import Explanation
from flows.steps import registry, step_lookup, worker
from flows.steps.kind import StepContext
from flows.steps.registry import KINDS
from flows.steps.step_lookup import look_up_step
from flows.study.load import load
from infra.references import load_reference
from infra.store.lineage import verify_artifact
from infra.store.store import Artifact, Store
from pipelines.records.dataset import OMISSIONS
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus
from tests.flows.graphs import checked_graph
from tests.gcs.objects import Content
from tests.pipelines.conftest import write_video

__all__ = ["write_video"]

LONG_AGO = 1_600_000_000
PREPARE = "{num_workers: 1, num_shards: 2, max_reject_rate: 0.5}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("drawn") / "raw"
    render_corpus(CorpusConfig(num_web=10, num_charts=0, num_scenes=0, num_videos=0), str(root))
    return root


@pytest.fixture
def raw(drawn: Path, tmp_path: Path) -> Path:
    root = tmp_path / "raw"
    for path in drawn.rglob("*.tar"):
        target = root / path.relative_to(drawn)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        os.utime(target, (LONG_AGO, LONG_AGO))
    return root


def graph(data_root: object, reader: str = "web", prepare: str = PREPARE):
    sources = f"sources=[{{reader: {reader}}}]"
    overrides = [f"data_root={data_root}", sources, "transfers={}", "hygiene="]
    overrides += [f"prepare={prepare}"]
    return checked_graph(load(overrides=overrides), "prepare")


def run(store: Store, data_root: object, *words: str) -> tuple[list[str], Artifact]:
    """Runs what is missing; returns the kinds of steps that were made, and the dataset."""
    made: list[str] = []
    artifacts: dict = {}
    for step in graph(data_root, *words).steps:
        inputs = {role: artifacts[read] for role, read in step.inputs.items()}
        found = look_up_step(store, step, inputs, set())
        if found.artifact is None:
            ends = [
                m for m in worker.make(store.uri, [found.recipe], {}) if not isinstance(m, tuple)
            ]
            assert [end.error for end in ends] == [""]
            made.append(step.kind)
        artifacts[step] = store.get(found.recipe.key)
    return made, artifacts[step]


@pytest.fixture
def read(raw: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the raw files that are read for their digests."""
    names: list[str] = []
    whole = hashlib.file_digest

    def noting(file: Any, digest: str) -> Any:
        if Path(file.name).is_relative_to(raw):
            names.append(Path(file.name).name)
        return whole(file, digest)

    monkeypatch.setattr(hashlib, "file_digest", noting)
    return names


@pytest.mark.slow
def test_what_did_not_change_is_not_looked_at_again(raw: Path, tmp_path: Path, read: list[str]):
    store = Store(tmp_path / "store")
    made, first = run(store, raw)
    assert made == ["raw_files", "dataset"]
    assert sorted(set(read)) == sorted(path.name for path in raw.rglob("*.tar"))
    read.clear()
    assert run(store, raw)[0] == []
    assert read == []
    # Touched, or copied: read once more, and found to be what it was.
    for path in raw.rglob("*.tar"):
        os.utime(path, (LONG_AGO + 9, LONG_AGO + 9))
    explanation = Explanation(store, graph(raw))
    assert [verdict.state for verdict in explanation.steps.values()] == ["follows", "follows"]
    made, again = run(store, raw)
    assert (made, again.key) == (["raw_files"], first.key)
    assert read
    assert run(store, raw)[0] == []


@pytest.mark.slow
def test_what_changed_is_another_dataset(raw: Path, tmp_path: Path):
    store = Store(tmp_path / "store")
    _, first = run(store, raw)
    (raw / "web/more.jsonl").write_text('{"image": "none.jpg", "text": "more"}')
    os.utime(raw / "web/more.jsonl", (LONG_AGO, LONG_AGO))
    made, second = run(store, raw)
    assert made == ["raw_files", "dataset"]
    assert second.key != first.key
    assert second.manifest.counts["inputs"] == first.manifest.counts["inputs"] + 1


@pytest.mark.slow
def test_a_stray_file_is_told_and_makes_nothing_new_that_reads_the_dataset(
    raw: Path, tmp_path: Path
):
    _, clean = run(Store(tmp_path / "clean"), raw)
    (raw / "web/notes.zip").write_bytes(b"PK")
    os.utime(raw / "web/notes.zip", (LONG_AGO, LONG_AGO))
    store = Store(tmp_path / "store")
    _, strayed = run(store, raw)
    assert "notes.zip" in strayed.manifest.counts["not_read"]
    assert OMISSIONS in strayed.manifest.files
    assert OMISSIONS not in clean.manifest.files
    assert strayed.as_input == clean.as_input
    digests = {"dataset": load_reference(KINDS["dataset"].content)}
    assert [*verify_artifact(store, strayed.key, digests)] == []


@pytest.mark.slow
def test_the_manifest_counts_the_decoders_that_clips_had(tmp_path: Path, write_video):
    (tmp_path / "raw" / "videos").mkdir(parents=True)
    write_video(tmp_path / "raw" / "videos" / "a.mp4")
    for name in "bc":
        write_video(tmp_path / "raw" / "videos" / f"{name}.avi", codec="mpeg4")
    prepare = f"{PREPARE[:-1]}, decoder: decord}}"
    _, dataset = run(Store(tmp_path / "store"), tmp_path / "raw", "videos", prepare)
    counts = {name: num for name, num in dataset.manifest.counts.items() if "decoded" in name}
    has_decord = importlib.util.find_spec("decord") is not None
    wanted = (
        {"decoded_by_decord": 1, "decoded_by_pyav": 2} if has_decord else {"decoded_by_pyav": 3}
    )
    assert counts == wanted
    assert ("decord" in dataset.manifest.libraries) == has_decord
    assert dataset.manifest.config["prepare"]["decoder"] == "decord"


@pytest.fixture
def media(tmp_path: Path, write_video) -> Path:
    """A folder of pictures and a folder of clips."""
    root = tmp_path / "raw"
    for name in ("images", "videos"):
        (root / name).mkdir(parents=True)
    for grey in (50, 90, 130):
        Image.new("RGB", (30, 20), (grey, 40, 7)).save(root / "images" / f"{grey}.png")
    write_video(root / "videos" / "a.mp4")
    for path in root.rglob("*.*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return root


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretends that other versions of some libraries are installed."""
    installed = registry._libraries

    def libraries(kind: str) -> dict[str, str]:
        return {name: versions.get(name, version) for name, version in installed(kind).items()}

    monkeypatch.setattr(registry, "_libraries", libraries)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "reader", "made"),
    [
        ("av", "images", []),
        ("av", "videos", ["dataset"]),
        ("pillow", "images", ["dataset"]),
        ("pillow", "videos", ["dataset"]),  # Frames are made square and encoded by Pillow.
    ],
)
def test_another_version_of_what_decodes_a_dataset_makes_it_anew(
    media: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    reader: str,
    made: list,
):
    store = Store(tmp_path / "store")
    assert run(store, media, reader)[0] == ["raw_files", "dataset"]
    install(monkeypatch, **{library: "999.0"})
    assert run(store, media, reader)[0] == made


@pytest.mark.slow
def test_a_dataset_that_states_libraries_it_does_not_use_is_found_while_they_are_installed(
    media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Earlier versions stated all libraries of the kind.
    store = Store(tmp_path / "store")
    with monkeypatch.context() as earlier:
        dataset = dataclasses.replace(KINDS["dataset"], unused_libraries=None)
        earlier.setitem(KINDS, "dataset", dataset)
        _, first = run(store, media, "images")
    assert "av" in first.manifest.libraries
    made, found = run(store, media, "images")
    assert (made, found.key) == ([], first.key)
    # Made by other code, it is stale, and what is made in its place states what it uses.
    monkeypatch.setattr(step_lookup, "code_digest", lambda kind, config: "0" * 64)
    step = next(step for step in graph(media, "images").steps if step.kind == "dataset")
    raw = store.get(first.manifest.inputs["raw"].key)
    lookup = look_up_step(store, step, {"raw": raw}, set())
    assert (lookup.state, lookup.artifact and lookup.artifact.key) == ("stale", first.key)
    assert lookup.recipe.libraries.keys() == {"pillow"}
    monkeypatch.undo()
    install(monkeypatch, av="999.0")
    explanation = Explanation(store, graph(media, "images"))
    (why,) = [v.why for s, v in explanation.steps.items() if s.kind == "dataset"]
    assert f"av {first.manifest.libraries['av']} → unused" in why
    assert run(store, media, "images")[0] == ["dataset"]
    assert run(store, media, "images")[0] == []


@pytest.fixture
def buckets(server, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in a bucket, with the raw data in it, too."""
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "state"))
    for path in raw.rglob("*.tar"):
        name = f"data/raw/{path.relative_to(raw).as_posix()}"
        server.store.put("testing", name, Content.of(path.read_bytes()))
    return Store(f"{server.uri}/store")


@pytest.mark.slow
def test_in_a_bucket_nothing_is_read_for_its_digest(
    buckets: Store, raw: Path, tmp_path: Path, server
):
    _, here = run(Store(tmp_path / "here"), raw)
    server.tally.clear()
    made, there = run(buckets, f"{server.uri}/data/raw")
    assert made == ["raw_files", "dataset"]
    assert there.manifest.files == here.manifest.files
    assert there.manifest.content == here.manifest.content
    server.tally.clear()
    assert run(buckets, f"{server.uri}/data/raw")[0] == []
    assert not [name for name, _ in server.tally.moved() if name.endswith(".tar")]
    assert not buckets.files.folders("scratch")


@pytest.mark.slow
def test_a_dataset_cut_short_goes_on_from_its_pieces(
    buckets: Store, tmp_path: Path, raw: Path, server, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as cut:
        cut.setattr(
            StepContext, "adopt", lambda *words: (_ for _ in ()).throw(OSError("cut short"))
        )
        with pytest.raises(AssertionError, match="cut short"):
            run(buckets, f"{server.uri}/data/raw")
    assert buckets.files.folders("scratch")
    server.tally.clear()
    made, there = run(buckets, f"{server.uri}/data/raw")
    assert made == ["dataset"]
    assert not [n for (n, way), size in server.tally.moved().items() if n.endswith(".tar") and size]
    _, here = run(Store(tmp_path / "here"), raw)
    assert there.manifest.content == here.manifest.content
