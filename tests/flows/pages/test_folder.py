"""The pages of a run as a folder: whole by itself, and of that run only."""

import collections
import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.flows.conftest import Done


@pytest.mark.slow
def test_a_folder_has_every_page_it_links_to_and_needs_nothing_else(
    parcel: Callable[..., Done], toy: Store, tmp_path: Path
):
    out = tmp_path / "sent"
    done = parcel(
        "results", "toy", "--format", "html", "--out", out, "--items", 7, "--store", toy.uri
    )
    assert (done.code, done.err) == (0, "")
    texts = {path.name: path.read_text() for path in out.glob("*.html")}
    assert done.out == f"{len(texts)} pages: {out / 'index.html'}\n"
    linked = {
        html.unescape(one)
        for text in texts.values()
        for one in re.findall(r'(?:href|src|action)="([^"]+)"', text)
    }
    assert linked | {"index.html"} == {path.name for path in out.iterdir()}
    assert not any("<form" in text for text in texts.values())
    scripts = {one for text in texts.values() for one in re.findall("<script.*", text)}
    assert [re.sub("-[0-9a-f]{10}", "", one) for one in scripts] == [
        '<script src="script.js" defer></script>'
    ]
    # The table and its figures: scores, retention, costs, all curves, those of the second row.
    endings = collections.Counter(path.suffix for path in out.iterdir() if "-toy-" in path.name)
    assert [endings[ending] for ending in (".csv", ".tex", ".parquet")] == [1, 1, 1]
    assert [endings[ending] for ending in (".svg", ".pdf")] == [5, 5]
    changed = [name for name in texts if "changed" in name]
    # vanilla, parcel and mqt at 64 tokens, parcel and mqt at 16; of two rows.
    assert len(changed) == 2 * (3 + 1)
    for name, text in texts.items():
        assert text.count('<article class="card">') <= 8, name
    (drawn,) = (
        text for name, text in texts.items() if name.startswith("item-") and "segment-002" in name
    )
    assert "<rect " in drawn


def test_wrong_requests_are_one_line(parcel: Callable[..., Done], toy: Store, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    asked = {
        ("toy", "--format", "html"): "--format html needs RUN, a study's name, and --out DIR",
        ("--format", "html", "--out", tmp_path / "x"): "--format html needs RUN",
        ("toy", "--format", "html", "--out", tmp_path / "full"): "--out must be a new or empty",
        ("no", "--format", "html", "--out", tmp_path / "x"): "RUN must name a finished run",
        ("toy", "--out", tmp_path / "x"): "--out needs --format html",
    }
    for words, said in asked.items():
        done = parcel("results", *words, "--store", toy.uri)
        assert done.code == 2, words
        assert said in done.err
        assert done.err.count("\n") == 1
    assert not (tmp_path / "x").exists()
