"""Every row of the paper's score file is served by a benchmark and a split of its reader."""

import csv
from pathlib import Path

import pytest

from pipelines.sources.registry import BENCHMARKS, row_of_title

SCORES = Path(__file__).parents[3] / ".." / "shared" / "paper" / "detailed_scores.csv"

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not SCORES.is_file(), reason="needs ../shared/paper/detailed_scores.csv"),
]


@pytest.fixture(scope="module")
def scored() -> set[tuple[str, str, int]]:
    with SCORES.open(newline="") as file:
        return {(r["group"], r["benchmark"], int(r["resolution"])) for r in csv.DictReader(file)}


def test_every_row_is_served_at_its_resolution(scored):
    for group, title, resolution in scored:
        benchmark, row = row_of_title(title)
        assert resolution in row.resolutions, (title, resolution)
        assert resolution in (benchmark.recipes or BENCHMARKS[benchmark.parent].recipes), title
        if group in ("video", "refcoco", "resolution_sensitive"):
            assert row.suite == "main", title


def test_no_resolution_is_claimed_that_the_paper_lacks(scored):
    found = {
        (row.titles[0], side)
        for b in BENCHMARKS.values()
        for row in b.rows
        for side in row.resolutions
    }
    there = {(row_of_title(title)[1].titles[0], side) for _, title, side in scored}
    assert found == there


RECIPES = SCORES.parents[1] / "reference" / "recipes.md"

NAMES = {
    "COCOcap (cococap)": "cococap", "COCO-35L (coco35l)": "coco35l", "TextCaps": "textcaps",
    "SciCap": "scicap", "Screen2Words": "screen2words", "WidgetCap": "widgetcap",
    "VQAv2": "vqav2", "OKVQA": "okvqa", "A-OKVQA DA": "aokvqa_da", "A-OKVQA MC": "aokvqa_mc",
    "AI2D": "ai2d", "GQA": "gqa", "NLVR2": "nlvr", "ScienceQA": "science_qa",
    "RSVQA-LR": "rsvqa_lr", "RSVQA-HR": "rsvqa_hr", "ChartQA": "chartqa",
    "VizWizVQA": "vizwizvqa", "TallyQA": "tallyqa", "OCR-VQA": "ocrvqa", "TextVQA": "textvqa",
    "DocVQA": "docvqa", "InfoVQA": "infovqa", "ST-VQA": "stvqa", "RefCOCO-seg": "refcoco",
    "ActivityNet-CAP": "activitynet_cap", "ActivityNet-QA": "activitynet_qa",
    "MSRVTT-CAP": "msrvtt_cap", "MSRVTT-QA": "msrvtt_qa", "MSVD-QA": "msvd_qa",
    "VATEX": "vatex_cap",
}  # fmt: skip
"""Rows of the table of transfers -> benchmarks; POPE's, the last, is zero-shot."""


@pytest.fixture(scope="module")
def transfers() -> dict[str, list[str]]:
    if not RECIPES.is_file():
        pytest.skip("needs ../shared/reference/recipes.md")
    section = RECIPES.read_text().split("## 5. Transfers")[1].split("### 5.1")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line[:1] == "|"]
    return {row[0].strip(): [cell.strip() for cell in row] for row in cells}


def at(cell: str, side: int) -> str:
    """Returns a cell's value at one side; "a/b/c" are those at 224, 448 and 896 px."""
    values = cell.split("/")
    return values[min((224, 448).index(side), len(values) - 1)]


def test_the_table_names_every_trained_benchmark(transfers):
    assert set(NAMES) < set(transfers)
    assert set(NAMES.values()) == {n for n, row in BENCHMARKS.items() if row.final_split}


@pytest.mark.parametrize(("task", "name"), NAMES.items())
def test_recipes_are_those_of_the_table(transfers, task, name):
    _, text_len, prompt, _, num, batch, rates, epochs, smoothing, dropout, frozen, _ = transfers[
        task
    ]
    row = BENCHMARKS[name]
    assert row.text_len == int(text_len)
    if "×" not in num:
        assert row.num_train == int(num.split()[0].replace(",", ""))
    if row.num_frames and "fr, stride" in prompt:
        frames, stride = (
            int("".join(filter(str.isdigit, s))) for s in prompt.split(";")[1].split(",")
        )
        assert (row.num_frames, row.frame_stride) == (frames, stride)
    for side, recipe in row.recipes.items():
        rate = at(rates, side)
        assert recipe.lr_pg1 == float(rate.rstrip("†")), side
        assert recipe.decay == rate.endswith("†"), side
        assert recipe.batch_size == int(at(batch, side)), side
        assert recipe.label_smoothing == float(smoothing), side
        assert recipe.dropout == float(at(dropout, side)), side
        is_frozen = at(frozen.replace(", ", "/"), side).endswith(("yes**", "yes"))
        assert recipe.freeze_vision == ("all" if is_frozen else False), side
        if "ex." not in epochs:
            longer = epochs.partition("(448: ")[2].rstrip(")")
            assert recipe.epochs == float(
                longer if longer and side == 448 else at(epochs.split()[0], side)
            )


@pytest.mark.parametrize(("task", "name"), NAMES.items())
def test_rates_of_paligemma_2(transfers, task, name):
    chosen = transfers[task][-1].split()[0]
    low = chosen.split("/")[0].split("–")[0]
    assert {recipe.lr_pg2 for recipe in BENCHMARKS[name].recipes.values()} == {float(low)}
