"""Score files: the report of a small one, and one line for what is wrong with a bad one."""

import csv
import re
from pathlib import Path

import pytest

from flows.report.cells import Report
from flows.report.headline import headline_text
from flows.report.json_file import read_json, to_json
from flows.report.render import render_report
from flows.report.scores_file import COLUMNS, SEEDS, ScoreFileError, read_scores

HEADER = ",".join(COLUMNS)
WITH_SEEDS = f"{HEADER},{SEEDS}"
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
    found = {(a.resolution, a.name, a.method, a.budget): a for a in report.aggregates}
    # Both rows at 224 px are of the paper's 27; one row at 448 px is no group.
    assert {(resolution, name) for resolution, name, _, _ in found} == {(224, "main suite")}
    assert found[224, "main suite", "m3", 256].retention == 62.5
    assert found[224, "main suite", "m3", 256].mean == 45.0
    assert found[224, "main suite", "m3", 64].retention is None


def test_groups_that_only_the_file_has_are_averaged_too(write):
    lines = [f"mine,{name},224,256,m3,{score},,80.0" for name, score in (("a", 40), ("b", 60))]
    report = read_scores(write(*GOOD, *lines))
    found = {(a.name, a.method, a.budget): a for a in report.aggregates}
    assert {name for name, _, _ in found} == {"main suite", "mine", "all"}
    own = found["mine", "m3", 256]
    assert (own.retention, own.expected, own.of) == (62.5, 2, 0)
    assert found["all", "m3", 256].expected == 4


def test_empty_and_absent_cells_are_missing(write):
    report = read_scores(write(*GOOD))
    empty, absent = report.sections[1].cell("m3", 64), report.sections[0].cell("parcel", 256)
    assert [(c.mean, c.n, c.complete) for c in (empty, absent)] == [(None, 0, False)] * 2
    text = render_report(report, "md")
    assert re.search(r"\| m3 \| [*]*30\.0 ± 1\.0[*]* \| – \|", text)


def fields(report: Report, form: str = "csv") -> list[dict[str, str]]:
    return list(csv.DictReader(render_report(report, form).splitlines()))


def test_a_number_of_seeds_that_the_file_does_not_have_is_printed_nowhere(write):
    report = read_scores(write(*GOOD))
    assert report.sections[0].cell("m3", 256).complete
    for shown in (report, read_json(to_json(report))):
        assert {(row["n"], row["expected"], row["low"]) for row in fields(shown)} == {("", "", "")}
        assert {entry.seeds for entry in shown.aggregates} == {0}
        assert shown.sections[0].cell("m3", 256).std == 0.5
        text = render_report(shown, "md")
        # Not of vanilla either, nor of pretrainings.
        assert "| vanilla | – |" in text
        assert "| m3 | – |" in text
        assert re.search("number of pretrainings .*not known", text)
        assert not re.search(r"\d seeds?\b|\d pretrainings?\b|one seed|one pretraining", text)
        latex = render_report(shown, "latex")
        assert latex.count("over an unknown number of seeds") == 3
        assert "1 seed" not in latex


def test_numbers_of_seeds_in_the_file_are_printed_where_they_are_and_give_intervals(write):
    lines = [f"{line},{num}" for line, num in zip(GOOD, (3, "", 5, "", 5, 2), strict=True)]
    report = read_scores(write(*lines, header=WITH_SEEDS))
    found = {
        (row["benchmark"], row["resolution"], row["method"], row["budget"]): row["n"]
        for row in fields(report)
        if row["n"]
    }
    assert found == {
        ("GQA", "224", "m3", "256"): "3",
        ("MSVD-QA", "224", "m3", "256"): "5",
        ("MSVD-QA", "224", "parcel", "256"): "5",
        ("GQA", "448", "m3", "1024"): "2",
    }
    half = 4.302652729749 * 0.5 / 3**0.5
    assert report.sections[0].cell("m3", 256).low == pytest.approx(60 - half)
    assert report.sections[0].cell("m3", 64).low is None
    seeds = {(e.method, e.budget): e.seeds for e in report.aggregates}
    assert (seeds["m3", 256], seeds["m3", 64], seeds["vanilla", 256]) == (5, 0, 0)
    assert "over 5 seeds, " in render_report(report, "latex")
    assert read_json(to_json(report)).sections[0].cell("m3", 256).n == 3


def test_a_group_says_how_many_of_the_papers_benchmarks_it_has(write):
    report = read_scores(write(*GOOD))
    found = {(a.name, a.method, a.budget): a for a in report.aggregates}
    suite = found["main suite", "m3", 256]
    assert (suite.rows, suite.expected, suite.of) == (2, 2, 27)
    assert found["main suite", "parcel", 256].partial == 95.0
    assert "| main suite | 2 of 27 | m3 | 62.5 |" in render_report(report, "md")
    assert "main suite (2 of 27) & vanilla" in render_report(report, "latex")
    assert headline_text(report) == "m3@256: 62.5 % of vanilla over 2 of the 27 benchmarks"


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
    with pytest.raises(ScoreFileError, match=r"absent\.csv: .*No such file"):
        read_scores(tmp_path / "absent.csv")
    with pytest.raises(ScoreFileError, match=r"scores\.csv:1: .*columns group"):
        read_scores(write(header="group,benchmark"))
    with pytest.raises(ScoreFileError, match=r"scores\.csv:2: .*one line"):
        read_scores(write())
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ScoreFileError, match=r"image\.csv: .*not UTF-8"):
        read_scores(tmp_path / "image.csv")
    for seeds, message in (
        ("0", "seeds must be a whole number >= 1, got '0'"),
        ("1", "score_std must be empty with one seed, got '0.5'"),
    ):
        with pytest.raises(ScoreFileError, match=rf"scores.csv:2: {message}"):
            read_scores(write(f"{GOOD[0]},{seeds}", header=WITH_SEEDS))
