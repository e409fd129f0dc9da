from pathlib import Path

import numpy as np
import pytest

from model import files
from model.checkpoint.array_files import BFLOAT16
from model.checkpoint.cast import cast_checkpoint
from model.checkpoint.digest import flatten_params
from model.checkpoint.folder import (
    checked_digest,
    load_config,
    load_params,
    mask_codec_path,
    save_checkpoint,
    tokenizer_path,
)
from tests.model.checkpoint.test_folder import MODEL

DRAW = np.random.default_rng(11)
PARAMS = {
    "text": {"embedding": DRAW.normal(size=(5, 3)).astype(np.float32)},
    "vision": {
        "kernel": DRAW.normal(size=(2, 7, 11)).astype(np.float32),
        "bias": np.zeros(7, np.float32),
    },
}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Returns a finished checkpoint in float32, and an empty folder."""
    source, out = tmp_path / "source", tmp_path / "out"
    for name in (source, out):
        name.mkdir()
    tokenizer, codec = tmp_path / "pieces", tmp_path / "codec"
    tokenizer.write_bytes(b"pieces")
    codec.write_bytes(b"codebook")
    save_checkpoint(source, model=MODEL, params=PARAMS, tokenizer=tokenizer, mask_codec=codec)
    return source, out


def test_every_parameter_is_rounded_and_the_rest_is_the_same(folders: tuple[Path, Path]):
    source, out = folders
    progress = [*cast_checkpoint(str(source), out, BFLOAT16)]
    assert [(item.done, item.total) for item in progress] == [(1, 3), (2, 3), (3, 3)]
    cast = dict(flatten_params(load_params(out)))
    for path, before in flatten_params(PARAMS):
        assert cast.pop(path).tobytes() == before.astype(BFLOAT16).tobytes(), path
    assert not cast
    assert load_config(out) == MODEL
    codec = mask_codec_path(out)
    assert codec is not None
    assert tokenizer_path(out).read_bytes() + codec.read_bytes() == b"piecescodebook"
    assert checked_digest(out) != checked_digest(source)

    def size(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.glob("params-*"))

    num = sum(array.size for _, array in flatten_params(PARAMS))
    assert size(source) - size(out) == pytest.approx(2 * num, abs=16)  # The header's lengths.


def test_an_unfinished_checkpoint_is_refused(folders: tuple[Path, Path]):
    source, out = folders
    (source / files.DIGEST).unlink()
    with pytest.raises(ValueError, match="is not finished"):
        next(cast_checkpoint(str(source), out, BFLOAT16))
    assert [*out.iterdir()] == []
