"""Benchmarks: prompts as in big_vision's configs, errors that list what exists."""

import dataclasses

import pytest

from pipelines.benchmarks.registry import BENCHMARKS, get
from pipelines.sources.registry import SOURCES


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("chartqa", "How {many}?"),
        ("refcoco", "How {many}?"),
        ("msvd_qa", "answer en How {many}?"),
        ("nlvr", "answer en How {many}?"),
    ],
)
def test_prompt(name, prefix):
    assert get(name).prefix("How {many}?") == prefix


def test_every_benchmark_has_a_source_with_its_splits():
    for row in BENCHMARKS.values():
        for split in (row.train_split, row.eval_split):
            assert SOURCES[row.name].parse(split) == split.split("+")


def test_msvd_takes_eight_frames():
    assert (get("msvd_qa").num_frames, get("msvd_qa").frame_stride) == (8, 26)
    assert SOURCES["msvd_qa"].num_frames == 8


def test_unknown_names_are_answered_with_the_list():
    with pytest.raises(ValueError, match="one of chartqa, msvd_qa, nlvr, refcoco, got 'vqa'"):
        get("vqa")
    with pytest.raises(ValueError, match=r"metric must be one of .* got 'bleu'"):
        dataclasses.replace(get("nlvr"), metric="bleu")
