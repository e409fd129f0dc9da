"""Every cell of the paper's efficiency table, at the precision it is printed with."""

import csv
import pathlib

import pytest

from model.analysis import flops
from model.connector.config import ConnectorConfig
from model.presets import paligemma2_3b

TABLE = pathlib.Path(__file__).parents[3].parent / "shared" / "paper" / "efficiency.csv"


@pytest.mark.parity
def test_every_cell_of_the_papers_table():
    if not TABLE.exists():
        pytest.skip("needs the paper's table in ../shared/paper/efficiency.csv")
    cfg = paligemma2_3b(ConnectorConfig(kind="parcel"))
    with TABLE.open() as lines:
        table = list(csv.DictReader(lines))
    assert [int(line["budget"]) for line in table] == list(flops.PAPER_BUDGETS)
    for line in table:
        for modality in flops.MODALITIES:
            row = flops.efficiency_cell(cfg, int(line["budget"]), modality)
            _assert_prints_as(row.tflops, line[f"{modality.name}_tflops"])
            _assert_prints_as(row.kv_mb, line[f"{modality.name}_kv_mb"])


def _assert_prints_as(value: float, printed: str) -> None:
    decimals = len(printed.partition(".")[2])
    assert f"{value:.{decimals}f}" == printed
