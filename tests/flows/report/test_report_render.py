"""Tables and files of a report: their text, what they show as missing, and their bytes."""

import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.report.build import build_report
from flows.report.cells import Report
from flows.report.json_file import read_json
from flows.report.markdown import to_markdown
from flows.report.pareto import draw_pareto
from flows.report.plot import draw_scores
from flows.report.render import FORMATS, render_report
from flows.report.result_columns import CELL_COLUMNS
from flows.report.table_labels import TableLabels, label_report
from tests.flows.report.report_studies import CHANCE, PLAN, SEEDS, make, rich_report, scores

REPORT = build_report(PLAN, scores(), CHANCE)


def rows_of(markdown: str, title: str, number: int = 0) -> dict[str, list[str]]:
    """Method -> fields of a table below the heading that starts with `title`: first or second."""
    table = markdown.split(f"## {title}", 1)[1].split("\n\n")[1 + number]
    lines = [[f.strip() for f in row.strip("|").split("|")] for row in table.splitlines()]
    return {line[0]: line[1:] for line in lines}


def test_markdown_shows_scores_retention_intervals_and_chance():
    text, title = render_report(REPORT, "md"), "chartqa (relaxed_accuracy)"
    rows, spreads = rows_of(text, title), rows_of(text, title, 1)
    assert rows["method"] == [
        "score @256",
        "score @64",
        "retention @256 [%]",
        "retention @64 [%]",
        "chance",
    ]
    assert spreads["method"] == [
        "95 % interval @256",
        "95 % interval @64",
        "over chance @256",
        "over chance @64",
        "seeds",
        "pretrainings",
        "items",
        "pictures",
    ]
    retentions = ["95.0 [90.4, 99.6]", "83.9 [33.5, 134.3]"]
    assert rows["parcel"] == ["57.0 ± 3.0", "49.5 ± 2.1 (2/3)", *retentions, "12.5"]
    assert spreads["parcel"] == [
        *("49.5 … 64.3", "31.0 … 68.1", "44.5", "37.0"),
        *("2–3", "1", "–", "–"),
    ]
    assert rows["vanilla"] == ["60.0 ± 2.0", "", "100.0", "", "12.5"]
    assert spreads["vanilla"] == ["55.0 … 64.9", "", "47.5", "", "3", "1", "–", "–"]
    assert rows_of(text, "refcoco (miou)", 1)["m3"][3] == "-2.0 ✗"


def test_markdown_shows_missing_cells_as_missing_with_the_seeds_there_are():
    text = render_report(REPORT, "md")
    assert rows_of(text, "chartqa")["m3"] == ["– (0/3)", "45.0 (1/3)", "–", "75.0", "12.5"]
    assert rows_of(text, "chartqa", 1)["m3"] == ["–", "–", "–", "32.5", "1", "1", "–", "–"]


def test_markdown_averages_over_benchmarks_only_when_all_are_there():
    table = render_report(REPORT, "md").split("## chartqa")[0]
    assert "mean score @256 | mean score @64 |\n" in table
    parcel = "| all | 2 | parcel | 94.2 [80.3, 108.0] | – (80.0 over 1/2 rows) | 49.5 | – |\n"
    assert parcel in table
    m3 = "| all | 2 | m3 | – (60.0 over 1/2 rows) | – (40.0 over 1/2 rows) | – | – |\n"
    assert m3 in table
    assert "| all | 2 | parcel | 46.1 … 52.9 | – | 3 | 1 |\n" in table


def test_every_form_marks_the_best_and_the_second_best_of_cells_and_of_means():
    own = [
        make(row, method, 256, seed, mean)
        for row, mean in (("chartqa", 40.0), ("refcoco", 60.0))
        for seed in SEEDS
        for method, mean in (("vanilla", 80.0), ("parcel", mean + 3), ("m3", mean))
    ]
    report = build_report(PLAN, own, {})
    table, chartqa = render_report(report, "md").split("## chartqa")
    assert "| all | 2 | parcel | **66.2** |  | **53.0** |" in table.replace("– (0/2 rows)", "")
    assert "| all | 2 | m3 | *62.5* |" in table
    assert "| parcel | **43.0 ± 0.0** | – (0/3) |" in chartqa
    assert "| m3 | *40.0 ± 0.0* |" in chartqa
    assert re.search(r"bold .*italic, vanilla apart", chartqa)
    means, scores = render_report(report, "latex").split(r"\end{table}")[:2]
    assert r"& parcel & $\mathbf{53.0}_{\pm 0.0}$ & -- & $\mathbf{66.2}$ & -- \\" in means
    assert r"& m3 & \underline{$50.0_{\pm 0.0}$} & -- & \underline{$62.5$} & -- \\" in means
    assert r"& m3 & \underline{$40.0_{\pm 0.0}$}" in scores
    linked = to_markdown(report, link=lambda text, c: f"[{text}](/{c.method})")
    assert "**[43.0 ± 0.0](/parcel)**" in linked


def test_markdown_links_the_cells_that_exist():
    text = to_markdown(
        REPORT, link=lambda text, c: f"[{text}](/v2/{c.benchmark}/{c.method}/{c.budget})"
    )
    assert "[57.0 ± 3.0](/v2/chartqa/parcel/256)" in text
    assert "/v2/chartqa/m3/256" not in text
    assert to_markdown(REPORT, link=lambda text, _: text) == render_report(REPORT, "md")


def test_csv_has_a_line_per_planned_cell_and_empty_fields_for_missing_numbers():
    lines = list(csv.DictReader(io.StringIO(render_report(REPORT, "csv"))))
    assert len(lines) == 10  # 2 benchmarks × (vanilla once + 2 methods × 2 budgets)
    assert list(lines[0]) == [c.name for c in CELL_COLUMNS if not c.is_optional]
    found = {(r["benchmark"], r["method"], r["budget"]): r for r in lines}
    missing = found["chartqa", "m3", "256"]
    assert [missing[c] for c in ("mean", "std", "n", "expected", "retention")] == [
        "",
        "",
        "0",
        "3",
        "",
    ]
    half = found["chartqa", "parcel", "64"]
    assert half["scores"] == f"{SEEDS[0]}=48.0000 {SEEDS[2]}=51.0000"
    assert half["retention"] == "83.8983"


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
def test_csv_gives_the_scores_back(ticks: list[int]):
    values = [t / 10**4 for t in ticks]
    own = [make("chartqa", "parcel", 64, s, v) for s, v in zip(SEEDS, values, strict=True)]
    report = build_report(PLAN, own, CHANCE)
    lines = csv.DictReader(io.StringIO(render_report(report, "csv")))
    read = [
        make(r["benchmark"], r["method"], int(r["budget"]), int(seed), float(value))
        for r in lines
        for seed, value in (pair.split("=") for pair in r["scores"].split())
    ]
    assert read == own
    assert build_report(PLAN, read, CHANCE) == report


def test_json_holds_every_seed_with_its_artifact():
    value = json.loads(render_report(REPORT, "json"))
    chartqa = value["benchmarks"][0]
    assert (chartqa["chance"], chartqa["reference"], chartqa["full_budget"]) == (
        12.5,
        "vanilla",
        256,
    )
    cell = next(c for c in chartqa["cells"] if (c["method"], c["budget"]) == ("parcel", 64))
    assert cell["scores"][1] == {
        "seed": SEEDS[2],
        "score": 51.0,
        "artifact": f"predictions/chartqa-parcel-64-{SEEDS[2]}",
    }
    missing = next(c for c in chartqa["cells"] if (c["method"], c["budget"]) == ("m3", 256))
    assert (missing["mean"], missing["n"], missing["scores"]) == (None, 0, [])
    assert len(value["aggregates"]) == 5


def test_every_form_shows_the_margin_and_no_retention_of_a_reference_below_chance():
    items = {"a": (50.0,), "b": (40.0,)}
    own = [dataclasses.replace(s, items=items) for s in scores() if s.benchmark == "refcoco"]
    # vanilla has 45; 5 to either side is too much.
    report = build_report(PLAN, own, {"refcoco": 44.0})
    error = report.sections[1].cell("vanilla", 256).error
    assert error > 5
    text = render_report(report, "md")
    assert rows_of(text, "refcoco")["vanilla"][2] == "–"
    assert rows_of(text, "refcoco", 1)["vanilla"][2] == f"1.0 ({1 / error:.1f} errors) ✗"
    lines = csv.DictReader(io.StringIO(render_report(report, "csv")))
    line = next(r for r in lines if (r["benchmark"], r["method"]) == ("refcoco", "vanilla"))
    shown = [line[c] for c in ("retention", "error", "margin", "above_chance")]
    assert shown == ["", f"{error:.4f}", "1.0000", "False"]
    cells = json.loads(render_report(report, "json"))["benchmarks"][1]["cells"]
    cell = next(c for c in cells if c["method"] == "vanilla")
    shown = [cell[c] for c in ("retention", "error", "margin", "above_chance")]
    assert shown == [None, pytest.approx(error, rel=1e-4), 1.0, False]
    assert r"refcoco & vanilla & $45.0_{\pm 5.0}^{\times}$ &" in render_report(
        one_method(report), "latex"
    )
    # The reference is what others are measured against: the best of them has no mark for it.
    alone = r"refcoco & vanilla & $45.0_{\pm 5.0}^{\times}$ &  & -- &  & 44.0 \\"
    assert alone in render_report(report, "latex")


def one_method(report: Report) -> Report:
    """The report with its first method alone, which is then no best of several."""
    sections = [
        dataclasses.replace(
            section, methods=section.methods[:1], cells=section.cells[: len(section.budgets)]
        )
        for section in report.sections
    ]
    return dataclasses.replace(report, sections=tuple(sections), aggregates=(), comparisons=())


def test_latex_is_a_balanced_booktabs_table():
    text = render_report(REPORT, "latex")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    parcel = (
        r"& parcel & $57.0_{\pm 3.0}$ & $49.5_{\pm 2.1}^{2/3}$ & $95.0_{[90.4, 99.6]}$ & $83.9_"
    )
    assert parcel in text
    assert r"& m3 & --$^{0/3}$ & $45.0^{1/3}$ & -- & $75.0$ &  \\" in text
    for table, separators in zip(text.split(r"\end{table}"), (5, 6), strict=False):
        body = [
            line for line in table.splitlines() if line.endswith(r" \\") and "multi" not in line
        ]
        assert {line.count(" & ") for line in body} == {separators}


def test_latex_marks_a_cell_that_is_not_above_chance_as_markdown_does():
    low = [make("refcoco", method, 256, seed, 10.0) for method in PLAN.methods for seed in SEEDS]
    report = build_report(PLAN, low, {"refcoco": 10.5})
    assert "-0.5 ✗" in render_report(report, "md")
    text = render_report(report, "latex")
    assert r"{\pm 0.0}^{\times}$" in text
    assert r"$^{\times}$: less than three standard errors" in text
    assert r"\times" not in render_report(build_report(PLAN, low, {"refcoco": 1.0}), "latex")


def test_latex_has_its_draws_in_the_caption_and_marks_what_stands():
    # Of parcel and m3, the difference to vanilla and to each other is clear; at 64 it is not.
    ticks = {"vanilla": (0.0, 0.1, 0.2), "m3": (5.0, 5.0, 5.1), "parcel": (9.0, 9.2, 9.1)}
    own = [
        make("chartqa", method, 256, seed, 50 + more)
        for method, values in ticks.items()
        for seed, more in zip(SEEDS, values, strict=True)
    ]
    own += [
        make("chartqa", method, 64, seed, 50 + more)
        for method, values in (("m3", (0.0, 5.0, 9.0)), ("parcel", (9.0, 0.0, 6.0)))
        for seed, more in zip(SEEDS, values, strict=True)
    ]
    text = render_report(build_report(PLAN, own, CHANCE), "latex")
    assert re.search(r"3 seeds from 1 pretraining\. .*Bold: .*\$\^\{\*\}\$ .*underlined: ", text)
    items = "1 pretraining, each score over 4 items about 3 pictures"
    assert items in render_report(rich_report(), "latex")
    assert r"& parcel & $\mathbf{59.1}_{\pm 0.1}^{*}$ & $\mathbf{55.0}_{\pm 4.6}$ &" in text
    assert r"& m3 & \underline{$55.0_{\pm 0.1}$} & \underline{$54.7_{\pm 4.5}$} &" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_and_wants_no_hand(tmp_path: Path):
    preamble = r"\documentclass{article}\usepackage{booktabs,amsmath}\begin{document}"
    text = render_report(rich_report(), "latex")
    (tmp_path / "table.tex").write_text(f"{preamble}\n{text}\n\\end{{document}}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_labels_rename_and_order_every_form():
    labels = TableLabels(
        methods={"parcel": "PARCEL (ours)", "vanilla": "PaliGemma"},
        benchmarks={"refcoco": "RefCOCO"},
        budgets=(64,),
    )
    report = label_report(REPORT, labels)
    assert [section.benchmark for section in report.sections] == ["RefCOCO", "chartqa"]
    section = report.sections[1]
    assert section.methods == ("PARCEL (ours)", "PaliGemma", "m3")
    assert section.budgets == (64, 256)
    assert section.cell("PARCEL (ours)", 256).mean == REPORT.sections[0].cell("parcel", 256).mean
    text = render_report(report, "latex")
    assert "& PARCEL (ours) & $49.5_{" in text
    for form in FORMATS:
        assert "PARCEL (ours)" in render_report(report, form)
    assert "vanilla" not in text
    with pytest.raises(ValueError, match=r"labels\.methods .* got parcl"):
        label_report(REPORT, TableLabels(methods={"parcl": "x"}))
    with pytest.raises(ValueError, match=r"labels\.methods .* got m3"):
        label_report(REPORT, TableLabels(methods={"parcel": "m3"}))


def test_latex_has_differences_to_a_baseline_that_is_named():
    labels = TableLabels(methods={"vanilla": "PaliGemma"}, baseline="vanilla")
    text = render_report(label_report(REPORT, labels), "latex")
    # 57, 60, 54 less 60, 62, 58 at 256 tokens; at 64, less the same: vanilla has no 64.
    assert r"$-3.0_{[-5.5, -0.5]}$ & $-9.5_{[-41.3, 22.3]}$" in text
    assert r"\multicolumn{2}{c}{Difference}" in text
    assert "Differences to PaliGemma at all its tokens" in text
    # The other way round than the comparison has it, m3 less parcel; its star stays.
    text = render_report(label_report(REPORT, TableLabels(baseline="m3")), "latex")
    assert r"$+15.0_{[6.4, 23.6]}^{*}$ & $+18.0$" in text
    assert "Difference" not in render_report(REPORT, "latex")
    with pytest.raises(ValueError, match=r"labels\.baseline .*vanilla.* got mqt"):
        label_report(REPORT, TableLabels(baseline="mqt"))


def test_latex_escapes_names():
    plan = type(PLAN)(**{**vars(PLAN), "methods": ("vanilla", "a_b&c", "m3", "parcel")})
    assert r"a\_b\&c" in render_report(build_report(plan, scores(), CHANCE), "latex")


@pytest.mark.parametrize("form", FORMATS)
def test_same_scores_give_the_same_bytes(form: str):
    again = build_report(PLAN, reversed(scores()), dict(reversed(CHANCE.items())))
    assert render_report(again, form) == render_report(REPORT, form)
    assert render_report(REPORT, form).endswith("\n")


def test_unknown_format_names_those_there_are():
    with pytest.raises(ValueError, match=r"format .*md, csv, json, latex, got 'xml'"):
        render_report(REPORT, "xml")


def test_plot_is_a_png_with_the_same_bytes_whatever_the_users_settings():
    import matplotlib

    first = draw_scores(REPORT)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert draw_scores(REPORT) == first
        assert matplotlib.rcParams["font.size"] == 30
    assert first.startswith(b"\x89PNG\r\n")
    assert b"Software" not in first


@pytest.mark.parametrize(("form", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF-")])
@pytest.mark.parametrize("draw", [draw_scores, draw_pareto])
def test_figures_in_vectors_have_the_same_bytes_and_their_labels(
    draw: Callable[[Report, str], bytes], form: str, start: bytes
):
    report = label_report(rich_report(), TableLabels(methods={"parcel": "PARCEL (ours)"}))
    first = draw(report, form)
    assert first.startswith(start)
    assert draw(report, form) == first
    assert first != draw(rich_report(), form)
    if form == "svg":
        # Text is drawn as outlines, with the text itself in a comment.
        assert b"PARCEL (ours)" in first
        assert (b"95 % intervals" in first) == (draw is draw_scores)


def test_plot_draws_a_study_without_any_score():
    assert draw_scores(build_report(PLAN, [], {})).startswith(b"\x89PNG")


def test_importing_the_report_imports_nothing_heavy():
    code = (
        "import sys, flows.report.render, flows.report.plot, flows.report.scores_file;"
        "print([m for m in ('matplotlib', 'numpy', 'prefect', 'ray', 'jax') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_without_the_reference_there_is_no_retention_anywhere():
    plan = dataclasses.replace(PLAN, methods=("parcel", "m3"), full_budget=256)
    own = [score for score in scores() if score.method != "vanilla"]
    report = build_report(plan, own, CHANCE)
    for form in ("md", "latex", "csv"):
        text = render_report(report, form)
        assert "etention" not in text, form
        assert "vanilla" not in text, form
    (section, _) = json.loads(render_report(report, "json"))["benchmarks"]
    assert not any("retention" in cell for cell in section["cells"])


def test_the_score_without_the_question_stands_beside_chance():
    report = build_report(PLAN, scores(), CHANCE, question_blind={"chartqa": 41.5})
    text = render_report(report, "md")
    assert rows_of(text, "chartqa")["method"][-2:] == ["chance", "no question"]
    assert rows_of(text, "chartqa")["parcel"][-2:] == ["12.5", "41.5"]
    # One without several questions on a picture has no such column.
    assert rows_of(text, "refcoco")["method"][-1] == "chance"
    assert "No question" in text
    assert "& No question" in render_report(report, "latex")
    rows = list(csv.DictReader(io.StringIO(render_report(report, "csv"))))
    assert {row["without_question"] for row in rows} == {"41.5000", ""}
    again = read_json(render_report(report, "json"))
    assert [s.without_question for s in again.sections] == [41.5, None]
    assert render_report(again, "md") == text
