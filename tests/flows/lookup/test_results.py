"""`parcel results`: its output for a score file, and its refusals."""

from pathlib import Path

import pytest

from flows.lookup.results import show_results
from flows.report.scores_file import COLUMNS
from infra.errors import ConfigError
from infra.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_score_file_is_reported(store: Store, tmp_path: Path):
    path = tmp_path / "scores.csv"
    path.write_text(",".join(COLUMNS) + "\nvideo,MSVD-QA,224,256,m3,30.0,1.0,60.0\n")
    assert "| m3 | 30.0 ± 1.0 | 50.0 |" in show_results(store, None, "md", path)
    assert "MSVD-QA,m3,256,30.0000,1.0000,,,50.0000" in show_results(store, None, "csv", path)


@pytest.mark.parametrize(
    ("run", "form", "scores", "message"),
    [
        (None, "md", None, "either RUN or --scores FILE.csv, got neither"),
        ("demo", "md", Path("scores.csv"), "either RUN or --scores FILE.csv, got both"),
        (
            "demo",
            "xml",
            None,
            "must be one of md, csv, json, latex, comparisons, cells, asked, items, eee, hub, "
            "png, svg, pdf, html, got 'xml'",
        ),
        (
            None,
            "cells",
            Path("scores.csv"),
            "--format cells needs RUN, got --scores; use --format csv",
        ),
        (None, "md", Path("absent.csv"), "--scores: absent.csv: cannot be read, No such file"),
        ("demo", "md", None, "RUN must name a finished run, got 'demo'"),
    ],
)
def test_wrong_requests_are_told_in_one_line(store: Store, run, form, scores, message):
    with pytest.raises(ConfigError) as caught:
        show_results(store, run, form, scores)
    assert message in str(caught.value)
