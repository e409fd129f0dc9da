"""Folders that have a list of their own files: what it names counts, or the folder is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from pipelines.records.tfrecord import write_shard
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.registry import source_spec
from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture, write_tar
from tests.pipelines.sources.writing import put_json, put_text


def put_table(path: Path, *captions: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"image": picture(len(text)), "caption": text} for text in captions]
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, str(path))


def captions(listed: Listed) -> list[str]:
    return [text for item in listed.items for text in item.suffixes]


def put_state(folder: Path, *names: str, **more: object) -> None:
    put_json(folder / "state.json", {"_data_files": [{"filename": n} for n in names], **more})


@pytest.mark.parametrize("folder", ["", "train/", "a/b=c/"])
def test_a_saved_dataset_is_the_files_of_its_state(tmp_path, folder):
    home = tmp_path / f"web/{folder}"
    put_table(home / "data-00000-of-00002.arrow", "a fig", "two figs")
    put_table(home / "data-00001-of-00002.arrow", "a pear")
    put_table(home / "cache-15b7b62a.arrow", "A FIG")
    put_table(home / "old.parquet", "an old fig")
    put_table(home / "more/b.parquet", "an apple")
    put_state(home, "data-00000-of-00002.arrow", "data-00001-of-00002.arrow")
    listed = Listed(tmp_path)
    assert sorted(captions(listed)) == ["a fig", "a pear", "an apple", "two figs"]
    assert not listed.rejects
    assert {(o.source, o.reason) for o in listed.omissions if "field" not in o.reason} == {
        (f"web/{folder}{name}", "not listed in state.json")
        for name in ("cache-15b7b62a.arrow", "old.parquet")
    }


def test_two_saved_datasets_have_a_list_each(tmp_path):
    for folder, caption in (("figs", "a fig"), ("pears", "a pear")):
        put_table(tmp_path / f"web/{folder}/data-00000-of-00001.arrow", caption)
        put_table(tmp_path / f"web/{folder}/data-00000-of-00003.arrow", "stale")
        put_state(tmp_path / f"web/{folder}", "data-00000-of-00001.arrow")
    assert sorted(captions(Listed(tmp_path))) == ["a fig", "a pear"]


@pytest.mark.parametrize("name", ["cache-00ff.arrow", "cache-9a_00000_of_00002.arrow"])
def test_a_cache_of_datasets_is_named_without_a_list_too(tmp_path, name):
    # The folder of `load_dataset` has no state.json.
    put_table(tmp_path / "web/figs-train.arrow", "a fig")
    put_table(tmp_path / f"web/{name}", "A FIG")
    put_table(tmp_path / "web/cache-of-figs.arrow", "a pear")
    # Versions before 2.0 save what `map` made under this name, and list it.
    put_table(tmp_path / f"web/old/{name}", "an apple")
    put_state(tmp_path / "web/old", name)
    listed = Listed(tmp_path)
    assert sorted(captions(listed)) == ["a fig", "a pear", "an apple"]
    assert [(o.source, o.reason) for o in listed.omissions] == [
        (f"web/{name}", "cache of datasets")
    ]


@pytest.mark.parametrize("folder", ["", "deep/figs/"])
def test_shards_of_a_streaming_dataset_are_refused_by_their_index(tmp_path, folder):
    put_table(tmp_path / "web/a.parquet", "a fig")
    shard = {"format": "json", "raw_data": {"basename": "0.jsonl"}, "zip_data": None}
    put_json(tmp_path / f"web/{folder}index.json", {"version": 2, "shards": [shard]})
    with pytest.raises(ValueError, match=f"web/{folder}index.json lists shards of MosaicML's"):
        Listed(tmp_path)


SPLITS = {
    "": "data/{}-00000-of-00001.parquet",
    "as a folder": "{}/a.parquet",
    "of a year": "{}2017/b.parquet",
    "with a point": "{}.0.parquet",
}


@pytest.mark.parametrize("name", SPLITS.values(), ids=SPLITS)
def test_of_a_folder_with_splits_the_one_to_train_on_is_read(tmp_path, name):
    for split in ("train", "val", "Test", "validation"):
        put_table(tmp_path / "web" / name.format(split), split)
    put_table(tmp_path / "web/testimony-1.parquet", "no split")
    listed = Listed(tmp_path)
    assert sorted(captions(listed)) == ["no split", "train"]
    assert {o.source: o.reason for o in listed.omissions} == {
        f"web/{name.format(split)}": f"of split {split.lower()}, beside one to train on"
        for split in ("val", "Test", "validation")
    }


def test_without_a_split_to_train_on_all_files_are_read(tmp_path):
    for split in ("val", "test"):
        put_table(tmp_path / f"web/{split}/a.parquet", split)
    listed = Listed(tmp_path)
    assert (sorted(captions(listed)), listed.omissions) == (["test", "val"], set())


@pytest.mark.parametrize("content", [{"a": 1}, [1, 2], {"shards": 7}, "text"])
def test_another_json_of_that_name_is_no_list(tmp_path, content):
    put_table(tmp_path / "web/a.parquet", "a fig")
    put_json(tmp_path / "web/index.json", content)
    listed = Listed(tmp_path)
    assert captions(listed) == ["a fig"]
    assert [o.reason for o in listed.omissions] == ["no kind of file that web reads"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"_data_files": [{"filename": "data-1.arrow"}]}, "must list whole files, all there; copy"),
        ({"_data_files": [{"filename": "../../../etc/hosts"}]}, "must list whole files, all there"),
        ({"_data_files": ["data-0.arrow"]}, "must list whole files, all there"),
        (
            {"_data_files": [{"filename": "data-0.arrow"}], "_indices_data_files": [{}]},
            "must list whole files, all there",
        ),
        (None, "state.json is not JSON"),
    ],
)
def test_a_list_that_cannot_be_followed_is_refused(tmp_path, state, reason):
    put_table(tmp_path / "web/train/data-0.arrow", "a fig")
    put_text(tmp_path / "web/train/state.json", json.dumps(state) if state else '{"_data_')
    with pytest.raises(ValueError, match=rf"web/train/state.json.* {reason}|{reason}") as error:
        Listed(tmp_path)
    assert "\n" not in str(error.value)


MARKS = {
    "_delta_log/00000000000000000000.json": "_delta_log",
    "_delta_log/00000000000000000010.checkpoint.parquet": "_delta_log",
    ".hoodie/20260102030405.commit": ".hoodie",
    "metadata/v2.metadata.json": "metadata/v2.metadata.json",
    "metadata/00001-5f.metadata.json": "metadata/00001-5f.metadata.json",
    "_versions/7.manifest": "_versions/7.manifest",
    ".nv-meta/split.yaml": ".nv-meta",
    "_temporary/0/_temporary/attempt_1/part-1.parquet": "_temporary",
    "_spark_metadata/0": "_spark_metadata",
    "_committed_123": "_committed_123",
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("folder", ["", "deep/figs"])
def test_a_folder_whose_list_is_not_followed_is_refused(tmp_path, mark, folder):
    put_table(tmp_path / "web/a.parquet", "a fig")
    put_table(tmp_path / "web" / folder / "part-0.parquet", "an old fig")
    put_text(tmp_path / "web" / folder / mark, "{}")
    with pytest.raises(ValueError, match="is not followed") as error:
        Listed(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'web' / folder / MARKS[mark]} says which files there are live, and is not "
        f"followed; export the live rows to another folder, or move this one away."
    )


@pytest.mark.parametrize("name", ["metadata/a.json", "_versions/a.txt", "x_delta_log/a.json"])
def test_a_name_that_is_like_a_mark_is_none(tmp_path, name):
    put_table(tmp_path / "web/a.parquet", "a fig")
    put_json(tmp_path / "web" / name, {})
    assert captions(Listed(tmp_path)) == ["a fig"]


def test_archives_that_no_list_names_are_in_the_account(tmp_path):
    for name in ("0.tar", "1.tar"):
        write_tar(tmp_path / f"web/{name}", [("0.png", picture(1)), ("0.txt", name)])
    put_state(tmp_path / "web", "1.tar")
    listed = Listed(tmp_path)
    assert captions(listed) == ["1.tar"]
    assert {o.source for o in listed.omissions} == {"web/0.tar"}


def test_records_of_a_write_that_did_not_end_are_refused(tmp_path):
    folder = tmp_path / "tfrecord/figs/_temporary/0"
    folder.mkdir(parents=True)
    write_shard(folder / "a.tfrecord", [b""])
    with pytest.raises(ValueError, match="tfrecord/figs/_temporary says which files"):
        Listed(tmp_path, "tfrecord", features={"image": "image"})


def test_lists_in_a_bucket_are_followed(tmp_path, server):
    put_table(tmp_path / "raw/web/figs/data-0.arrow", "a fig")
    put_table(tmp_path / "raw/web/figs/cache-0f.arrow", "A FIG")
    put_state(tmp_path / "raw/web/figs", "data-0.arrow")
    put_table(tmp_path / "lake/web/figs/a.parquet", "a fig")
    put_text(tmp_path / "lake/web/figs/_delta_log/0.json", "{}")
    for name in ("raw", "lake"):
        server.upload(tmp_path / name, name)
    spec = source_spec("web")
    corpus = Corpus(f"{server.uri}/raw", "web", UnpackedMedia())
    assert spec.units_of(corpus, "train") == ["figs/data-0.arrow"]
    assert [(o.source, o.reason) for o in spec.omissions_of(corpus, "train")] == [
        ("web/figs/cache-0f.arrow", "not listed in state.json")
    ]
    with pytest.raises(ValueError, match="web/figs/_delta_log says which files"):
        spec.units_of(Corpus(f"{server.uri}/lake", "web", UnpackedMedia()), "train")
