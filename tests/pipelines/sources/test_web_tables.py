"""Tables of web images: one content reads the same from every container, and odd ones are named."""

import base64
import csv
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture, write_tar

WORD = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=8)
PAIR = st.fixed_dictionaries({"question": WORD, "answer": WORD})
ROW = st.fixed_dictionaries(
    {"caption": st.one_of(st.none(), WORD), "qa": st.lists(PAIR, min_size=1, max_size=2)},
    optional={"LANGUAGE": st.sampled_from(["de", None])},
)


def write_table(path: Path, form: str, rows: list[dict[str, Any]]) -> None:
    """Writes rows in a form; a picture is bytes, and base64 where a form holds texts only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "tar":
        members = []
        for number, row in enumerate(rows):
            fields = json.dumps({k: v for k, v in row.items() if k != "image"}).encode()
            members += [(f"{number}.png", row["image"]), (f"{number}.json", fields)]
        write_tar(path, members)
        return
    if form in ("parquet", "arrow", "feather"):
        table = pa.Table.from_pylist(rows, pa.schema(list(_SCHEMA)))
        if form == "parquet":
            parquet.write_table(table, path)
        elif form == "feather":
            feather.write_feather(table, str(path), chunksize=2)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
                out.write_table(table, max_chunksize=2)
        return
    texts = [{**row, "image": base64.b64encode(row["image"]).decode()} for row in rows]
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in texts))
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [name for name, _ in _SCHEMA])
        table.writeheader()
        table.writerows({**row, "qa": json.dumps(row["qa"])} for row in texts)


_SCHEMA = (
    ("image", pa.binary()),
    ("caption", pa.string()),
    ("LANGUAGE", pa.string()),
    ("qa", pa.list_(pa.struct([("question", pa.string()), ("answer", pa.string())]))),
)


@settings(deadline=None, max_examples=15)
@given(st.lists(ROW, min_size=1, max_size=5))
def test_one_content_is_the_same_in_every_container(rows):
    rows = [{"LANGUAGE": None, **row, "image": picture(n)} for n, row in enumerate(rows)]
    readings = {}
    for form in ("jsonl", "csv", "parquet", "arrow", "feather", "tar"):
        with tempfile.TemporaryDirectory() as folder:
            write_table(Path(folder) / f"web/t.{form}", form, rows)
            listed = Listed(Path(folder), per_task=9)
        assert not listed.omissions
        readings[form] = (
            sorted(
                (item.prefix, item.suffixes, item.lang, item.answers, listed.pixels[item.id])
                for item in listed.items
            ),
            sorted(listed.reasons.values()),
        )
    assert readings["jsonl"][0]
    assert {form for form, reading in readings.items() if reading != readings["jsonl"]} == set()


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("image,caption,caption\na.png,x,y\n", ["table must have a column of each name, got"]),
        ('image,"caption\na.png,x\n', ["table must begin with a line of column names"]),
        ("image,caption\na.png,x,y\n", ["more cells than columns: ['y']"]),
        ('image,caption\na.png,"x\n', ["a quote that is opened from line 2 on is never closed"]),
        ("image,qa\na.png,\"[{'question': 'a'}]\"\n", ["qa begins as JSON does and is not JSON"]),
        ("image,caption\n,x\n", ["no image among the fields caption"]),
        ("image,caption\n\"{'path': 'a.png'}\",x\n", ["image begins as JSON does and is not"]),
    ],
)
def test_an_odd_table_is_a_reject_that_says_what_is_odd(tmp_path, text, reasons):
    write_tar(tmp_path / "web/a.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    (tmp_path / "web/t.csv").write_text(text)
    listed = Listed(tmp_path)
    assert len(listed.items) == 1
    assert [reject.source for reject in listed.rejects] == ["web/t.csv"] * len(reasons)
    found = sorted(listed.reasons.values())
    assert all(one.startswith(reason) for one, reason in zip(found, reasons, strict=True)), found


@pytest.mark.parametrize("text", ["a caption,no address\n", "id;image;caption\n1;a.png;x\n", "\n"])
def test_a_table_that_names_no_pictures_is_passed_over(tmp_path, text):
    write_tar(tmp_path / "web/a.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    (tmp_path / "web/labels.csv.gz").write_bytes(gzip.compress(text.encode()))
    listed = Listed(tmp_path)
    assert (len(listed.items), listed.rejects) == (1, [])
    (omission,) = listed.omissions
    assert omission.source == "web/labels.csv.gz"
    assert omission.reason.startswith("table without a column ")


@pytest.mark.parametrize("form", ["arrow", "feather"])
@pytest.mark.parametrize("share", [0, 0.1, 0.7, 1])
def test_an_arrow_table_that_is_cut_off_is_one_reject(tmp_path, form, share):
    rows = [{"image": picture(n), "caption": f"text {n}"} for n in range(40)]
    write_table(tmp_path / f"web/t.{form}", form, rows)
    whole = (tmp_path / f"web/t.{form}").read_bytes()
    # All but the mark of the end: every batch is there, but nothing says that these are all.
    size = len(whole) - 8 if share == 1 else int(len(whole) * share)
    (tmp_path / f"web/t.{form}").write_bytes(whole[:size])
    listed = Listed(tmp_path)
    (reason,) = listed.reasons.values()
    # A stream's batches come one after the other; without its end, a file has no list of them.
    is_damaged = form == "feather" or share < 1
    assert reason.startswith(f"damaged {form}: " if is_damaged else "the stream lacks the mark")
    num_read = {0: 0, 1: 40}.get(share, len(listed.items)) if form == "arrow" else 0
    assert len(listed.items) == num_read
    assert share != 0.7 or form != "arrow" or 10 < num_read < 40


def test_urls_of_csv_and_arrow_count_among_those_that_end_alike(tmp_path):
    (tmp_path / "web/images").mkdir(parents=True)
    for name in ("1.png", "2.png"):
        (tmp_path / "web/images" / name).write_bytes(picture(int(name[0])))
    (tmp_path / "web/t.csv").write_text("url,caption\nhttp://a/1.png,x\nhttp://a/2.png,y\n")
    table = pa.table({"url": ["http://b/1.png"], "caption": ["z"]})
    feather.write_feather(table, str(tmp_path / "web/u.feather"))
    listed = Listed(tmp_path)
    assert [item.suffixes for item in listed.items] == [("y",)]
    assert {reason[:30] for reason in listed.reasons.values()} == {"several URLs end in '1.png', a"}
