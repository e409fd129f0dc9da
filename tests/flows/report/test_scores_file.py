"""Score files: the report of a small one, and one line for what is wrong with a bad one."""

from pathlib import Path

import pytest

from flows.report.render import render_report
from flows.report.scores_file import COLUMNS, ScoreFileError, paper_suites, read_scores

HEADER = ",".join(COLUMNS)
GOOD = [
    "general,GQA,224,256,m3,60.0,0.5,80.0",
    "general,GQA,224,64,m3,40.0,,80.0",
    "video,MSVD-QA,224,256,m3,30.0,1.0,60.0",
    "video,MSVD-QA,224,64,m3,,,60.0",
    "video,MSVD-QA,224,256,parcel,57.0,1.0,60.0",
    "general,GQA,448,1024,m3,90.0,0.1,80.0",
]


@pytest.fixture
def write(tmp_path: Path):
    def write(*lines: str, header: str = HEADER) -> Path:
        path = tmp_path / "scores.csv"
        path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
        return path

    return write


def test_rows_groups_and_resolutions_are_averaged(write):
    report = read_scores(write(*GOOD))
    gqa, _, high = report.sections
    assert (gqa.benchmark, gqa.group, gqa.resolution, gqa.budgets) == (
        "GQA",
        "general",
        224,
        (256, 64),
    )
    assert (high.resolution, high.full_budget) == (448, 1024)
    assert gqa.cell("m3", 256).retention == 75.0
    assert gqa.cell("vanilla", 256).mean == 80.0
    assert gqa.cell("vanilla", 64).expected == 0
    half = 4.302652729749 * 0.5 / 3**0.5
    assert gqa.cell("m3", 256).low == pytest.approx(60 - half)
    assert gqa.cell("m3", 64).low is None
    found = {(a.resolution, a.name, a.method, a.budget): a for a in report.aggregates}
    assert found[224, "all", "m3", 256].retention == 62.5
    assert found[224, "all", "m3", 256].mean == 45.0
    assert found[224, "all", "m3", 64].retention is None
    assert found[448, "general", "m3", 1024].retention == 112.5


def test_empty_and_absent_cells_are_missing(write):
    report = read_scores(write(*GOOD), seeds=5)
    empty, absent = report.sections[1].cell("m3", 64), report.sections[0].cell("parcel", 256)
    assert [(c.mean, c.n, c.expected) for c in (empty, absent)] == [(None, 0, 5)] * 2
    assert "– (0/5)" in render_report(report, "md")


def test_headline_suite_says_how_many_of_its_rows_there_are(write):
    found = {(a.name, a.method, a.budget): a for a in read_scores(write(*GOOD)).aggregates}
    headline = found["headline", "m3", 256]
    assert (headline.rows, headline.expected, headline.retention) == (2, 27, None)
    assert found["headline video", "parcel", 256].partial == 95.0
    assert [len(paper_suites()[n]) for n in ("headline", "headline video", "headline image")] == [
        27,
        5,
        22,
    ]


def test_column_order_and_a_byte_order_mark_do_not_matter(write, tmp_path: Path):
    swapped = "method,group,benchmark,resolution,budget,score_mean,score_std,pg2_score"
    path = write("m3,general,GQA,224,256,60.0,0.5,80.0", header="\ufeff" + swapped)
    assert read_scores(path).sections[0].cell("m3", 256).retention == 75.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("general,GQA,224,16,m3,sixty,0.5,80.0", "score_mean must be a number >= 0, or empty"),
        ("general,GQA,224,16,m3,nan,0.5,80.0", "score_mean must be a number >= 0"),
        ("general,GQA,224,16,m3,60,-1,80.0", "score_std must be a number >= 0"),
        ("general,GQA,224,16,m3,60,1,0", "pg2_score must be a number > 0, got '0'"),
        ("general,GQA,224,16,m3,60,1,", "pg2_score must be a number > 0, got ''"),
        ("general,GQA,224,sixteen,m3,60,1,80", "budget must be a whole number >= 1, got 'sixteen'"),
        ("general,GQA,-224,16,m3,60,1,80", "resolution must be a whole number >= 1, got '-224'"),
        ("general,,224,16,m3,60,1,80", "benchmark must be a name, got nothing"),
        ("general,GQA,224,16,vanilla,60,1,80", "method must not be vanilla"),
        ("general,GQA,224,16,m3,60,1", "must have 8 fields, got 7"),
        ("general,GQA,224,256,m3,61,1,80", "GQA at 224 px, got 256,m3 again after line 2"),
        ("general,GQA,224,16,m3,60,1,81", "pg2_score must be 80.0 for GQA at 224 px as in line 2"),
        ("video,GQA,224,16,m3,60,1,80", "group must be general for GQA at 224 px as in line 2"),
    ],
)
def test_a_bad_line_is_named_with_its_column_and_what_is_accepted(write, line, message):
    with pytest.raises(ScoreFileError) as caught:
        read_scores(write(*GOOD, line))
    text = str(caught.value)
    assert text.split("/")[-1].startswith("scores.csv:8: ")
    assert message in text
    assert "\n" not in text


def test_bad_files_are_named(write, tmp_path: Path):
    with pytest.raises(ScoreFileError, match=r"absent.csv: cannot be read, No such file"):
        read_scores(tmp_path / "absent.csv")
    with pytest.raises(ScoreFileError, match=r"scores.csv:1: header must hold the columns group"):
        read_scores(write(header="group,benchmark"))
    with pytest.raises(ScoreFileError, match=r"scores.csv:2: must hold at least one line"):
        read_scores(write())
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ScoreFileError, match=r"image.csv: cannot be read, not UTF-8 text"):
        read_scores(tmp_path / "image.csv")
    with pytest.raises(ValueError, match="seeds must be >= 1, got 0"):
        read_scores(write(*GOOD), seeds=0)
