"""Folders and logs that others wrote: what is in the records and the table, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tensorflow as tf
import yaml
from PIL import Image
from pyarrow import feather

from tests.effects.product import parcel
from tests.flows.logs.lmms_logs import state_all, write_logs

_STUDY: dict[str, Any] = {
    "base": "demo",
    "prepare": {"num_shards": 2, "tasks": ["caption"]},
    "tokenizer": {"vocab_size": 384},
    "model": {"text": {"vocab_size": 1536}},
    "methods": ["vanilla"],
    "budgets": [256],
    "train_budgets": {},
    "num_seeds": 1,
    "stage1": {"mixture": [["caption", 1]], "batch_size": 2, "total_steps": 2},
    "intermediary": None,
    "transfers": {"chartqa": None, "refcoco": None, "msvd_qa": None},
}
"""A study whose preparation reads `web` below its `data_root`, and nothing else."""


def _put_table(path: Path, rows: dict[str, str]) -> None:
    """Writes a table as `datasets` does: caption -> colour of its picture."""
    images = []
    for colour in rows.values():
        Image.new("RGB", (64, 64), colour).save(data := io.BytesIO(), "PNG")
        images.append({"bytes": data.getvalue(), "path": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(pa.table({"image": images, "caption": [*rows]}), str(path))


@pytest.mark.slow
def test_a_saved_dataset_is_prepared_as_its_own_list_says_and_a_table_of_delta_not_at_all(
    tmp_path: Path,
):
    root, store, study = tmp_path / "data", tmp_path / "store", tmp_path / "others.yaml"
    train = root / "web" / "train"
    drafts = {"first draft": "red", "second draft": "blue"}
    _put_table(train / "data-00000-of-00001.arrow", drafts)
    _put_table(train / "cache-15b7b62a.arrow", {"checked": "red", "checked, too": "blue"})
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (train / "state.json").write_text(json.dumps(state))
    study.write_text(yaml.safe_dump({**_STUDY, "data_root": str(root)}))

    made = parcel(store, "run", str(study), "--until", "prepare")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "not_read web/train/cache-15b7b62a.arrow" in made.stdout
    shards = sorted(map(str, store.glob("artifacts/dataset-*/attempts/*/*.tfrecord")))
    written = {}
    for record in tf.data.TFRecordDataset(shards):
        fields = tf.train.Example.FromString(record.numpy()).features.feature
        with Image.open(io.BytesIO(fields["image"].bytes_list.value[0])) as image:
            written[fields["suffix"].bytes_list.value[0].decode()] = image.getpixel((9, 9))
    assert written.keys() == drafts.keys()
    assert written["first draft"][0] > 200 > 50 > written["first draft"][2]
    assert written["second draft"][2] > 200 > 50 > written["second draft"][0]

    (root / "web" / "lake" / "_delta_log").mkdir(parents=True)
    (root / "web" / "lake" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    refused = parcel(store, "run", str(study), "--until", "prepare")
    assert refused.returncode != 0
    told = refused.stdout + refused.stderr
    assert "web/lake/_delta_log says which files there are live, and is not followed" in told


def test_logs_of_two_numbers_of_shots_are_no_table(tmp_path: Path):
    def shots(num: int) -> Any:
        def change(results: dict[str, Any]) -> None:
            state_all(results)
            results["configs"]["chartqa"]["num_fewshot"] = num

        return change

    store = tmp_path / "store"
    for model, num in (("a", 0), ("b", 0)):
        write_logs(tmp_path / "alike", model, [1.0, 0.0, 1.0], change=shots(num))
    for model, num in (("a", 0), ("b", 5)):
        write_logs(tmp_path / "unlike", model, [1.0, 0.0, 1.0], change=shots(num))
    shown = parcel(store, "results", "--predictions", str(tmp_path / "alike"))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "chartqa" in shown.stdout
    refused = parcel(store, "results", "--predictions", str(tmp_path / "unlike"))
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert {"few-shot", "0", "5"} <= {word.strip(",.;:'") for word in line.split()}
