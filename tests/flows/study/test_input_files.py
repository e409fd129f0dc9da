"""Tests of the files given to a study: checked before any step runs, identified by content."""

import hashlib
import json
import os
import sqlite3
from pathlib import Path

import pytest

from flows.graph.inputs import StudyInputs, read_inputs
from flows.study.input_files import check_study_files, input_files_spec, raw_digest_cache
from flows.study.load import load
from infra.errors import ConfigError
from infra.store.store import Store
from model.checkpoint.config_json import config_to_json
from pipelines.fetch.catalogue import load_catalogue
from pipelines.sources.reading.corpus import WEB_TASKS
from pipelines.sources.registry import source_spec


def test_real_sample_asks_for_its_data_root(tmp_path: Path):
    config = Path(__file__).parents[3] / "configs/real_sample.yaml"
    with pytest.raises(ConfigError, match=r"data_root .* nlvr, videos, web_image"):
        check_study_files(load(config).views[0])
    for folder in ("chartqa", "nlvr", "videos"):
        (tmp_path / folder).mkdir()
    study = load(config, [f"data_root={tmp_path}"])
    with pytest.raises(ConfigError, match=r"got .* without web_image_text\..*\(parcel data"):
        check_study_files(study.views[0])
    (tmp_path / "web_image_text").mkdir()
    check_study_files(study.views[0])


def test_public_mixture_has_every_task_and_fetch_knows_its_folders(tmp_path: Path):
    study = load(Path(__file__).parents[3] / "configs/public_mixture.yaml")
    assert set(WEB_TASKS) - {"caption"} <= {part for part, _ in study.stage1.mixture}
    known = {data_set.folder for data_set in load_catalogue().values()}
    assert {source_spec(source.reader).folder for source in study.sources} <= known


def test_nothing_is_given_by_default():
    check_study_files(load().views[0])
    assert read_inputs(load()) == StudyInputs()


def test_a_start_goes_with_its_tokenizer(tmp_path: Path):
    (tmp_path / "digest.txt").write_text("0\n")
    (tmp_path / "model.json").write_text(config_to_json(load().model))
    pieces = tmp_path / "tokenizer.model"
    pieces.write_bytes(b"pieces")
    study = load(overrides=[f"start={tmp_path}", f"tokenizer.path={pieces}"])
    check_study_files(study.views[0])
    names = {
        key: [file[0] for file in found.files] for key, found in read_inputs(study).files.items()
    }
    assert names[("", "tokenizer.path")] == ["tokenizer.model"]
    assert names[("", "start")] == ["digest.txt", "model.json", "tokenizer.model"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["tokenizer.path=gone.model"], "tokenizer.path must be an existing file, got gone.model"),
        (["mask_codec.path=gone.npz"], "mask_codec.path must be an existing file, got gone.npz"),
        (["start=gone"], "start must be an .npz of big_vision, .* got no such path: .*gone"),
        (["data_root=gone"], "data_root must be an existing folder, got gone"),
        (
            ["sources=[{reader: nlvr}, {reader: web}, {reader: images, path: web}]"],
            r"data_root must be given, the folder that holds nlvr: .* drawn, of chartqa, msvd_qa, "
            r"refcoco, web\. Add data_root=DIR",
        ),
        (["corpus.num_web=0"], "the folder that holds web: "),
    ],
)
def test_what_is_not_there_is_told_by_its_key(overrides: list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        check_study_files(load(overrides=overrides).views[0])


def test_a_start_without_a_tokenizer_is_refused(tmp_path: Path):
    (tmp_path / "digest.txt").write_text("0\n")
    (tmp_path / "model.json").write_text(config_to_json(load().model))
    with pytest.raises(ConfigError, match=r"tokenizer\.path must be given with start"):
        check_study_files(load(overrides=[f"start={tmp_path}"]).views[0])


def test_contents_count_and_places_do_not(tmp_path: Path):
    for folder, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / folder / "params").mkdir(parents=True)
        (tmp_path / folder / "params" / "0").write_text(text)
    a, b, c = (input_files_spec(tmp_path / folder) for folder in "abc")
    assert a == b
    assert a != c
    assert [name for name, _, _ in a.files] == ["params/0"]
    assert input_files_spec(tmp_path / "a" / "params" / "0").files[0][0] == "0"


def test_a_store_remembers_the_digests_of_what_is_given(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    for name in ("a", "b"):
        (tmp_path / "raw" / name).write_text(name)
        os.utime(tmp_path / "raw" / name, (1_600_000_000, 1_600_000_000))
    store = Store(tmp_path / "store")
    read = input_files_spec(tmp_path / "raw", raw_digest_cache(store))
    assert read == input_files_spec(tmp_path / "raw")
    with sqlite3.connect(tmp_path / "store/cache/raw_files/digests.sqlite") as connection:
        connection.execute("UPDATE files SET sha256 = 'remembered'")
    again = input_files_spec(tmp_path / "raw", raw_digest_cache(store))
    assert [digest for _, digest, _ in again.files] == ["remembered", "remembered"]


def test_fetched_weights_are_known_by_their_bytes_and_refused_once_they_differ(tmp_path: Path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    spec = input_files_spec(tmp_path)
    sha256 = hashlib.sha256(b"weights").hexdigest()
    note = {"address": "https://hub.example/x", "sha256": sha256, "size": 7}
    (tmp_path / "fetched.json").write_text(json.dumps({"model.safetensors": note}))
    assert input_files_spec(tmp_path) == spec
    assert spec.files == (("model.safetensors", sha256, 7),)
    weights.write_bytes(b"damaged")
    for path in (tmp_path, weights):
        with pytest.raises(ConfigError, match=r"model.safetensors is not what was fetched"):
            input_files_spec(path)
