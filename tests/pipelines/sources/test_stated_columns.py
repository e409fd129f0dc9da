"""What a table says of its columns outside of its rows is read with them, or named."""

import gzip
from pathlib import Path

import pytest

from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture
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
    assert reason.startswith(f"line has {num} columns, a caption and a path or URL are read; name")
    assert not listed.omissions


@pytest.mark.parametrize("caption", ["image", "caption", "a text", '"quoted'])
def test_a_caption_that_is_a_word_of_ours_is_no_line_of_names(tmp_path, caption):
    put_pictures(tmp_path / "web", "1.png")
    put_text(tmp_path / "web/a.tsv", f"{caption}\t1.png\nan apple\t1.png\n")
    listed = Listed(tmp_path)
    assert [text for _, _, text in captions(listed)] == [caption, "an apple"]
    assert not listed.rejects
