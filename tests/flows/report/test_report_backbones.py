"""Reports of two backbones: retention and means are of one, and every form tells them apart."""

import csv
import dataclasses
import io
import json

import pytest

from flows.report.build import build_report
from flows.report.cells import Report
from flows.report.headline import headline_text
from flows.report.json_file import read_json
from flows.report.pareto import draw_pareto
from flows.report.plot import draw_scores
from flows.report.render import comparisons_to_csv, render_report
from flows.report.table_labels import TableLabels, label_report
from tests.flows.report.report_studies import CHANCE, PLAN, make, scores

SIGLIP, CLIP = "siglip2+gemma3", "clip+llama"


def on(backbone: str, name: str) -> str:
    return f"{name}@{backbone}"


def two_backbones() -> Report:
    """The report of `PLAN` on two backbones, of which the second scores half of the first."""
    plans = [
        dataclasses.replace(
            PLAN, benchmarks=tuple(on(name, b) for b in PLAN.benchmarks), backbone=name
        )
        for name in (SIGLIP, CLIP)
    ]
    all_scores = [
        make(on(name, s.benchmark), s.method, s.budget, s.seed, s.score * share)
        for name, share in ((SIGLIP, 1.0), (CLIP, 0.5))
        for s in scores()
    ]
    # Chance is far below both, so that either vanilla is a reference.
    chance = {row: 1.0 for plan in plans for row in plan.benchmarks}
    return build_report(dataclasses.replace(plans[0], also=(plans[1],)), all_scores, chance)


def test_retention_and_means_are_against_and_over_one_backbone():
    report = two_backbones()
    alone = build_report(PLAN, scores(), dict.fromkeys(PLAN.benchmarks, 1.0))
    first, second = report.sections[:2], report.sections[2:]
    assert {section.backbone for section in second} == {CLIP}
    for sections, share in ((first, 1.0), (second, 0.5)):
        for section, same in zip(sections, alone.sections, strict=True):
            assert section.title == same.benchmark
            # Against vanilla of this backbone: against the other's, the second's would be half.
            assert [c.retention for c in section.cells] == [c.retention for c in same.cells]
            means = [None if c.mean is None else c.mean * share for c in same.cells]
            assert [c.mean for c in section.cells] == pytest.approx(means)
    entries = [(a.backbone, a.method, a.budget, a.expected) for a in report.aggregates]
    one = [(a.method, a.budget, a.expected) for a in alone.aggregates]
    assert entries == [(name, *entry) for name in (SIGLIP, CLIP) for entry in one]
    retentions = [a.retention for a in alone.aggregates]
    assert [a.retention for a in report.aggregates] == retentions * 2
    assert {c.backbone for c in report.comparisons} == {SIGLIP, CLIP}


def test_every_form_tells_the_backbone_and_only_where_there_are_several():
    report = two_backbones()
    text = render_report(report, "md")
    assert f"## Over benchmarks ({CLIP})" in text
    assert f"## chartqa (relaxed_accuracy, {SIGLIP})" in text
    assert f"parcel − vanilla at 256 ({CLIP})" in text
    rows = list(csv.DictReader(io.StringIO(render_report(report, "csv"))))
    assert {(r["benchmark"], r["backbone"]) for r in rows} == {
        (on(name, row), name) for name in (SIGLIP, CLIP) for row in PLAN.benchmarks
    }
    means, siglip, others, clip = render_report(report, "latex").split(r"\end{table}")[:4]
    assert f"Means over benchmarks on {SIGLIP}" in means
    assert f"Scores on {SIGLIP}" in siglip
    assert f"Means over benchmarks on {CLIP}" in others
    assert f"Scores on {CLIP}" in clip
    compared = csv.DictReader(io.StringIO(comparisons_to_csv(report)))
    assert {row["backbone"] for row in compared} == {SIGLIP, CLIP}
    assert headline_text(report).startswith(f"{SIGLIP} parcel@256: ")
    alone = build_report(PLAN, scores(), CHANCE)
    for form in ("md", "csv", "json", "latex"):
        assert "backbone" not in render_report(alone, form)
    assert "backbone" not in comparisons_to_csv(alone)


def test_a_report_of_two_backbones_is_read_back_as_it_was():
    report = two_backbones()
    text = render_report(report, "json")
    again = read_json(text)
    assert render_report(again, "json") == text
    assert [s.view for s in again.sections] == [s.view for s in report.sections]
    assert {a["backbone"] for a in json.loads(text)["aggregates"]} == {SIGLIP, CLIP}


def test_labels_keep_the_means_of_each_backbone_together():
    labelled = label_report(
        two_backbones(), TableLabels(methods={"m3": "M³", "vanilla": "vanilla"})
    )
    backbones = [entry.backbone for entry in labelled.aggregates]
    assert backbones == [SIGLIP] * (len(backbones) // 2) + [CLIP] * (len(backbones) // 2)


@pytest.mark.slow
def test_plots_have_panels_of_their_own_for_each():
    report, one = two_backbones(), build_report(PLAN, scores(), CHANCE)
    assert draw_scores(report) != draw_scores(one)
    assert draw_pareto(report).startswith(b"\x89PNG")
