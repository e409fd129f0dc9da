"""Tests of the check of raw data: which files, counts and media are there, and which are not."""

import json

import pytest

from pipelines.sources.check import check_benchmarks
from pipelines.sources.registry import BENCHMARKS
from tests.pipelines.sources.caption_layouts import write_nocaps
from tests.pipelines.sources.document_layouts import write_docvqa
from tests.pipelines.sources.question_layouts import write_aokvqa, write_marvl, write_tallyqa
from tests.pipelines.sources.writing import put_image, put_text


def rows(root, **options):
    return {(row.title, row.benchmark): row for row in check_benchmarks(root, **options)}


def test_every_row_of_the_tables_is_listed_and_says_what_it_needs():
    found = rows(None)
    assert len(found) == sum(len(b.rows) for b in BENCHMARKS.values())
    assert [row.suite for row in list(found.values())[:28]] == ["main"] * 27 + ["appendix"]
    assert [f.path for f in found["AOKVQA-MC (val)", "aokvqa_mc"].files] == [
        "aokvqa/aokvqa_v1p0_val.json"
    ]
    assert len(found["xGQA", "xgqa"].files) == 7
    coco = [f.path for f in found["COCO-35L (en)", "coco35l"].files]
    assert coco == ["coco35l/coco_mt_dev.jsonl", "coco35l/dataset_coco.json"]
    for row in found.values():
        assert not row.all_present
        assert row.num is None
        assert row.files
        assert row.publisher


def test_counts_are_compared_with_the_published_ones(tmp_path, monkeypatch):
    for write in (write_docvqa, write_aokvqa, write_marvl, write_nocaps):
        write(tmp_path)
    put_image(tmp_path / "docvqa/documents/pybv_81.png")
    found = rows(tmp_path)
    docvqa = found["DocVQA (val)", "docvqa"]
    assert docvqa.files[0].found == "docvqa/val_v1.0_withQT.json"
    assert (docvqa.num, docvqa.num_rejected, docvqa.published) == (1, 1, 5_349)
    assert (docvqa.num_present, docvqa.num_images) == (1, 1)
    assert docvqa.as_published is False
    assert (found["NoCaps", "nocaps"].num_present, found["NoCaps", "nocaps"].num_images) == (0, 1)
    marvl = found["MaRVL", "marvl"]
    assert [bool(file.found) for file in marvl.files] == [False, True, False, False, False]
    assert (marvl.all_present, marvl.num, marvl.as_published) == (False, None, None)
    assert sum(row.all_present for row in found.values()) == 4


def test_a_bucket_is_told_as_a_disk_is(tmp_path, server):
    for write in (write_docvqa, write_nocaps):
        write(tmp_path)
    put_image(tmp_path / "docvqa/documents/pybv_81.png")
    server.upload(tmp_path, "raw")
    assert rows(f"{server.uri}/raw") == rows(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"got {server.uri}/nowhere: there is none"):
        rows(f"{server.uri}/nowhere")


def test_training_splits_are_counted_when_asked(tmp_path):
    write_tallyqa(tmp_path)
    assert ("training", "tallyqa") not in rows(tmp_path)
    found = rows(tmp_path, training=True)
    assert (found["training", "tallyqa"].num, found["training", "tallyqa"].published) == (
        1,
        249_318,
    )
    assert ("training", "marvl") not in found


def test_damaged_files_are_told_and_do_not_stop_the_rest(tmp_path):
    write_docvqa(tmp_path)
    write_aokvqa(tmp_path)
    put_text(tmp_path / "docvqa/val_v1.0_withQT.json", "{")
    found = rows(tmp_path)
    assert "val_v1.0_withQT.json is not JSON" in found["DocVQA (val)", "docvqa"].problem
    assert found["AOKVQA-DA (val)", "aokvqa_da"].num == 2


def test_a_full_set_is_as_published(tmp_path):
    question = {
        "question_id": "a",
        "image_id": 1,
        "question": "?",
        "choices": ["x"],
        "correct_choice_idx": 0,
        "direct_answers": ["x"],
    }
    full = [{**question, "question_id": str(n)} for n in range(1_145)]
    put_text(tmp_path / "aokvqa/aokvqa_v1p0_val.json", json.dumps(full))
    found = rows(tmp_path)
    assert found["AOKVQA-DA (val)", "aokvqa_da"].as_published
    assert found["AOKVQA-MC (val)", "aokvqa_mc"].as_published
