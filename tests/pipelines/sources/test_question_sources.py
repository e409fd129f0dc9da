"""Readers of questions about photographs, pairs of them, and satellite images."""

import dataclasses
import json
import re

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipelines.sources.own_source import OwnSource
from tests.pipelines.sources.document_layouts import write_rsvqa_hr, write_rsvqa_lr
from tests.pipelines.sources.question_layouts import (
    picture_text,
    put_mmbench,
    write_aokvqa,
    write_countbenchqa,
    write_gqa,
    write_marvl,
    write_mmbench,
    write_mme,
    write_mmmu,
    write_nlvr,
    write_okvqa,
    write_pope,
    write_tallyqa,
    write_vizwizvqa,
    write_vqav2,
    write_xgqa,
)
from tests.pipelines.sources.writing import put_json


def paths(items) -> list[str]:
    return [item.media[0].path for item in items]


@pytest.mark.parametrize(("name", "write"), [("vqav2", write_vqav2), ("okvqa", write_okvqa)])
def test_questions_meet_their_annotations(tmp_path, read_source, name, write):
    write(tmp_path)
    items, rejects = read_source(name, "val", tmp_path)
    file = "COCO_val2014_000000000042.jpg"
    assert [(i.id, i.prefix) for i in items] == [
        (f"{name}/val/{file}#42000", "answer en Is it red?"),
        (f"{name}/val/{file}#42001", "answer en How many?"),
    ]
    assert items[0].answers == items[0].suffixes == ("yes",) * 4 + ("no",) * 6
    assert items[1].answers[4:] == ("Two",) * 6
    assert items[0].meta == {
        "question_id": 42000,
        "question_type": "is it",
        "answer_type": "yes/no",
    }
    assert paths(items) == [f"{name}/val2014/{file}"] * 2
    assert [r.reason for r in rejects] == ["question 43000 has no annotation"]


def test_vqav2_test_questions_have_no_answers(tmp_path, read_source):
    write_vqav2(tmp_path)
    items, rejects = read_source("vqav2", "test-dev", tmp_path)
    assert [(i.answers, i.suffixes) for i in items] == [((), ("",))]
    assert paths(items) == ["vqav2/test2015/COCO_test2015_000000000001.jpg"]
    assert not rejects


def test_aokvqa_is_asked_in_two_ways(tmp_path, read_source):
    write_aokvqa(tmp_path)
    items, rejects = read_source("aokvqa_da", "val", tmp_path)
    assert items[0].prefix == "answer en What is in the mouth?"
    assert items[0].answers == ("cigarette",) * 9 + ("smoke",)
    assert len(items) == 2
    assert not rejects
    items, rejects = read_source("aokvqa_mc", "val", tmp_path)
    assert items[0].prefix == (
        "answer en  What is in the mouth? choose from: pick \t food \t stick \t cigarette"
    )
    assert items[0].answers == items[0].suffixes == ("cigarette",)
    assert paths(items) == ["aokvqa/val2017/000000461751.jpg"]
    assert [r.reason for r in rejects] == ["correct_choice_idx must be in 0..3, got 4"]
    items, rejects = read_source("aokvqa_mc", "test", tmp_path)
    assert [(i.answers, i.suffixes) for i in items] == [((), ("",))]
    assert not rejects


def test_a_published_benchmark_is_asked_in_other_words(tmp_path, read_source):
    write_aokvqa(tmp_path)
    prompt = "{text}\n{choices}\nAnswer directly."
    source = OwnSource(reader="aokvqa_mc", name="aokvqa_mc", prompt=prompt)
    (item, *_), rejects = read_source(source, "val", tmp_path)
    (usual, *_), as_many = read_source("aokvqa_mc", "val", tmp_path)
    choices = "pick \t food \t stick \t cigarette"
    assert item.prefix == f"What is in the mouth?\n{choices}\nAnswer directly."
    assert dataclasses.replace(item, prefix=usual.prefix) == usual
    assert rejects == as_many
    write_nlvr(tmp_path)
    source = OwnSource(reader="nlvr", name="nlvr", prompt="{text}?")
    (pair, *_), _ = read_source(source, "test", tmp_path)
    (usual, *_), _ = read_source("nlvr", "test", tmp_path)
    assert f"answer en {pair.prefix.removesuffix('?')}" == usual.prefix
    assert pair.id == usual.id


def test_vizwiz_drops_empty_answers(tmp_path, read_source):
    write_vizwizvqa(tmp_path)
    items, rejects = read_source("vizwizvqa", "val", tmp_path)
    assert [(i.id, i.prefix) for i in items] == [
        ("vizwizvqa/val/VizWiz_val_00000017.jpg#17", "answer en What is this?")
    ]
    assert items[0].answers == ("coke",) * 4 + ("soda",) * 5
    assert paths(items) == ["vizwizvqa/val/VizWiz_val_00000017.jpg"]
    assert [r.reason for r in rejects] == ["every answer is empty"]


def test_gqa_rows_are_keyed_by_question(tmp_path, read_source):
    write_gqa(tmp_path)
    items, rejects = read_source("gqa", "testdev_balanced", tmp_path)
    assert [(i.id, i.prefix, i.answers) for i in items] == [
        ("gqa/testdev_balanced/n235.jpg#2016", "answer en Who wears it?", ("women",))
    ]
    assert paths(items) == ["gqa/images/n235.jpg"]
    assert [r.reason.partition(" among")[0] for r in rejects] == [
        "imageId must be a name, got '../n1'",
        "malformed row: 'answer' is missing",
    ]


@pytest.mark.parametrize(("split", "asked"), [("de", "Wer trägt das?"), ("dev_bn", "কে?")])
def test_xgqa_asks_in_its_language_and_answers_in_english(tmp_path, read_source, split, asked):
    write_xgqa(tmp_path)
    (tmp_path / "gqa/images").mkdir(parents=True)
    items, _ = read_source("xgqa", split, tmp_path)
    assert [(i.prefix, i.answers, i.lang) for i in items] == [
        (f"answer en {asked}", ("women",), split[-2:])
    ]
    assert paths(items) == ["gqa/images/n235.jpg"]


def test_nlvr2_test_is_its_first_test_set(tmp_path, read_source):
    write_nlvr(tmp_path)
    items, rejects = read_source("nlvr", "test", tmp_path)
    assert [m.path for m in items[0].media] == [
        f"nlvr/images/test1/test1-850-0-img{k}.png" for k in (0, 1)
    ]
    assert items[0].answers == ("False",)
    assert [r.id for r in rejects] == ["nlvr/test/row-1"]


def test_marvl_labels_are_written_as_nlvr2s(tmp_path, read_source):
    write_marvl(tmp_path)
    items, rejects = read_source("marvl", "sw", tmp_path)
    assert items[0].id == "marvl/sw/39-0.jpg+39-11.jpg#sw-1"
    assert items[0].meta["identifier"] == "sw-1"
    assert [(i.prefix, i.answers, i.lang) for i in items] == [
        ("answer en Sufuria mbili.", ("False",), "sw")
    ]
    assert [m.path for m in items[0].media] == [
        f"marvl/marvl-images/sw/images/39-Sufuria/39-{n}.jpg" for n in (0, 11)
    ]
    assert [r.reason for r in rejects] == ["label must be true or false, got 'maybe'"]


def test_tallyqa_tells_simple_from_complex(tmp_path, read_source):
    write_tallyqa(tmp_path)
    items, rejects = read_source("tallyqa", "test", tmp_path)
    assert [(i.id, i.answers, i.meta) for i in items] == [
        ("tallyqa/test/1.jpg#5", ("2",), {"issimple": 1}),
        ("tallyqa/test/COCO_val2014_000000000042.jpg#6", ("2",), {"issimple": 0}),
    ]
    assert paths(items) == [
        "visual_genome/VG_100K_2/1.jpg",
        "tallyqa/val2014/COCO_val2014_000000000042.jpg",
    ]
    assert [r.id for r in rejects] == ["tallyqa/test/row-2", "tallyqa/test/row-3"]
    simple, _ = read_source("tallyqa", "test_simple", tmp_path)
    hard, _ = read_source("tallyqa", "test_complex", tmp_path)
    assert (simple, hard) == (items[:1], items[1:])
    assert len(read_source("tallyqa", "train", tmp_path)[0]) == 1


def test_countbenchqa_aligns_questions_with_rows(tmp_path, read_source):
    write_countbenchqa(tmp_path)
    items, rejects = read_source("countbenchqa", "huggingface", tmp_path)
    assert [(i.id, i.prefix, i.answers) for i in items] == [
        ("countbenchqa/huggingface/0000#0", "answer en How many things 0?", ("3",))
    ]
    assert items[0].media[0].size > 50
    assert [r.id for r in rejects] == ["countbenchqa/huggingface/row-3"]
    put_json(tmp_path / "countbenchqa/countbench_paired_questions.json", [{"question": "?"}])
    with pytest.raises(ValueError, match=r"\b4 rows .* got 1"):
        read_source("countbenchqa", "huggingface", tmp_path)


def test_pope_is_yes_or_no(tmp_path, read_source):
    write_pope(tmp_path)
    items, rejects = read_source("pope", "random", tmp_path)
    assert [(i.prefix, i.answers, i.meta) for i in items] == [
        ("answer en Is there a snowboard?", ("yes",), {"kind": "random"})
    ]
    assert paths(items) == ["pope/val2014/COCO_val2014_000000000042.jpg"]
    assert [r.reason for r in rejects] == ["label must be yes or no, got 'perhaps'"]


def test_mme_has_two_questions_about_each_image(tmp_path, read_source):
    write_mme(tmp_path)
    items, rejects = read_source("mme", "perception", tmp_path)
    assert len(items) == 20
    of_count = [item for item in items if item.meta["task"] == "count"]
    assert [(i.id, i.prefix, i.answers, i.meta["image"]) for i in of_count] == [
        (
            f"mme/perception/count/000000006040#{text}",
            f"{text}\nAnswer the question using a single word or phrase.",
            (answer,),
            "count/000000006040",
        )
        for text, answer in (("Is it one?", "yes"), ("Are there two?", "no"))
    ]
    assert "mme/MME_Benchmark_release_version/scene/images/tt0048028.jpg" in paths(items)
    answer, line = (r.reason for r in rejects)
    assert re.match("answer .*Yes or No, got 'maybe'", answer)
    assert re.match(r"line .*got 'Is it\?'", line)
    items, _ = read_source("mme", "cognition", tmp_path)
    assert len(items) == 7
    assert paths(items)[-1].endswith("code_reasoning/0001.png")


def test_mmbench_asks_each_rotation_with_its_letters(tmp_path, read_source):
    write_mmbench(tmp_path)
    items, rejects = read_source("mmbench", "dev", tmp_path)
    assert items[0].prefix == (
        'Look, it says\t"x".\nWhat is it?\nA. sand\nB. None\n'
        "Answer with the option's letter from the given choices directly."
    )
    assert [(i.id, i.answers, i.meta["question"]) for i in items] == [
        ("mmbench/dev/7.jpg#7", ("A",), 7),
        ("mmbench/dev/7.jpg#1000007", ("B",), 7),
    ]
    assert items[1].prefix.startswith("What is it?\nA. None\nB. sand\n")
    assert items[0].media == items[1].media
    answer, image = (r.reason for r in rejects)
    assert re.match("answer .*A, B, C, got 'D'", answer)
    assert re.match("image .*got '99'", image)


def test_an_empty_choice_between_others_is_named(tmp_path, read_source):
    picture = picture_text()
    choices = [
        ("a", "b", "", "d", ""),
        ("a", " ", "nan", "d", ""),
        ("", "b", "c", "", ""),
        ("a", "b", "c", "d", "e"),
        ("a", "b", "None", "d", ""),
    ]
    rows = [[n, "Which?", "", *texts, "B", "", picture] for n, texts in enumerate(choices)]
    put_mmbench(tmp_path, "ABCDE", rows)
    items, rejects = read_source("mmbench", "dev", tmp_path)
    assert [r.reason.partition(";")[0] for r in rejects] == [
        "choice C is empty and D is not",
        "choice B is empty and D is not",
        "choice A is empty and B is not",
    ]
    assert [i.meta["options"] for i in items] == [[*"abcde"], ["a", "b", "None", "d"]]
    assert "\nD. d\nE. e\n" in items[0].prefix
    # The columns that are choices are those of letters, in any number.
    put_mmbench(tmp_path, "ABDC", [[7, "Which?", "", "a", "b", "d", "", "D", "", picture]])
    _, (reject,) = read_source("mmbench", "dev", tmp_path)
    assert reject.reason.startswith("choice C is empty and D is not")


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"options": "['a', None, 'c']"}, "options must be texts, got ['a', None, 'c']"),
        ({"options": None}, "options must be texts, got None"),
        ({"options": "[]", "question_type": "open", "answer": None}, "answer must be texts"),
    ],
)
def test_a_missing_choice_of_mmmu_is_no_text(tmp_path, read_source, cells, reason):
    write_mmmu(tmp_path)
    table = tmp_path / "mmmu/Music/validation-00000-of-00001.parquet"
    first, *others = parquet.read_table(table).to_pylist()
    parquet.write_table(pa.Table.from_pylist([{**first, **cells}, *others]), table)
    items, rejects = read_source("mmmu", "validation", tmp_path)
    (reject,) = (r for r in rejects if "Music" in r.id)
    assert reason in reject.reason
    assert len(items) == 59


def test_the_right_choice_has_a_text(tmp_path, read_source):
    write_aokvqa(tmp_path)
    path = tmp_path / "aokvqa/aokvqa_v1p0_val.json"
    row, *_ = json.loads(path.read_text())
    row |= {"choices": ["", "b", " ", "d"], "correct_choice_idx": 2}
    put_json(path, [row, {**row, "correct_choice_idx": 3}])
    (item,), (reject,) = read_source("aokvqa_mc", "val", tmp_path)
    assert item.answers == ("d",)
    assert reject.reason == (
        "correct_choice_idx must be that of a choice with a text, got 2, which is empty"
    )


def test_mmmu_has_thirty_subjects_and_open_questions(tmp_path, read_source):
    write_mmmu(tmp_path)
    items, rejects = read_source("mmmu", "validation", tmp_path)
    assert len(items) == 60
    first, second = items[:2]
    assert first.prefix == (
        'Which <image 1>?\n(A) $6\n(B) none of "these"\n\n'
        "Answer with the option's letter from the given choices directly."
    )
    assert first.meta == {"subject": "Accounting", "options": ["$6", 'none of "these"']}
    assert second.prefix.endswith("?\nAnswer the question using a single word or phrase.")
    assert (second.answers, second.meta["options"]) == (("3", "three"), [])
    assert [r.reason for r in rejects] == ["answer must be one of A, B, got ['E']"]


@pytest.mark.parametrize(
    ("name", "split", "write", "image"),
    [
        ("rsvqa_lr", "test", write_rsvqa_lr, "rsvqa_lr/Images_LR/77.tif"),
        ("rsvqa_hr", "test_2", write_rsvqa_hr, "rsvqa_hr/Data/77.png"),
    ],
)
def test_rsvqa_leaves_numbers_out(tmp_path, read_source, name, split, write, image):
    write(tmp_path)
    items, rejects = read_source(name, split, tmp_path)
    assert [(i.prefix, i.meta["question_type"]) for i in items] == [
        ("answer en Q0?", "presence"),
        ("answer en Q2?", "comp"),
    ]
    assert (items[0].suffixes, items[0].answers) == (("yes",), ("Yes",))
    assert paths(items) == [image] * 2
    assert [r.reason for r in rejects] == ["question 5 has no answer 105"]
