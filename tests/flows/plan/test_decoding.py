"""Tests of the time of a token by formula, and of what a chip holds to decode."""

import dataclasses
import re
from pathlib import Path

import jax
import pytest

from flows.plan.decoding import LAYER_LAUNCH_S, param_bytes, token_seconds
from infra.chips.topology import CHIPS
from model import vlm
from model.config import ModelConfig
from model.decode.rows import decoding_params
from model.text.config import TextConfig
from tests.model.tiny_model import tiny_model

PAGE = Path("docs/measured.md")
H200_3B = ModelConfig(dtype="bfloat16")


def measured_tokens() -> dict[tuple[int, int], float]:
    """(rows, soft tokens) -> time of a token [s], from the page's table of an H200."""
    lines = PAGE.read_text().splitlines()
    head = next(line for line in lines if line.startswith("| | batch |"))
    budgets = [int(cell.split()[0]) for cell in head.strip("| ").split("|")[1:]]
    found = {}
    for line in lines:
        if line.startswith("| a decoded token |"):
            _, rows, *cells = line.strip("|").split("|")
            for budget, cell in zip(budgets, cells, strict=True):
                if cell.strip():
                    found[int(rows), budget] = float(cell.split()[0]) / 1e3
    return found


def formula(rows: int, budget: int) -> float:
    # `perf.accelerator` decodes 32 tokens after 128 of text.
    return token_seconds(H200_3B, CHIPS["h200"], rows=rows, length=budget + 128 + 32)


def test_the_formula_is_as_far_from_the_measurements_as_the_pages_say():
    measured = measured_tokens()
    assert measured.keys() == {(8, 16), (8, 64), (8, 256), (32, 64), (32, 256)}
    off = {place: formula(*place) / seconds - 1 for place, seconds in measured.items()}
    howto = Path("docs/howto/plan.md").read_text()
    held_out = re.search(r"held out:\s+(\d+) % less at\s+64 and (\d+) % less at\s+256", howto)
    fitted = re.search(r"from (\d+) % less to (\d+) %\s+more", howto)
    assert held_out
    assert fitted
    assert [round(-100 * off[32, budget]) for budget in (64, 256)] == [
        int(number) for number in held_out.groups()
    ]
    of_8 = [100 * off[8, budget] for budget in (16, 64, 256)]
    assert [round(-min(of_8)), round(max(of_8))] == [int(number) for number in fitted.groups()]


def test_the_launch_of_a_layer_is_what_reading_leaves_of_eight_rows():
    launches = LAYER_LAUNCH_S * H200_3B.text.depth
    rest = [
        (seconds - (formula(rows, budget) - launches)) / H200_3B.text.depth
        for (rows, budget), seconds in measured_tokens().items()
        if rows == 8
    ]
    assert pytest.approx(sum(rest) / len(rest), rel=0.01) == LAYER_LAUNCH_S


def test_a_chip_holds_what_decoding_reads():
    for dtype in ("bfloat16", "float32"):
        model = dataclasses.replace(tiny_model("parcel", (30, 64)), dtype=dtype)
        held = decoding_params(model, vlm.init_params(model, 0))
        assert param_bytes(model) == sum(leaf.nbytes for leaf in jax.tree.leaves(held))


def test_a_token_reads_the_decoder_once_and_the_cache_of_every_row():
    model, chip = dataclasses.replace(tiny_model(), dtype="bfloat16"), CHIPS["v5e"]

    def read(model: ModelConfig, rows: int, length: int) -> float:
        seconds = token_seconds(model, chip, rows=rows, length=length)
        return seconds * chip.memory_bandwidth

    # Two layers of one key and one value head of 6 numbers, each of two bytes.
    assert read(model, 5, 11) - read(model, 5, 4) == pytest.approx(5 * 7 * 2 * 2 * 6 * 2)
    decoder = decoding_params(model, vlm.init_params(model, 0))["text"]
    assert read(model, 0, 0) == pytest.approx(sum(p.nbytes for p in jax.tree.leaves(decoder)))
    # An embedding that is no output matrix is not read whole.
    untied = dataclasses.replace(model.text, family="llama", tied=False)
    pair = [
        dataclasses.replace(model, text=text, attn_softcap=0.0, final_softcap=0.0)
        for text in (untied, dataclasses.replace(untied, tied=True))
    ]
    assert read(pair[0], 0, 0) == read(pair[1], 0, 0)


def test_a_gpu_waits_for_the_launches_of_each_layer_and_a_tpu_does_not():
    def seconds(depth: int, kind: str) -> float:
        text = TextConfig(
            vocab_size=37,
            width=20,
            depth=depth,
            mlp_dim=22,
            num_heads=4,
            num_kv_heads=2,
            head_dim=6,
        )
        model = dataclasses.replace(tiny_model(), text=text)
        return token_seconds(model, CHIPS[kind], rows=3, length=7)

    assert seconds(5, "a100") - seconds(2, "a100") == pytest.approx(3 * LAYER_LAUNCH_S, rel=1e-3)
    assert seconds(5, "v4") < 1e-6
