"""`parcel model flops`: the table, its JSON, and refusals."""

import functools
import json
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = CONFIGS / "small.yaml"


@pytest.fixture
def flops(parcel):
    return functools.partial(parcel, "model", "flops")


def test_the_table_begins_with_vanilla_and_holds_the_papers_figures(flops):
    lines = flops().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("---"))
    assert lines[start + 1].split() == ["vanilla", "256", "1.963", "24.130", "39.1", "422.6"]
    parcel = [line.split()[1:] for line in lines if line.startswith("parcel ")]
    assert parcel == [
        ["16", "0.963", "4.898", "14.7", "32.6"],
        ["64", "1.161", "8.242", "19.6", "110.6"],
        ["256", "1.973", "24.281", "39.1", "422.6"],
    ]


def test_json_is_unrounded_and_holds_every_budget(flops):
    rows = json.loads(flops("--json").out)
    assert all(set(row) == {"connector", "budget", "modality", "tflops", "kv_mb"} for row in rows)
    cells = {(row["connector"], row["budget"], row["modality"]): row for row in rows}
    assert len(cells) == len(rows)
    assert cells["vanilla", 256, "image"]["tflops"] == 1.963103371264
    assert cells["parcel", 256, "video"]["tflops"] == 24.281385025536
    assert cells["m3", 4, "video"]["kv_mb"] == 106_496 * (16 * 4 + 65) / 2**20
    assert len({budget for kind, budget, _ in cells if kind == "mqt"}) == 128


def test_variants_cost_what_their_connector_does(flops, tmp_path: Path):
    study = tmp_path / "study.yaml"
    methods = "methods: [vanilla, m3, mqt, parcel, long]\nvariants: {long: {of: mqt, length: 2}}"
    study.write_text(f"base: {SMALL}\n{methods}\n")
    assert flops(str(study)).out == flops(str(SMALL)).out


def test_parts_add_up(flops):
    done = flops("--parts", "--budget", "62")
    for line in done.out.splitlines()[5:]:
        _, _, _, *parts, total = line.split()
        assert float(total) == pytest.approx(sum(map(float, parts)), abs=0.003)


def test_any_models_size(flops):
    small = json.loads(flops(str(SMALL), "--json", "--budget", "256").out)
    assert 0 < small[0]["tflops"] < 0.01
    high = json.loads(flops("--image-px", "448", "--json", "--budget", "1024").out)
    assert high[0]["kv_mb"] == 106_496 * (1024 + 129) / 2**20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "3"], "some connector serves, got [3]"),
        (["nowhere.yaml"], "got nowhere.yaml"),
        (["--image-px", "300"], "multiple of vision.patch_px=14, got 300"),
    ],
)
def test_refusals_are_one_line(flops, words: list[str], message: str):
    done = flops(*words)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
