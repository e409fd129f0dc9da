"""Which cells a study has: every method at those of its budgets that it serves."""

import dataclasses
import types
import typing

import pytest

from flows.report.build import build
from flows.report.markdown import to_markdown
from flows.study.flow import _Study
from flows.study.load import ConfigError, load
from flows.study.plan import num_steps, results_plan
from model.connector.routing import Kind
from pipelines.benchmarks.registry import BENCHMARKS
from pipelines.sources.registry import SOURCES
from tests.flows.report.report_studies import make

TWELVE = typing.get_args(Kind)


def test_all_twelve_methods_are_accepted_and_run_where_they_can():
    study = load(overrides=[f"methods=[{','.join(TWELVE)}]"])
    assert len(TWELVE) == 12
    own = {method: study.budgets_of(method) for method in TWELVE}
    assert {method for method, served in own.items() if served == (16, 64, 256)} == set(TWELVE) - {
        "vanilla", "avgpool4", "avgpool2", "parcel_fixed2"
    }  # fmt: skip
    assert own["vanilla"] == (256,)
    assert own["avgpool4"] == (16,)
    assert own["avgpool2"] == (64,)
    assert own["parcel_fixed2"] == (64, 256)


def test_steps_count_only_the_cells_there_are():
    few, more = (
        load(overrides=[f"methods=[vanilla,{method}]"]) for method in ("avgpool4", "parcel_dual")
    )
    cells = len(few.rows) * few.num_seeds
    assert num_steps(more, "evaluate") - num_steps(few, "evaluate") == 2 * cells


def test_hygiene_is_off_unless_asked_for_and_a_step_per_corpus():
    plain, screened = load(), load(overrides=["hygiene.duplicates=remove"])
    assert plain.hygiene is None
    assert screened.hygiene is not None
    assert num_steps(screened, "prepare") - num_steps(plain, "prepare") == len(plain.sources)


def test_a_budget_a_method_does_not_serve_is_an_empty_cell():
    study = load(
        overrides=["methods=[vanilla,parcel,avgpool2]", "transfers.refcoco.transfer=false"]
    )
    plan = results_plan(study)
    scores = [
        make("chartqa", method, budget, seed, 50.0)
        for method in study.methods
        for budget in study.budgets_of(method)
        for seed in study.seeds
    ]
    report = build(plan, scores, {})
    assert report.sections[0].cell("avgpool2", 64).complete
    assert report.sections[0].cell("avgpool2", 16).expected == 0
    row = next(line for line in to_markdown(report).splitlines() if line.startswith("| avgpool2"))
    assert [cell.strip() for cell in row.split("|")[2:8]] == [
        "", "50.0 ± 0.0", "", "", "100.0", ""
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["methods=[vanilla,avgpool2]", "budgets=[16,256]"],
            r"budgets: avgpool2 serves none of \[16, 256\]; it serves 64\. Add one of these",
        ),
        (["methods=[vanilla,avgpool4]", "budgets=[16]"], "budgets must hold 256, all tokens"),
        (["methods=[parcel]", "budgets=[16,256,1024]"], r"no method serves \[1024\]"),
    ],
)
def test_budgets_that_no_cell_has_are_refused(overrides: list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        load(overrides=overrides)


def test_captions_are_decoded_with_their_beams(monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "chartqa", dataclasses.replace(BENCHMARKS["chartqa"], beams=3))
    study = types.SimpleNamespace(config=load())
    assert _Study._decode(study, "chartqa").decoding.beams == 3  # type: ignore[arg-type]
    assert _Study._decode(study, "refcoco").decoding.beams == 1  # type: ignore[arg-type]
    beams = {name: row.beams for name, row in BENCHMARKS.items() if row.beams > 1}
    assert beams == {"chartqa": 3, "cococap": 2, "nocaps": 2, "textcaps": 3}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("msrvtt_qa", "msrvtt_qa cannot be prepared, no source reads msrvtt_qa; leave it out"),
        ("docvqa", "docvqa cannot be scored, its metric 'missing' is not among .*; leave it out"),
    ],
)
def test_benchmarks_that_cannot_be_run_are_refused(name: str, told: str, monkeypatch):
    lacking = dataclasses.replace(BENCHMARKS["docvqa"])
    object.__setattr__(lacking, "metric", "missing")
    monkeypatch.setitem(BENCHMARKS, "docvqa", lacking)
    monkeypatch.delitem(SOURCES, "msrvtt_qa", raising=False)
    with pytest.raises(ConfigError, match=told) as refused:
        load(overrides=[f"transfers.{name}={{}}"])
    assert "\n" not in str(refused.value)
    if name == "docvqa":
        load(overrides=["transfers.docvqa={transfer: false}"])
