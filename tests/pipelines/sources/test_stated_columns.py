"""What a table says of its columns outside of its rows is read with them, or named."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from pipelines.records.example import _Example as Example
from pipelines.records.tfrecord import write_shard
from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture, write_tar
from tests.pipelines.sources.writing import put_text


def put_pictures(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(picture(number))


def captions(listed: Listed) -> list[tuple[str, str, str]]:
    return [(item.media[0].path, item.lang, *item.suffixes) for item in listed.items]


@pytest.mark.parametrize(
    ("name", "text", "unread"),
    [
        ("a.tsv", "image\tcaption\n1.png\ta pear\n2.png\ttwo figs\n", []),
        ("a.tsv", "similarity\ttext\timage_path\n0.25\ta pear\t1.png\n0.5\ttwo figs\t2.png\n", [2]),
        ("A.TSV", "\ufeffURL\tTEXT\r\nhttp://a.org/1.png\ta pear\r\n./2.png\ttwo figs\r\n", []),
        (
            "a.tsv.gz",
            'id\turl\tcaption\n1\thttp://a.org/1.png\t"a pear"\n2\t2.png\ttwo figs\n',
            [2],
        ),
    ],
)
def test_a_line_of_names_says_what_the_columns_of_a_tsv_hold(tmp_path, name, text, unread):
    put_pictures(tmp_path / "web", "1.png", "2.png")
    data = text.encode()
    (tmp_path / f"web/{name}").write_bytes(gzip.compress(data) if name.endswith("z") else data)
    listed = Listed(tmp_path)
    assert [(Path(path).name, text) for path, _, text in captions(listed)] == [
        ("1.png", "a pear"),
        ("2.png", "two figs"),
    ]
    assert not listed.rejects
    # A column that is not read is in the account; both pictures are named by a row.
    assert [omission.num for omission in listed.omissions] == unread
    assert all("which web does not read" in omission.reason for omission in listed.omissions)


def test_a_cell_beyond_the_names_of_a_tsv_is_a_reject(tmp_path):
    put_pictures(tmp_path / "web", "1.png")
    put_text(tmp_path / "web/a.tsv", "image\tcaption\n1.png\ta pear\tsku-5\n1.png\ta fig\n")
    listed = Listed(tmp_path)
    assert captions(listed) == [("web/1.png", "en", "a fig")]
    assert list(listed.reasons.values()) == ["more cells than columns: ['sku-5']"]


@pytest.mark.parametrize("line", ["sku-5\t1.png\ta pear", "a pear\t1.png\t0.25", "1\t2\t3\t4\t5"])
def test_further_columns_without_names_are_rejects(tmp_path, line):
    put_pictures(tmp_path / "web", "1.png")
    put_text(tmp_path / "web/a.tsv", f"{line}\nan apple\t1.png\nan empty cell\t1.png\t\n")
    listed = Listed(tmp_path)
    assert [text for _, _, text in captions(listed)] == ["an apple", "an empty cell"]
    (reason,) = listed.reasons.values()
    num = len(line.split("\t"))
    assert reason.startswith(f"line has {num} columns, two are read; name all in a first line")
    assert not listed.omissions


@pytest.mark.parametrize("caption", ["image", "caption", "a text", '"quoted'])
def test_a_caption_that_is_a_word_of_ours_is_no_line_of_names(tmp_path, caption):
    put_pictures(tmp_path / "web", "1.png")
    put_text(tmp_path / "web/a.tsv", f"{caption}\t1.png\nan apple\t1.png\n")
    listed = Listed(tmp_path)
    assert [text for _, _, text in captions(listed)] == [caption, "an apple"]
    assert not listed.rejects


def write_row(path: Path, **fields: object) -> None:
    write_table(path, [{"image": picture(5), **fields}])


def write_table(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".tar":
        members = [("0.png", picture(5)), ("0.json", json.dumps({"caption": rows[0]["caption"]}))]
        write_tar(path, members)
    elif path.suffix == ".jsonl":
        (path.parent / "1.png").write_bytes(picture(5))
        path.write_text("".join(json.dumps({**row, "image": "1.png"}) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        feather.write_feather(pa.Table.from_pylist(rows), str(path))


@pytest.mark.parametrize("form", ["parquet", "feather", "jsonl", "tar"])
def test_a_folder_that_states_a_column_is_read_as_the_column(tmp_path, form):
    for folder in ("LANGUAGE=de", "date=2024-05-06/LANGUAGE=zh%2DHans", "LANGUAGE="):
        write_row(tmp_path / f"web/{folder}/a.{form}", caption=f"in {folder}")
    null = "x/LANGUAGE=__HIVE_DEFAULT_PARTITION__/"
    write_row(tmp_path / f"web/{null}/a.{form}", caption="in none")
    listed = Listed(tmp_path)
    assert sorted((prefix, lang, *suffixes) for _, prefix, suffixes, lang in listed.texts()) == [
        ("caption de", "de", "in LANGUAGE=de"),
        ("caption en", "en", "in LANGUAGE="),
        ("caption en", "en", "in none"),
        ("caption zh-Hans", "zh-Hans", "in date=2024-05-06/LANGUAGE=zh%2DHans"),
    ]
    # A column that is not read is named as one of the file is.
    (omission,) = listed.omissions
    assert omission.reason == "field date, which web does not read"


def test_a_folder_may_state_the_licence_the_size_and_a_text(tmp_path):
    folder = "license=CC%20BY%2F4.0/width=24/caption=a%20%3D%20b/height=36"
    write_row(tmp_path / f"web/{folder}/a.parquet", objects=[{"label": "fig", "box": [1, 2, 5, 9]}])
    listed = Listed(tmp_path, features={"licence": "license"}, tasks=("caption", "detect"))
    assert not listed.rejects
    assert not listed.omissions
    assert {item.licence.licence for item in listed.items} == {"CC BY/4.0"}
    assert {item.task: item.annotated_size for item in listed.items}["detect"] == (24, 36)
    assert {item.suffixes for item in listed.items if item.task == "caption"} == {("a = b",)}


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_row_that_contradicts_its_folder_is_a_reject(tmp_path, form):
    twofold = tmp_path / f"web/LANGUAGE=de/a/LANGUAGE=fr/a.{form}"
    write_table(twofold, [{"image": picture(5), "caption": "a"}])
    (reason,) = Listed(tmp_path).reasons.values()
    assert reason == "folders have LANGUAGE as 'de' and as 'fr'"
    twofold.unlink()
    rows = [
        {"image": picture(5), "caption": f"text {n}", "LANGUAGE": language}
        for n, language in enumerate(("fr", "de", None))
    ]
    write_table(tmp_path / f"web/LANGUAGE=de/a.{form}", rows)
    listed = Listed(tmp_path)
    assert [(item.suffixes, item.lang) for item in listed.items] == [
        (("text 1",), "de"),
        (("text 2",), "de"),
    ]
    assert list(listed.reasons.values()) == ["LANGUAGE is 'fr', its folder's name has 'de'"]


def test_a_member_that_contradicts_its_folder_costs_its_sample_alone(tmp_path):
    fields = json.dumps({"LANGUAGE": "fr"})
    members = [("0.png", picture(1)), ("0.txt", "a"), ("0.json", fields)]
    members += [("1.png", picture(2)), ("1.txt", "b")]
    write_tar(tmp_path / "web/LANGUAGE=de/a.tar", members)
    listed = Listed(tmp_path)
    assert [(item.suffixes, item.lang) for item in listed.items] == [(("b",), "de")]
    (reason,) = listed.reasons.values()
    assert reason.startswith("LANGUAGE is 'fr', its folder's name has 'de'")


def test_folders_of_examples_state_features(tmp_path):
    for name, language in (("code=de", b""), ("code=fr", b"fr"), ("code=it", b"de")):
        example = Example()
        example.features.feature["image"].bytes_list.value.append(picture(4))
        example.features.feature["text"].bytes_list.value.append(name.encode())
        if language:
            example.features.feature["code"].bytes_list.value.append(language)
        folder = tmp_path / f"tfrecord/{name}/day=7"
        folder.mkdir(parents=True)
        write_shard(folder / "a.tfrecord", [example.SerializeToString()])
        (folder / "a.idx").unlink()
    features = {"image": "image", "caption": "text", "lang": "code"}
    listed = Listed(tmp_path, "tfrecord", features=features)
    assert [(item.prefix, *item.suffixes) for item in listed.items] == [
        ("caption de", "code=de"),
        ("caption fr", "code=fr"),
    ]
    assert list(listed.reasons.values()) == ["code is 'de', its folder's name has 'it'"]
    reasons = {omission.reason for omission in listed.omissions}
    assert reasons == {"feature day, which no field of features names"}


ANIMALS = {"names": ["cat", "dog", "fig tree"], "_type": "ClassLabel"}
TEXT = {"dtype": "string", "_type": "Value"}


def put_classes(path: Path, features: dict, columns: dict[str, pa.Array]) -> None:
    """Writes a table with what `datasets` notes of its columns."""
    num = len(next(iter(columns.values())))
    columns = {"image": pa.array([picture(n) for n in range(num)]), **columns}
    note = json.dumps({"info": {"features": features}, "fingerprint": "0"})
    table = pa.table(columns).replace_schema_metadata({"huggingface": note})
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_classes_of_datasets_are_their_names(tmp_path, form, wrapped):
    pair = pa.struct([("question", pa.string()), ("answer", pa.list_(pa.int64()))])
    pairs = [[{"question": "what?", "answer": [1, 2]}, {"question": "who?", "answer": [0]}]]
    objects = pa.array([{"label": [2, 0], "box": [[1, 1, 4, 5], [2, 6, 7, 8]]}])
    answer = {"feature": ANIMALS, "length": -1, "_type": "Sequence"} if wrapped else [ANIMALS]
    of_pair = {"question": TEXT, "answer": answer}
    qa = {"feature": of_pair, "_type": "List"} if wrapped else [of_pair]
    of_objects = {"label": ANIMALS, "box": {"feature": TEXT, "_type": "List"}}
    features = {
        "caption": ANIMALS,
        "qa": qa,
        "objects": {"feature": of_objects, "_type": "Sequence"} if wrapped else of_objects,
    }
    columns = {"caption": pa.array([1]), "qa": pa.array(pairs, pa.list_(pair)), "objects": objects}
    put_classes(tmp_path / f"web/a.{form}", features, columns)
    listed = Listed(tmp_path, per_task=9, tasks=("caption", "vqa", "grounded_caption"))
    assert not listed.rejects
    assert sorted((item.task, *item.suffixes) for item in listed.items) == [
        ("caption", "dog"),
        ("grounded_caption", "cat"),
        ("grounded_caption", "fig tree"),
        ("vqa", "cat"),
        ("vqa", "dog", "fig tree"),
    ]


def test_a_class_without_a_name_is_a_number_or_none(tmp_path):
    put_classes(tmp_path / "web/a.parquet", {"caption": ANIMALS}, {"caption": pa.array([2, -1, 3])})
    listed = Listed(tmp_path)
    assert [text for _, _, text in captions(listed)] == ["fig tree"]
    assert list(listed.reasons.values()) == [
        "no caption or annotation",
        "caption en must be a text, got 3",
    ]


@pytest.mark.parametrize("note", [b"{", b"[]", b'{"info": {"features": [1]}}', b'{"info": 3}'])
def test_a_note_that_is_none_of_datasets_is_no_class(tmp_path, note):
    table = pa.table({"image": [picture(1)], "caption": ["a fig"], "width": pa.array([12])})
    (tmp_path / "web").mkdir()
    parquet.write_table(
        table.replace_schema_metadata({"huggingface": note}), tmp_path / "web/a.parquet"
    )
    assert [text for _, _, text in captions(Listed(tmp_path))] == ["a fig"]
