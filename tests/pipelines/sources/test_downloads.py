"""What img2dataset leaves behind, in each of its formats: pictures, their rows, and what failed."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture, write_tar
from tests.pipelines.sources.writing import put_json, put_lines

FAILED = "rows whose status is not success"


def row(number: int, status: str = "success", **fields: object) -> dict:
    """Returns a row as img2dataset writes it; statuses but success come with a message."""
    return {
        "url": f"https://a.org/pic-{number}.jpg?size=9",
        "caption": f"figs {number}",
        "key": f"{number:09d}",
        "status": status,
        "error_message": None if status == "success" else "HTTP Error 404: Not Found",
        "width": 12 if status == "success" else None,
        **fields,
    }


def put_rows(path: Path, *rows: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)


def put_files(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(picture(number))


def texts(listed: Listed) -> dict[str, str]:
    return {item.media[0].path: item.suffixes[0] for item in listed.items}


def failures(listed: Listed) -> list[tuple]:
    return [(o.source, o.reason, o.num) for o in sorted(listed.omissions)]


@pytest.mark.parametrize("column", ["jpg", "webp"])
def test_rows_without_a_download_are_no_samples(tmp_path, column):
    rows = [row(n, **{column: picture(n)}) for n in (0, 3)]
    rows += [row(n, "failed_to_download", **{column: None}) for n in (1, 2)]
    rows += [row(4, "failed_to_resize", **{column: None})]
    put_rows(tmp_path / "web/00000.parquet", *rows)
    put_json(tmp_path / "web/00000_stats.json", {"count": 5, "successes": 2})
    listed = Listed(tmp_path)
    assert [item.suffixes for item in listed.items] == [("figs 0",), ("figs 3",)]
    assert not listed.rejects
    assert failures(listed) == [("web/00000.parquet", FAILED, 3)]


@pytest.mark.parametrize("extension", ["jpg", "png", "webp"])
def test_a_row_of_files_names_its_picture_by_key(tmp_path, extension):
    put_rows(tmp_path / "web/a/00007.parquet", row(70), row(71, "failed_to_download"), row(72))
    names = (f"000000070.{extension}", f"000000072.{extension}", "000000099.png")
    put_files(tmp_path / "web/a/00007", *names)
    for key in ("000000070", "000000072"):
        put_json(tmp_path / f"web/a/00007/{key}.json", row(int(key)))
        (tmp_path / f"web/a/00007/{key}.txt").write_text(f"figs {int(key)}")
    put_json(tmp_path / "web/a/00007_stats.json", {"count": 3})
    # Beside no picture it is no row once more.
    put_json(tmp_path / "web/a/00007/000000071.json", row(71))
    listed = Listed(tmp_path)
    assert texts(listed) == {
        f"web/a/00007/000000070.{extension}": "figs 70",
        f"web/a/00007/000000072.{extension}": "figs 72",
    }
    assert not listed.rejects
    assert failures(listed) == [
        ("web/a/00007.parquet", FAILED, 1),
        ("web/a/00007/000000071.json", "no kind of file that web reads", 1),
        ("web/a/00007/000000099.png", "no list names this file", 1),
    ]


def test_two_files_of_a_key_are_not_chosen_from(tmp_path):
    put_rows(tmp_path / "web/0.parquet", row(1), row(2))
    put_files(tmp_path / "web/0", "000000001.jpg", "000000001.png", "000000002.jpg")
    listed = Listed(tmp_path)
    assert texts(listed) == {"web/0/000000002.jpg": "figs 2"}
    assert list(listed.reasons.values()) == [
        "different files in the fields key, key, one is expected"
    ]


def test_a_key_without_a_file_is_looked_for_by_url(tmp_path):
    put_rows(tmp_path / "web/0.parquet", row(1), row(2))
    put_files(tmp_path / "web/0", "pic-1.jpg")
    listed = Listed(tmp_path)
    assert texts(listed) == {"web/0/pic-1.jpg": "figs 1"}
    (reason,) = listed.reasons.values()
    assert reason.startswith("only a URL; download the images first")


def test_a_list_of_lines_has_failed_downloads_too(tmp_path):
    put_lines(tmp_path / "web/0.jsonl", [row(1), row(2, "failed_to_subsample")])
    put_files(tmp_path / "web/0", "000000001.webp")
    listed = Listed(tmp_path)
    assert texts(listed) == {"web/0/000000001.webp": "figs 1"}
    assert failures(listed) == [("web/0.jsonl", FAILED, 1)]
    assert not listed.rejects


def test_another_status_is_no_download(tmp_path):
    fields = {"caption": "a fig", "status": "published", "image": "0.png", "key": 5}
    put_lines(tmp_path / "web/0.jsonl", [fields])
    put_files(tmp_path / "web", "0.png")
    listed = Listed(tmp_path)
    assert texts(listed) == {"web/0.png": "a fig"}


def test_statistics_of_nothing_are_named(tmp_path):
    write_tar(tmp_path / "web/0.tar", [("0.png", picture(1)), ("0.json", json.dumps(row(0)))])
    put_json(tmp_path / "web/0_stats.json", {})
    put_json(tmp_path / "web/1_stats.json", {})
    listed = Listed(tmp_path)
    assert [o.source for o in listed.omissions] == ["web/1_stats.json"]
