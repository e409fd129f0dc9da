"""A check of a corpus names what preparing it would refuse, in the same words; a sample says so."""

import dataclasses
import json
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from pipelines.prepare.check import CLIPS, PICTURES, CorpusCheck, check_corpus
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.prepare.run import RejectRateError, prepare_dataset
from pipelines.records.dataset import Dataset, DatasetInfo
from pipelines.records.holdings import group_omissions, group_rejects
from pipelines.records.licence import Licence
from tests.pipelines.prepare.planted import FAULTS, begins_as, expected_rejects, picture, plant
from tests.pipelines.sources.writing import put_image, put_lines, put_text

CONFIG = PrepareConfig(image_px=16, num_shards=2, num_workers=1, max_reject_rate=1.0)


@pytest.fixture(scope="session")
def clip(tmp_path_factory, write_video) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "whole.mp4", num_frames=25)


def compare_with_preparing(root: Path, out: Path, **request) -> tuple[CorpusCheck, DatasetInfo]:
    """Returns a check of everything and the dataset, after asserting that they agree."""
    request = {"source": "web", "split": "train", **request}
    check = check_corpus(root, config=CONFIG, open_all=True, **request)
    info = prepare_dataset(CONFIG, data_root=str(root), out=str(out), **request)
    dataset = Dataset(out)
    assert check.rejects == group_rejects(dataset.rejects())
    assert check.omissions == group_omissions(dataset.omissions())
    assert check.num_rejected == info.num_rejected
    assert check.expected_rejects == info.num_rejected - info.num_dropped
    assert (check.num_records, check.num_composed) == (info.num_records, info.num_composed)
    assert check.num_dropped == info.num_dropped
    assert {count.licence: count.records for count in check.licences} == {
        count.licence: count.records for count in info.licence_counts if count.records
    }
    assert not check.is_sample
    return check, info


def test_all_planted_faults_are_named_as_preparing_rejects_them(clip, tmp_path):
    plant(tmp_path / "raw", clip, FAULTS)
    check, info = compare_with_preparing(tmp_path / "raw", tmp_path / "out")
    rejects = [reject for kind in check.rejects for reject in kind.examples]
    assert begins_as(rejects, expected_rejects(FAULTS))
    assert [group.sources for group in check.omissions] == [("web/stray.zip",)]
    assert info.num_inputs == 18
    (twice,) = check.duplicates
    assert twice.id == "web/twice/a#caption.en"
    assert twice.places == ("input 16 (web/twice.tar/a.jpg)", "input 18 (web/twice.tar/a.jpg)")
    # Five good pictures, one each for a press and with alpha, one cut short, two in the archive.
    assert check.pictures is not None
    assert check.pictures.modes == {"RGB": 8, "CMYK": 1, "RGBA": 1}
    assert (check.pictures.num_alpha, check.pictures.num_16_bit) == (1, 0)
    assert vars(check.pictures.width) == {"least": 40, "median": 40, "most": 40}
    assert (check.num_opened_pictures, check.num_opened_clips) == (14, 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(faults=st.sets(st.sampled_from(sorted(FAULTS))))
def test_any_faults_are_named_as_preparing_rejects_them(clip, faults):
    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder) / "raw", clip, sorted(faults))
        check, _ = compare_with_preparing(Path(folder) / "raw", Path(folder) / "out")
    rejects = [reject for kind in check.rejects for reject in kind.examples]
    assert begins_as(rejects, expected_rejects(faults))
    assert bool(check.omissions) == ("stray archive" in faults)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train[:60%]", "train+val"])
def test_parts_of_splits_and_own_rows_agree_with_preparing(tmp_path, split):
    folder = tmp_path / "raw/jsonl"
    row = {"question": "?", "answers": ["a"]}
    rows = [{**row, "image": f"{n}.png"} for n in range(9)]
    wrong = [
        {"imge": "0.png", "answrs": ["a"], "question": "?"},
        {**row, "image": "gone.png"},
        {**row, "image": "3.png", "id": "same"},
        {**row, "image": "3.png", "id": "same"},
        {**row, "image": "3.png", "answers": None},
        {**row, "image": "3.png", "answers": ["half a pair \ud83d"]},
    ]
    for n in range(9):
        put_image(folder / f"{n}.png", 20 + n, 17)
    put_lines(folder / "train.jsonl", [*rows, *wrong])
    put_lines(folder / "val.jsonl", rows[:2])
    check, info = compare_with_preparing(
        tmp_path / "raw", tmp_path / "out", source="jsonl", split=split
    )
    assert info.num_inputs == {"train[:60%]": 9, "train+val": 17}[split]
    if split == "train+val":
        reasons = [kind.reason for kind in check.rejects]
        assert any("no such key: answrs (answers?), imge (image?);" in one for one in reasons)
        (same,) = check.duplicates
        assert same.places == ("input 12 (jsonl/3.png)", "input 13 (jsonl/3.png)")


@pytest.mark.slow
def test_what_must_be_unpacked_is_found_again(tmp_path):
    root = tmp_path / "raw"
    (root / "web").mkdir(parents=True)
    images = [picture(n)[: -50 if n % 3 == 0 else None] for n in range(12)]
    table = pa.table({"image": images, "caption": [f"text {n}" for n in range(12)]})
    parquet.write_table(table, root / "web/a.parquet")
    put_text(root / "b.txt", "packed")
    (root / "b.jpg").write_bytes(picture(40))
    with tarfile.open(root / "web/b.tgz", "w:gz") as archive:
        for name in ("b.jpg", "b.txt"):
            archive.add(root / name, name)
    check, _ = compare_with_preparing(root, tmp_path / "out")
    assert check.num_rejected == 4
    # A sample that is large enough for all of them is read in another way, to the same end.
    assert check_corpus(root, "web", "train", config=CONFIG) == check


def write_many(folder: Path, num: int, wrong: int) -> None:
    """Writes a list of pictures as a table and, of its last rows, the pictures are no pictures."""
    folder.mkdir(parents=True)
    images = [picture(n) if n < num - wrong else b"no picture" for n in range(num)]
    parquet.write_table(
        pa.table({"image": images, "caption": ["text"] * num}), folder / "a.parquet"
    )


def test_a_sample_is_stated_stable_and_part_of_the_whole(tmp_path):
    write_many(tmp_path / "web", PICTURES + 60, 50)
    sample, again = (check_corpus(tmp_path, "web", "train") for _ in range(2))
    whole = check_corpus(tmp_path, "web", "train", open_all=True)
    assert sample == again
    assert sample.is_sample
    assert (sample.num_opened_pictures, sample.num_pictures) == (PICTURES, PICTURES + 60)
    assert sample.num_records + sample.num_rejected == whole.num_records + 50 == PICTURES + 60
    # The rejects of the sample are some of those of the whole; of the others, it expects as many.
    assert 20 < sample.num_rejected < 50
    assert sample.expected_rejects == pytest.approx(
        sample.num_rejected * (PICTURES + 60) / PICTURES
    )
    assert sample.failure.endswith("max_reject_rate is 5.0%")
    assert re.match(r"50 of 260 .*19\.2%.* max_reject_rate .*5\.0%", whole.failure)
    # Enough of them accepted, and neither fails.
    config = PrepareConfig(max_reject_rate=0.5)
    assert not check_corpus(tmp_path, "web", "train", config=config).failure


def test_a_sample_names_every_missing_file_and_duplicate(tmp_path):
    folder, num = tmp_path / "jsonl", PICTURES + 40
    (folder / "img").mkdir(parents=True)
    for n in range(num):
        (folder / f"img/{n}.jpg").write_bytes(picture(n % 7))
    row = {"question": "?", "answers": ["a"]}
    rows = [{**row, "image": f"img/{n}.jpg", "id": "k"} for n in range(num)]
    gone = [{**row, "image": f"img/gone{n}.jpg"} for n in range(30)]
    put_lines(folder / "train.jsonl", [*rows, *rows[:30], *gone])
    sample = check_corpus(tmp_path, "jsonl", "train")
    assert sample.is_sample
    kinds = {(kind.stage, kind.num, len(kind.examples)) for kind in sample.rejects}
    assert kinds == {("read", 30, 3), ("decode", 30, 3)}
    assert sample.num_duplicates == 30
    assert sample.expected_rejects == 60
    assert sample.duplicates[0].places == (
        "input 1 (jsonl/img/0.jpg)",
        f"input {num + 1} (jsonl/img/0.jpg)",
    )
    assert sample.num_records == num


@pytest.mark.slow
def test_clips_are_drawn_apart_and_their_lengths_given(tmp_path, write_video):
    (tmp_path / "videos").mkdir()
    for n in range(CLIPS + 3):
        write_video(tmp_path / f"videos/{n}.mp4", num_frames=10 + n)
    check = check_corpus(tmp_path, "videos", "train")
    assert (check.num_opened_clips, check.num_clips, check.num_pictures) == (CLIPS, CLIPS + 3, 0)
    whole = check_corpus(tmp_path, "videos", "train", open_all=True)
    assert vars(whole.clip_seconds) == {"least": 1.0, "median": 2.1, "most": 3.2}


@pytest.mark.slow
def test_it_fails_where_preparing_fails(clip, tmp_path):
    plant(tmp_path / "raw", clip, ["empty picture"])
    for number, (rate, fails) in enumerate([(0.1, True), (0.5, False)]):
        config = PrepareConfig(image_px=16, num_shards=1, num_workers=1, max_reject_rate=rate)
        check = check_corpus(tmp_path / "raw", "web", "train", config=config)
        request: dict[str, Any] = {"source": "web", "split": "train"}
        request["data_root"] = str(tmp_path / "raw")
        out = str(tmp_path / f"out{number}")
        assert bool(check.failure) == fails
        if fails:
            with pytest.raises(RejectRateError) as caught:
                prepare_dataset(config, **request, out=out)
            assert str(caught.value).startswith(f"web/train: {check.failure}; most often")
        else:
            prepare_dataset(config, **request, out=out)


def test_nothing_to_read_is_a_failure(tmp_path):
    put_text(tmp_path / "web/a.jsonl", "")
    check = check_corpus(tmp_path, "web", "train")
    assert (check.failure, check.num_records) == ("has no inputs", 0)
    assert [group.reason for group in check.omissions] == ["empty file"]


def test_a_corpus_in_a_bucket_is_checked_as_on_a_disk(tmp_path, server):
    for name in ("a", "b"):
        put_image(tmp_path / f"mine/{name}.png")
    (tmp_path / "mine/c.png").write_bytes(b"")
    asked = {"question": "?", "answers": ["x"]}
    rows = [{**asked, "image": f"{name}.png"} for name in ("a", "b", "c", "gone")]
    put_text(tmp_path / "mine/train.jsonl", "\n".join(map(json.dumps, rows)) + "\n[")
    with tarfile.open(tmp_path / "mine/0.tar", "w") as archive:
        archive.add(tmp_path / "mine/a.png", "0.png")
    server.upload(tmp_path, "raw")
    for source, counts in (("jsonl", (2, 3)), ("web", (0, 6))):
        here, there = (
            check_corpus(root, source, "train", path="mine")
            for root in (tmp_path, f"{server.uri}/raw")
        )
        assert here == there
        assert (there.num_records, there.num_rejected) == counts
    with pytest.raises(FileNotFoundError, match=f"{server.uri}/raw/yours "):
        check_corpus(f"{server.uri}/raw", "jsonl", "train", path="yours")


def test_every_wrong_column_is_named_at_once(tmp_path):
    put_text(tmp_path / "screen2words/split/train_screens.txt", "1")
    (tmp_path / "tfrecord").mkdir()
    put_text(tmp_path / "screen2words/screen_summaries.csv", "screenID,summry\n1,a\n")
    with pytest.raises(ValueError, match=r"lacks the columns 'screenId', 'summary'; it has ") as e:
        check_corpus(tmp_path, "screen2words", "train")
    assert str(e.value).endswith("it has screenID (screenId?), summry (summary?).")
    with pytest.raises(ValueError, match=r"got captoin \(caption\?\), imge \(image\?\)\."):
        check_corpus(tmp_path, "tfrecord", "train", features={"imge": "x", "captoin": "y"})


def write_licensed(root: Path) -> None:
    """Writes five captioned pictures: two of CC0-1.0, one of MIT, one of neither, one cut short."""
    rows = [
        {"image": f"{n}.png", "caption": "x", "terms": terms}
        for n, terms in enumerate(["CC0-1.0", "MIT", None, "CC0-1.0", "CC0-1.0"])
    ]
    put_lines(root / "web/a.jsonl", rows)
    for n in range(5):
        (root / f"web/{n}.png").write_bytes(picture(n)[: -40 if n == 4 else None])


def test_licences_are_counted_and_what_is_not_allowed_drops(tmp_path):
    write_licensed(tmp_path / "raw")
    features = {"licence": "terms"}
    check, _ = compare_with_preparing(tmp_path / "raw", tmp_path / "all", features=features)
    assert {count.title: count.records for count in check.licences} == {
        "CC0-1.0": 2,
        "MIT": 1,
        "none stated": 1,
    }
    check, _ = compare_with_preparing(
        tmp_path / "raw",
        tmp_path / "some",
        features=features,
        licence=Licence(licence="GPL-3.0"),
        licences=LicencesConfig(allow=("CC0-1.0", "GPL-3.0")),
    )
    assert (check.num_dropped, check.num_records, check.expected_rejects) == (1, 3, 1)
    check = check_corpus(
        tmp_path / "raw", "web", "train", licences=LicencesConfig(allow=("CC-BY-4.0",))
    )
    assert re.search(r"\b5 inputs .*licences\.allow", check.failure)


@pytest.mark.slow
def test_processes_find_what_one_process_finds(tmp_path):
    rows = [{"image": f"{n // 2}.png", "caption": f"text {n}"} for n in range(2400)]
    put_lines(tmp_path / "web/a.jsonl", [*rows, {"image": "gone.png", "caption": "x"}])
    for n in range(1200):
        (tmp_path / f"web/{n}.png").write_bytes(picture(n)[: -60 if n % 7 == 0 else None])
    texts: list[str] = []
    several, one = (
        check_corpus(
            tmp_path,
            "web",
            "train",
            config=dataclasses.replace(CONFIG, num_workers=num_workers),
            open_all=True,
            on_progress=texts.append,
        )
        for num_workers in (3, 1)
    )
    assert several == one
    assert several.num_rejected > 300
    assert texts[0] == "1,000 inputs read"
    assert texts[-1] == "2,401 inputs opened, of 2,401 read"
