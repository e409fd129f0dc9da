"""One's own examples: lines, tables and functions, by question or by prefix."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.records.licence import Licence
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.registry import reader_module, source_spec
from tests.pipelines.sources.writing import put_image, put_text

PROMPT = "Q: {text} ({lang})"


def own(reader: str, *, name: str, prompt: str) -> OwnSource:
    return OwnSource(reader=reader, name=name, prompt=prompt)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function: text of a module -> "module:read"."""
    monkeypatch.syspath_prepend(tmp_path / "code")

    def write(text: str, name: str) -> str:
        put_text(tmp_path / "code" / f"{name}.py", text)
        return f"{name}:read"

    yield write
    for name in [n for n in sys.modules if n.startswith("reads_")]:
        del sys.modules[name]


def test_a_row_may_state_its_licence(tmp_path, read_source):
    rows = [
        {"image": "a.png", "prefix": "p", "answers": "1", "licence": "CC0-1.0", "holder": "Ann"},
        {"image": "b.png", "prefix": "p", "answers": "2", "license": " MIT ", "address": None},
        {"image": "c.png", "prefix": "p", "answers": "3"},
        {"image": "d.png", "prefix": "p", "answers": "4", "licence": ["CC0-1.0"]},
    ]
    put_text(tmp_path / "mine/val.jsonl", "\n".join(map(json.dumps, rows)))
    items, rejects = read_source(own("jsonl", name="mine", prompt=PROMPT), "val", tmp_path)
    assert [item.licence for item in items] == [
        Licence(licence="CC0-1.0", holder="Ann"),
        Licence(licence="MIT"),
        Licence(),
    ]
    assert [r.reason for r in rejects] == ["licence must be a text, got ['CC0-1.0']"]


def test_a_question_stands_in_the_prompt_and_answers_are_what_is_learned(tmp_path, read_source):
    rows = [
        {"image": "a.png", "question": "How {many}?", "answers": ["2", "two"]},
        {"video": "b.mp4", "prefix": "said as it is {text}", "suffix": "x", "lang": "de"},
        {"image": "c.png", "answers": "3"},
        {"image": "c.png", "question": "q", "prefix": "p", "answers": "3"},
        {"image": "c.png", "question": "q"},
    ]
    put_text(tmp_path / "mine/val.jsonl", "\n\n".join(map(json.dumps, rows)))
    spec = own("jsonl", name="mine", prompt=PROMPT)
    items, rejects = read_source(spec, "val", tmp_path)
    assert [(i.id, i.part, i.task, i.prefix, i.suffixes, i.answers) for i in items] == [
        (
            "mine/val/a.png#0",
            "mine",
            "mine",
            "Q: How {many}? (en)",
            ("2", "two"),
            ("2", "two"),
        ),
        ("mine/val/b.mp4#1", "mine", "mine", "said as it is {text}", ("x",), ("x",)),
    ]
    assert [r.id for r in rejects] == [f"mine/val/line-{number}" for number in (5, 7, 9)]
    none, both, no_answer = (r.reason for r in rejects)
    assert none.startswith("question, or prefix, ")
    assert both.endswith("not both")
    assert no_answer.startswith("answers, or suffix, ")
    items, _ = read_source(own("jsonl", name="mine", prompt="caption {lang}"), "val", tmp_path)
    assert [i.prefix for i in items] == ["caption en", "said as it is {text}", "caption en"]


def mixed_ids(form: str, ids: Sequence[Any]) -> str:
    if form == "jsonl":
        rows = [{"image": "a.png", "question": "q", "answers": "x", "id": key} for key in ids]
        return "".join(
            json.dumps({k: v for k, v in r.items() if v is not None}) + "\n" for r in rows
        )
    return "image,question,answers,id\n" + "".join(
        f"a.png,q,x,{'' if key is None else key}\n" for key in ids
    )


@pytest.mark.parametrize("form", ["jsonl", "csv", "function"])
@pytest.mark.parametrize(
    ("stated", "keys"),
    [
        ([1, None, None, 0], ["1", "line-1", "2", "0"]),
        ([None, "0", "line-0", None], ["line-line-0", "0", "line-0", "3"]),
        ([2.0, None, None, "line-1", "x"], ["2", "1", "line-2", "line-1", "x"]),
        ([None, "b", "00", None], ["0", "b", "00", "3"]),  # No place is anybody's id.
        ([None, None], ["0", "1"]),
    ],
)
def test_a_place_is_no_other_rows_id(tmp_path, read_source, reader, form, stated, keys):
    name = form
    if form == "function":
        rows = [{"image": "a.png", "question": "q", "answers": "x", "id": key} for key in stated]
        name = reader(f"def read(folder, split):\n    yield from {rows}\n", "reads_ids")
        (tmp_path / "mine").mkdir()
    else:
        texts = ["2" if key == 2.0 and form == "csv" else key for key in stated]
        put_text(tmp_path / f"mine/val.{form}", mixed_ids(form, texts))
    items, rejects = read_source(own(name, name="mine", prompt=PROMPT), "val", tmp_path)
    assert not rejects
    assert [item.id for item in items] == [f"mine/val/a.png#{key}" for key in keys]


def test_two_rows_of_one_id_keep_it_beside_rows_without(tmp_path, read_source):
    lines = mixed_ids("jsonl", [2, None, 2])
    put_text(tmp_path / "mine/val.jsonl", lines.replace('"q"', "[", 1) + "no row\n")
    items, rejects = read_source(own("jsonl", name="mine", prompt=PROMPT), "val", tmp_path)
    # The first line states an id and is no row; the third has it, and the second its place.
    assert [item.id for item in items] == ["mine/val/a.png#1", "mine/val/a.png#2"]
    assert [r.id for r in rejects] == ["mine/val/line-1", "mine/val/line-4"]


def test_a_table_says_the_same_as_lines(tmp_path, read_source):
    put_text(
        tmp_path / "mine/train.csv",
        "image,question,answers,id,meta.kind\n"
        '"[""a.png"", ""b.png""]","[x] what, now?","[""1"", ""one""]",q1,\n'
        "c.png,How many?,7,,hard\n"
        "d.png,,7\n"
        "e.png,Why?,7,,,more\n",
    )
    items, rejects = read_source(
        own("csv", name="mine", prompt=PROMPT), "train", tmp_path, path="mine"
    )
    assert [m.path for m in items[0].media] == ["mine/a.png", "mine/b.png"]
    assert (items[0].prefix, items[0].answers) == ("Q: [x] what, now? (en)", ("1", "one"))
    assert (items[1].id, items[1].meta) == ("mine/train/c.png#1", {"kind": "hard"})
    assert [r.id for r in rejects] == ["mine/train/line-4", "mine/train/line-5"]
    assert rejects[0].reason.startswith("question, or prefix, ")
    assert rejects[1].reason.endswith(": ['more']")


def test_a_wrong_row_is_a_reject_and_the_others_are_read(tmp_path, read_source):
    put_text(
        tmp_path / "mine/train.csv",
        "image,question,answers,meta,meta.kind\na.png,Why?,7,abc,hard\nb.png,Why?,7,,hard\n",
    )
    items, rejects = read_source(own("csv", name="mine", prompt=PROMPT), "train", tmp_path)
    assert [m.path for item in items for m in item.media] == ["mine/b.png"]
    (wrong,) = rejects
    assert wrong.id == "mine/train/line-2"
    assert re.match("meta .*got 'abc'", wrong.reason)
    deep = "[" * 100_000
    put_text(tmp_path / "mine/train.jsonl", f'{{"image": "a.png", "meta": {deep}\n')
    items, rejects = read_source(own("jsonl", name="mine", prompt=PROMPT), "train", tmp_path)
    assert not items
    assert rejects[0].reason == "malformed line: nested too deeply"


def test_a_file_that_lacks_is_named(tmp_path, read_source):
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match=r"mine/val\.csv is missing"):
        read_source(own("csv", name="mine", prompt=PROMPT), "val", tmp_path)
    with pytest.raises(ValueError, match=r"split of mine .*name of a file"):
        source_spec(own("csv", name="mine", prompt=PROMPT)).parse("val+val")


READER = """
import csv

def read(folder, split):
    for line in (folder / "labels.txt").read_text().splitlines():
        name, answer = line.split()
        yield {"image": f"{name}.png", "question": "what?", "answers": answer}
    if split == "broken":
        raise KeyError("no such thing")
"""


def test_a_function_reads_what_no_layout_does(tmp_path, read_source, reader):
    reference = reader(READER, "reads_labels")
    put_text(tmp_path / "mine/labels.txt", "a cat\nb dog\n")
    put_image(tmp_path / "mine/a.png")
    put_image(tmp_path / "mine/unused.png")
    spec = own(reference, name="mine", prompt=PROMPT)
    items, rejects = read_source(spec, "val", tmp_path)
    assert [(i.id, i.prefix, i.answers) for i in items] == [
        ("mine/val/a.png#0", "Q: what? (en)", ("cat",)),
        ("mine/val/b.png#1", "Q: what? (en)", ("dog",)),
    ]
    assert not rejects
    # Whatever the function opens without a word, a changed label is a changed input.
    corpus = Corpus(tmp_path, "mine", UnpackedMedia(None))
    assert len(list(source_spec(spec).read_splits(corpus, "val"))) == 2
    assert corpus.annotations == {"mine/labels.txt"}
    told = r"reads_labels:read failed on split 'broken' after 2 rows: KeyError: 'no such thing' \("
    with pytest.raises(ValueError, match=told + r".*reads_labels\.py line 9\)"):
        read_source(spec, "broken", tmp_path)
    assert reader_module(reference) == "pipelines.sources.own.functions"


def test_a_function_that_yields_no_rows_has_them_rejected(tmp_path, read_source, reader):
    odd = "{'image': folder / 'a', 'answers': 'x', 'prefix': 'p', 'meta': {'a': {1}}}"
    rows = f"yield from ('a', {{'image': 3}}, {odd})"
    reference = reader(f"def read(folder, split):\n    {rows}\n", "reads_odd")
    (tmp_path / "mine").mkdir()
    items, rejects = read_source(own(reference, name="mine", prompt=PROMPT), "val", tmp_path)
    assert not items
    assert [r.id.rpartition("/")[2] for r in rejects] == ["row-1", "row-2", "row-3"]
    assert rejects[2].reason.startswith("meta must be of ")
    assert rejects[0].reason.startswith("must be an object ")
