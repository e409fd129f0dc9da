"""Tests that all readers of published layouts share."""

import pytest

from pipelines.sources.reading.layout import find_file
from pipelines.sources.registry import BENCHMARKS, SOURCES
from tests.pipelines.sources.layouts import WRITERS
from tests.pipelines.sources.writing import put_json

WRITTEN_ELSEWHERE = {"chartqa", "refcoco"}
LAYOUTS = sorted(set(SOURCES) & set(BENCHMARKS) - WRITTEN_ELSEWHERE)


def splits_written(root, name: str) -> list[str]:
    """Returns the splits whose files a writer has written."""
    folder = root / SOURCES[name].folder
    return [
        split
        for split in SOURCES[name].splits
        if all(find_file(folder, *names) for names in SOURCES[name].files(split))
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_ids_are_unique_and_belong_together(name, tmp_path, read_source):
    WRITERS[SOURCES[name].folder](tmp_path)
    total = 0
    for split in splits_written(tmp_path, name):
        items, rejects = read_source(name, split, tmp_path)
        ids = [one.id for one in (*items, *rejects)]
        assert len(set(ids)) == len(ids), split
        total += len(items)
        for item in items:
            assert item.part == item.task == name
            assert item.id.startswith(f"{name}/")
            assert item.prefix
            assert item.suffixes
        for reject in rejects:
            assert reject.reason
            assert reject.source
    assert total


@pytest.mark.parametrize("name", sorted(set(SOURCES) & set(BENCHMARKS)))
def test_missing_file_is_named_with_its_publisher(name, tmp_path, read_source):
    spec = SOURCES[name]
    (tmp_path / spec.folder).mkdir()
    with pytest.raises(FileNotFoundError) as missing:
        read_source(name, BENCHMARKS[name].eval_split, tmp_path)
    told = str(missing.value)
    assert told.endswith(f"its authors publish it at {spec.publisher}.")
    first = spec.files(spec.parse(BENCHMARKS[name].eval_split)[0])[0]
    assert any(one.rpartition("/")[2] in told for one in first)
    assert "\n" not in told


@pytest.mark.parametrize("name", ["docvqa", "gqa", "vqav2"])
def test_file_of_another_kind_is_named(name, tmp_path, read_source):
    WRITERS[name](tmp_path)
    split = splits_written(tmp_path, name)[0]
    path = tmp_path / name / SOURCES[name].files(split)[0][0]
    path.write_text('"text"')
    with pytest.raises(ValueError, match=rf"{path.name} must hold"):
        read_source(name, split, tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=rf"{path.name} is not JSON"):
        read_source(name, split, tmp_path)


def test_annotations_of_another_file_are_refused(tmp_path, read_source):
    WRITERS["vqav2"](tmp_path)
    put_json(
        tmp_path / "vqav2/v2_mscoco_val2014_annotations.json",
        {"annotations": [{"id": 1}, {"image_id": 2}]},
    )
    told = r"val2014_annotations\.json: none of 2 rows has 'question_id'"
    with pytest.raises(ValueError, match=told):
        read_source("vqav2", "val", tmp_path)


def test_slices_are_disjoint_complete_and_the_same_again(tmp_path, read_source):
    WRITERS["stvqa"](tmp_path)
    whole, _ = read_source("stvqa", "train", tmp_path)
    tail, _ = read_source("stvqa", "train[-40:]", tmp_path)
    head, head_rejects = read_source("stvqa", "train[:-40]", tmp_path)
    tail_again, tail_rejects = read_source("stvqa", "train[-40:]", tmp_path)
    assert tail == tail_again
    assert len(tail) + len(tail_rejects) == 40
    assert len(head_rejects) + len(tail_rejects) == 1
    ids = [{item.id for item in part} for part in (whole, head, tail)]
    assert ids[0] == ids[1] | ids[2]
    assert not ids[1] & ids[2]
    assert [item.id for item in tail] != [item.id for item in whole][-len(tail) :]
    tenth, rejects = read_source("stvqa", "train[:10%]", tmp_path)
    assert len(tenth) + len(rejects) == round((len(whole) + 1) / 10)
    assert read_source("stvqa", "train[5:5]", tmp_path) == ([], [])
    with pytest.raises(ValueError, match=r'must look like "val".* got \'train\[5\]\''):
        read_source("stvqa", "train[5]", tmp_path)
