"""Evaluations cut into pieces: the same bytes as whole, and nothing decoded twice."""

from pathlib import Path
from typing import Any

import pytest

from model.decode.config import DecodeConfig
from model.eval import run
from model.eval.run import Answered, predict, predict_piece
from tests.model.tiny_data import color_record, write_dataset
from tests.model.tiny_model import tiny_model, write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_compiler")]

BUDGETS = (16, 64)
CONFIG = DecodeConfig(batch_size=3, text_len=6)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A checkpoint that answers nonsense, and a split of pictures and clips: six batches."""
    root = tmp_path_factory.mktemp("given")
    clips = [color_record(i, images=2, part="clips") for i in range(5)]
    data = {"clips": clips, "color": [color_record(i) for i in range(11)]}
    return {
        "checkpoint": write_checkpoint(root, tiny_model("parcel", (30, 64))),
        "data": write_dataset(root / "data", data),
        "config": CONFIG,
    }


def returned(making: Any) -> Any:
    while True:
        try:
            next(making)
        except StopIteration as end:
            return end.value


def predicted(given: dict[str, Any], root: Path, *known: Answered) -> list[bytes]:
    out = {budget: root / f"{budget}" for budget in BUDGETS}
    for path in out.values():
        path.mkdir(parents=True)
    seconds = returned(predict(**given, out={b: str(p) for b, p in out.items()}, known=known))
    if not known:  # Six batches, of which four are whole, and the first compiles.
        assert set(seconds) == set(BUDGETS)
        assert all(0 < s < 60 for s in seconds.values())
    return [(path / "predictions.jsonl").read_bytes() for path in out.values()]


def test_pieces_are_put_together_to_the_bytes_of_the_whole(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = predicted(given, tmp_path / "whole")
    pieces = [
        returned(predict_piece(**given, budgets=BUDGETS, piece=piece, num_pieces=4))
        for piece in range(4)
    ]
    ids = [id for piece in pieces for id in piece.texts[16]]
    assert len(ids) == len(set(ids)) == 16
    assert sorted(len(piece.texts[64]) for piece in pieces) == [3, 3, 5, 5]
    stored = [Answered.from_json(piece.to_json()) for piece in pieces]
    assert stored == pieces
    decoded: list[int] = []
    decode = run.decode_rows

    def counted(*args: Any, **options: Any) -> Any:
        decoded.append(args[3].budget)
        return decode(*args, **options)

    monkeypatch.setattr(run, "decode_rows", counted)
    assert predicted(given, tmp_path / "joined", *stored) == whole
    assert decoded == []
    assert predicted(given, tmp_path / "lacking", stored[1], stored[3]) == whole
    assert sorted(decoded) == [16] * 3 + [64] * 3  # Six batches, of which three are known.


def test_a_piece_of_other_budgets_is_none(given: dict[str, Any], tmp_path: Path):
    piece = returned(predict_piece(**given, budgets=[16], piece=0, num_pieces=1))
    assert predicted(given, tmp_path / "a", piece) == predicted(given, tmp_path / "b")
