"""Preparing: the same bytes however it runs, and every input in exactly one place."""

import dataclasses
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from pipelines.prepare.__main__ import main
from pipelines.prepare.job import WorkFolder
from pipelines.prepare.raw_files import RawFile, list_raw_files
from pipelines.prepare.run import PrepareConfig, RejectRateError, prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import count_holdings
from pipelines.video.image_files import prepare_image_files

TASKS = ("caption", "detect", "grounded_caption", "vqa")
CONFIG = PrepareConfig(image_px=16, num_shards=3, num_workers=1, max_reject_rate=0.5, tasks=TASKS)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, encoded, write_video):
    """A web tar of 20 images, one truncated; and three clips, one empty."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "web").mkdir()
    with tarfile.open(root / "web/00000.tar", "w") as archive:
        for i in range(20):
            metadata = {
                "objects": [{"label": "dog", "box": [i % 5, 1, 20, 11]}],
                "qa": [{"question": "how many?", "answer": i}],
            }
            image = encoded(40, 30, seed=i)
            members = {
                "jpg": image[:-50] if i == 7 else image,
                "txt": f"picture {i}".encode(),
                "json": json.dumps(metadata).encode(),
            }
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{i:09d}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    clips = root / "msvd_qa/YouTubeClips"
    clips.mkdir(parents=True)
    rows, mapping = [], []
    for i in range(3):
        mapping.append(f"yt{i}_0_1 vid{i}")
        rows += [{"id": 2 * i + k, "video_id": i, "question": "?", "answer": "a"} for k in (0, 1)]
        (clips / f"yt{i}_0_1.mp4").touch()
    write_video(clips / "yt0_0_1.mp4", num_frames=12)
    write_video(clips / "yt2_0_1.mp4", num_frames=25)
    (root / "msvd_qa/youtube_mapping.txt").write_text("\n".join(mapping))
    (root / "msvd_qa/val_qa.json").write_text(json.dumps(rows))
    return root


def digests(folder) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def run(corpus, out, source="web", split="train", config=CONFIG, **options):
    return prepare_dataset(
        config, source=source, split=split, data_root=str(corpus), out=str(out), **options
    )


def test_every_input_is_in_one_place(corpus, tmp_path):
    info = run(corpus, tmp_path / "a")
    dataset = Dataset(tmp_path / "a")
    assert (info.num_inputs, info.num_records, info.num_rejected) == (80, 76, 4)
    ids = [r.id for r in dataset.records()] + [r.id for r in dataset.rejects()]
    assert len(ids) == len(set(ids)) == 80
    assert sorted(dataset.parts) == list(TASKS)
    for reject in dataset.rejects():
        assert reject.id.startswith("web/00000/000000007#")
        assert "truncated" in reject.reason
        assert reject.source == "web/00000.tar/000000007.jpg"
        assert len(reject.source_sha256) == 64
    record = next(r for r in dataset.parts["vqa"] if "000000003#" in r.id)
    assert (record.prefix, record.suffixes) == ("answer en how many?", ("3",))
    with tarfile.open(corpus / "web/00000.tar") as archive:
        original = archive.extractfile("000000003.jpg").read()
    assert record.source_sha256 == hashlib.sha256(original).hexdigest()


def test_order_is_by_id_within_a_shard(corpus, tmp_path):
    run(corpus, tmp_path / "a")
    part = Dataset(tmp_path / "a").parts["detect"]
    start = 0
    for count in Dataset(tmp_path / "a").info.parts["detect"].num_records:
        ids = [part[i].id for i in range(start, start + count)]
        assert ids == sorted(ids)
        start += count


@pytest.mark.slow
@pytest.mark.parametrize(("source", "split"), [("web", "train"), ("msvd_qa", "val")])
def test_bytes_do_not_depend_on_the_workers(corpus, tmp_path, source, split):
    names = []
    for workers in (1, 2):
        config = dataclasses.replace(CONFIG, num_workers=workers)
        run(corpus, tmp_path / str(workers), source, split, config)
        names.append(digests(tmp_path / str(workers)))
    assert names[0] == names[1]
    assert all(not name.startswith(".") and "partial" not in name for name in names[0])


@pytest.mark.slow
def test_clips_become_eight_timed_frames(corpus, tmp_path):
    info = run(corpus, tmp_path / "a", "msvd_qa", "val")
    assert (info.num_records, info.num_rejected) == (4, 2)
    (clip,) = [r for r in Dataset(tmp_path / "a").records() if r.id == "msvd_qa/val/vid2#4"]
    assert len(clip.images) == len(clip.frame_requested) == 8
    assert clip.frame_requested[:4] == pytest.approx([0, 1.04, 2.08, 0])
    assert clip.frame_decoded[:4] == pytest.approx([0, 1.0, 2.0, 0])
    reasons = {reject.reason for reject in Dataset(tmp_path / "a").rejects()}
    assert len(reasons) == 1
    assert "unreadable video" in reasons.pop()


@pytest.mark.slow
def test_a_long_clip_has_all_its_windows(corpus, tmp_path):
    config = dataclasses.replace(CONFIG, num_frames=4, frame_stride=5, num_windows=3)
    run(corpus, tmp_path / "a", "msvd_qa", "val", config)
    run(corpus, tmp_path / "b", "msvd_qa", "val", dataclasses.replace(config, num_windows=1))
    ones = {r.id: r for r in Dataset(tmp_path / "b").records()}
    for record in Dataset(tmp_path / "a").records():
        assert (record.num_windows, len(record.images)) == (3, 12)
        assert record.window(0) == ones[record.id].images
        assert record.frame_requested[:4] == ones[record.id].frame_requested
        assert len(set(record.frame_decoded[::4])) == 3
    (part,) = count_holdings(Dataset(tmp_path / "a")).parts.values()
    assert (part.images, part.windows) == ({4: 4}, {3: 4})


@pytest.mark.slow
def test_too_many_rejects_fail_in_one_line(corpus, tmp_path):
    config = dataclasses.replace(CONFIG, max_reject_rate=0.01)
    expected = (
        r"web/train: 4 of 80 inputs were rejected \(5\.0%\), max_reject_rate is 1\.0%.*decode"
    )
    with pytest.raises(RejectRateError, match=expected) as caught:
        run(corpus, tmp_path / "a", config=config)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a/dataset.json").exists()
    assert len((tmp_path / "a/.work/rejects.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_limit_takes_a_stable_sample(corpus, tmp_path):
    config = dataclasses.replace(CONFIG, limit=9)
    assert run(corpus, tmp_path / "a", config=config).num_inputs == 9
    run(corpus, tmp_path / "b", config=dataclasses.replace(config, limit=12))
    first, more = ({r.id for r in Dataset(tmp_path / n).records()} for n in "ab")
    assert first < more


def test_duplicate_ids_are_rejected_once_each(corpus, tmp_path):
    (tmp_path / "web").mkdir()
    data = (corpus / "web/00000.tar").read_bytes()
    (tmp_path / "web/0.tar").write_bytes(data)
    with tarfile.open(tmp_path / "web/0.tar", "a") as archive:
        for name in ("000000001.jpg", "000000001.txt"):
            with tarfile.open(corpus / "web/00000.tar") as source:
                content = source.extractfile(name).read()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    info = run(tmp_path, tmp_path / "a")
    duplicates = [r for r in Dataset(tmp_path / "a").rejects() if r.reason == "duplicate id"]
    assert [r.id for r in duplicates] == ["web/0/000000001#caption.en"]
    assert info.num_inputs == 81


@pytest.mark.parametrize("shard_by", ["id", "archive"])
@pytest.mark.parametrize("limit", [None, 5])
def test_what_was_not_read_is_in_the_account(corpus, tmp_path, capsys, shard_by, limit):
    root, out = tmp_path / "raw", tmp_path / "out"
    (root / "web").mkdir(parents=True)
    data = (corpus / "web/00000.tar").read_bytes()
    with tarfile.open(root / "web/00000.tar", "w") as archive:
        with tarfile.open(fileobj=io.BytesIO(data)) as whole:
            for member in whole:
                archive.addfile(member, whole.extractfile(member))
        for name in ("x/.DS_Store", "x/._0.png"):
            archive.addfile(tarfile.TarInfo(name))
    (root / "web/b.zip").touch()
    config = dataclasses.replace(CONFIG, shard_by=shard_by, limit=limit)
    info, options = run(root, out, config=config), ["web", "train", "--data-root", str(root)]
    omissions = list(Dataset(out).omissions())
    assert [(o.source, o.num, o.example) for o in omissions] == [
        ("web/00000.tar", 2, "x/.DS_Store"),
        ("web/b.zip", 1, ""),
    ]
    assert info.num_inputs == info.num_records + info.num_rejected
    # A corpus without such files has no such account.
    run(corpus, tmp_path / "plain", config=config)
    assert not (tmp_path / "plain/omissions.jsonl").exists()
    assert not list(Dataset(tmp_path / "plain").omissions())
    # And the command names them.
    options += ["--out", str(tmp_path / "again"), "--image-px", "16", "--max-reject-rate", "0.5"]
    assert main([*options, "--shard-by", shard_by]) == 0
    printed = capsys.readouterr().out
    assert "not read: 1 x no kind of file that web reads\n  web/b.zip" in printed
    assert "web/00000.tar/x/.DS_Store" in printed


def test_progress_reaches_the_total(corpus, tmp_path):
    seen = []
    run(corpus, tmp_path / "a", on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (80, 80)
    assert seen == sorted(seen)


@pytest.mark.slow
def test_a_lost_shard_is_run_again(corpus, tmp_path, monkeypatch):
    from pipelines.prepare import graph

    whole, calls = graph.run_pipeline, []

    def lossy(job, *words, **more):
        calls.append(job)
        whole(job, *words, **more)
        if len(calls) == 1:
            for name in ("shards/00002.json", "pieces/00002-00000.json"):
                (Path(job.work) / name).unlink()
            raise graph.WorkerLostError("one is gone")

    monkeypatch.setattr(graph, "run_pipeline", lossy)
    assert run(corpus, tmp_path / "a").num_inputs == 80
    assert len(calls) == 2


@pytest.mark.slow
def test_unaccounted_inputs_are_an_error(corpus, tmp_path, monkeypatch):
    whole = WorkFolder.section
    monkeypatch.setattr(WorkFolder, "section", lambda *words: list(whole(*words))[1:])
    with pytest.raises(RuntimeError, match="web/train lost inputs: 80 listed, 77 "):
        run(corpus, tmp_path / "a")


def test_wrong_requests_name_what_is_accepted(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"source .*activitynet_cap, .* got 'webb'"):
        run(corpus, tmp_path / "a", "webb")
    with pytest.raises(ValueError, match=r"split of web .*train .* got 'dev'"):
        run(corpus, tmp_path / "a", "web", "dev")
    with pytest.raises(FileNotFoundError, match="refcoco is not a folder"):
        run(corpus, tmp_path / "a", "refcoco")
    assert not list((tmp_path / "a").iterdir())
    (tmp_path / "a/x").touch()
    with pytest.raises(ValueError, match="out must be an empty"):
        run(corpus, tmp_path / "a")


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_shards", 0), ("limit", 0), ("max_reject_rate", 1.5), ("encoding", "gif"),
     ("decoder", "cv2"), ("num_frames", -1), ("min_side", 0), ("tasks", ("vqb",))],
)  # fmt: skip
def test_wrong_config_names_the_field(field, value):
    with pytest.raises(
        ValueError, match=rf"{field} must .*{value if field != 'tasks' else 'got vqb'}"
    ):
        dataclasses.replace(CONFIG, **{field: value})


def files_of(corpus, work, source, split) -> list[RawFile]:
    where = {"source": source, "split": split, "data_root": str(corpus), "work": str(work)}
    return list(list_raw_files(CONFIG, **where))


def test_every_file_that_is_read_is_listed(corpus, tmp_path):
    files = files_of(corpus, tmp_path / "a", "msvd_qa", "val")
    assert [path for path, _, _ in files] == [
        "msvd_qa/YouTubeClips/yt0_0_1.mp4",
        "msvd_qa/YouTubeClips/yt1_0_1.mp4",
        "msvd_qa/YouTubeClips/yt2_0_1.mp4",
        "msvd_qa/val_qa.json",
        "msvd_qa/youtube_mapping.txt",
    ]
    assert files[1].digest == hashlib.sha256(b"").hexdigest()
    data = (corpus / "msvd_qa/val_qa.json").read_bytes()
    assert files[3][1:] == (hashlib.sha256(data).hexdigest(), len(data))
    files = files_of(corpus, tmp_path / "b", "web", "train")
    assert [file.path for file in files] == ["web/00000.tar"]


@pytest.mark.slow
def test_command_prepares_and_reports(corpus, tmp_path, capsys):
    where = ["--data-root", str(corpus), "--out", str(tmp_path / "a")]
    options = ["--image-px", "16", "--max-reject-rate", "0.1", "--tasks", *TASKS]
    assert main(["web", "train", *where, *options]) == 0
    assert "web/train: 80 inputs = 76 records + 4 rejects" in capsys.readouterr().out
    assert main(["web", "train", *where]) == 2
    assert main(["web", "train", *where[:2], "--out", str(tmp_path / "b")]) == 0
    assert main(["web", "train", *where[:3], str(tmp_path / "c"), "--max-reject-rate", "0"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: web/train: 5 of 100")


def test_module_answers_help():
    command = [sys.executable, "-m", "pipelines.prepare", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "example: python -m pipelines.prepare chartqa val" in shown


def test_records_that_show_the_background_are_counted(tmp_path, capsys):
    folder = tmp_path / "root/images"
    folder.mkdir(parents=True)
    ink = Image.new("RGBA", (40, 30))
    ink.paste((0, 0, 0, 255), (0, 0, 20, 30))
    for name, image in (("ink", ink), ("full", Image.new("RGBA", (40, 30), (9, 99, 9, 255)))):
        image.save(folder / f"{name}.png")
    common = ["images", "train", "--data-root", str(tmp_path / "root"), "--image-px", "16"]
    common += ["--encoding", "png", "--num-shards", "1", "--num-workers", "1"]
    for background, colour in (("#ffffff", (255, 255, 255)), ("#00ff00", (0, 255, 0))):
        out = tmp_path / background[1:]
        more = [] if background == "#ffffff" else ["--background", background]
        assert main([*common, *more, "--out", str(out)]) == 0
        assert f"1 records show the background {background}" in capsys.readouterr().out
        dataset = Dataset(out)
        assert (dataset.info.num_composed, count_holdings(dataset).num_composed) == (1, 1)
        stored = {record.id: record.images[0] for record in dataset.records()}
        with Image.open(io.BytesIO(stored["images/ink.png"])) as image:
            assert [image.getpixel(place) for place in ((2, 8), (14, 8))] == [(0, 0, 0), colour]
        # The same in `parcel model predict`, which stores as JPEG.
        (asked,) = prepare_image_files([str(folder / "ink.png")], 16, background=background)
        with Image.open(io.BytesIO(asked)) as image:
            found = image.convert("RGB").getpixel((14, 8))
        assert max(abs(a - b) for a, b in zip(found, colour, strict=True)) < 12


def test_a_user_s_picture_is_padded_as_those_of_records(tmp_path):
    folder = tmp_path / "root/images"
    folder.mkdir(parents=True)
    Image.new("RGB", (60, 20), (0, 200, 0)).save(folder / "wide.png")
    common = ["images", "train", "--data-root", str(tmp_path / "root"), "--image-px", "30"]
    common += ["--num-shards", "1", "--num-workers", "1", "--aspect", "pad"]
    assert main([*common, "--out", str(tmp_path / "out")]) == 0
    (record,) = Dataset(tmp_path / "out").records()
    assert prepare_image_files([str(folder / "wide.png")], 30, aspect="pad") == record.images


def test_pictures_without_transparency_say_nothing_of_a_background(corpus, tmp_path):
    out = tmp_path / "out"
    prepare_dataset(CONFIG, source="web", split="train", data_root=str(corpus), out=str(out))
    for name in ("dataset.json", "shards.json"):
        assert "num_composed" not in (out / name).read_text()


def test_a_wrong_background_is_refused():
    with pytest.raises(ValueError, match=r'background .*"#ffffff", .*\'white\''):
        PrepareConfig(background="white")
