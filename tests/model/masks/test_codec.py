import json
import os
import subprocess
import sys
from typing import cast

import numpy as np
import pytest

from model.masks.codec import MaskCodec, crop_mask, init_params
from model.masks.config import MaskCodecConfig
from model.masks.training import adopt_codec, fit_codec, reconstruction_iou

TINY = MaskCodecConfig(width=8, embed_dim=12, train_steps=9, batch_size=3)


def test_published_names_and_layouts():
    shapes = {
        n: v.shape for n, v in init_params(MaskCodecConfig(width=128, embed_dim=512), 0).items()
    }
    assert shapes["_vq_vae._embedding"] == (128, 512)
    assert shapes["encoder.0.weight"] == (128, 1, 4, 4)
    assert shapes["encoder.10.weight"] == (512, 128, 1, 1)
    assert shapes["decoder.0.weight"] == (128, 512, 1, 1)
    assert shapes["decoder.6.weight"] == (128, 64, 4, 4)  # transposed: in, out
    assert shapes["decoder.12.weight"] == (1, 16, 1, 1)
    assert len(shapes) == 1 + 2 * (4 + 6 + 1 + 1 + 6 + 4 + 1)


def test_crop_covers_the_box_only():
    mask = np.zeros((60, 80), bool)
    mask[30:, 20:60] = True
    np.testing.assert_array_equal(crop_mask(mask, (0.5, 0.25, 1.0, 0.75)), np.ones((64, 64)))
    assert crop_mask(mask, (0.0, 0.25, 0.5, 0.75)).max() == 0
    half = crop_mask(mask, (0.0, 0.25, 1.0, 0.75))
    assert half[:30].max() == 0
    assert half[34:].min() == 1


def test_encode_decode_any_number_of_rows():
    codec = MaskCodec({n: np.asarray(v) for n, v in init_params(TINY, 1).items()})
    crops = np.random.default_rng(0).random((67, 64, 64)).astype(np.float32)
    ids = codec.encode_crops(crops)
    assert ids.shape == (67, 16)
    assert ids.min() >= 0
    assert ids.max() < 128
    np.testing.assert_array_equal(codec.encode_crops(crops[65:]), ids[65:])
    assert codec.decode_many(ids).shape == (67, 64, 64)
    np.testing.assert_allclose(codec.decode(ids[66]), codec.decode_many(ids)[66], atol=1e-5)
    assert codec.encode_crops(crops[:0]).shape == (0, 16)


@pytest.mark.slow
def test_training_is_deterministic_and_reports_its_iou(tmp_path):
    crops = np.zeros((7, 64, 64), bool)
    for i in range(7):
        crops[i, : 20 + 5 * i] = True
    digests = []
    for name in ("a", "b"):
        out = tmp_path / name
        out.mkdir()
        last = list(fit_codec(crops, TINY, str(out), 3))[-1]
        assert (last.done, last.total) == (9, 9)
        with np.load(out / "mask_codec.npz") as file:
            digests.append({n: file[n].tobytes() for n in file.files})
        assert '"crops": 7, "iou": 0.' in (out / "codec.json").read_text()
    assert digests[0] == digests[1]
    assert MaskCodec.load(tmp_path / "a" / "mask_codec.npz").encode(crops[0], (0, 0, 1, 1))


_SHAPES = """
import sys
import numpy as np
from model.masks.codec import MaskCodec
from model.masks.config import MaskCodecConfig
from model.masks.training import fit_codec

out = sys.argv[1]
y, x = np.mgrid[:64, :64] - 31.5
shapes = np.stack([y**2 + x**2 < 900, abs(x) + y < 0, abs(x * y) < 200, abs(x) + abs(y) < 30])
crops = np.tile(shapes, (6, 1, 1)).astype(np.float32)
config = MaskCodecConfig(width=16, embed_dim=16, train_steps=60, batch_size=8)
list(fit_codec(crops, config, out, 3))
np.save(out + "/codes.npy", MaskCodec.load(out + "/mask_codec.npz").encode_crops(crops))
"""


@pytest.mark.deep
def test_a_codec_has_the_same_codes_with_every_instruction_set(tmp_path):
    codes = []
    for isa in ("AVX2", "SSE4_2"):  # With and without fused multiply-add.
        (tmp_path / isa).mkdir()
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={isa}"
        subprocess.run(
            [sys.executable, "-c", _SHAPES, str(tmp_path / isa)],
            env={**os.environ, "XLA_FLAGS": flags},
            check=True,
            timeout=600,
        )
        codes.append(np.load(tmp_path / isa / "codes.npy"))
    assert len(np.unique(codes[0], axis=0)) == 4  # The four shapes can be told apart.
    np.testing.assert_array_equal(codes[0], codes[1])


def published(path, **changes):
    """Writes a codec as the published file is: full widths, and a name more."""
    full = MaskCodecConfig(width=128, embed_dim=512)
    arrays = {name: np.asarray(value) for name, value in init_params(full, 0).items()} | changes
    np.savez(path, **{"_vq_vae._ema_w": np.zeros(3), **arrays})
    return path


@pytest.mark.slow
def test_a_published_file_is_adopted_and_its_iou_reported(tmp_path):
    crops = np.zeros((5, 64, 64), bool)
    crops[:, 10:50, 20:60] = True
    config = MaskCodecConfig(path=str(published(tmp_path / "vae-oid.npz")), max_crops=3)
    (tmp_path / "out").mkdir()
    assert len(list(adopt_codec(crops, config, str(tmp_path / "out")))) == 1
    report = json.loads((tmp_path / "out" / "codec.json").read_text())
    codec = MaskCodec.load(tmp_path / "out" / "mask_codec.npz")
    assert report["crops"] == 3
    assert 0 <= report["iou"] <= 1
    expected = reconstruction_iou(codec, crops[:3].astype(np.float32))
    assert report["iou"] == pytest.approx(expected, abs=1e-4)


def test_iou_of_a_perfect_and_of_an_empty_reconstruction():
    class Perfect:
        def encode_crops(self, crops):
            return crops

        def decode_many(self, ids):
            return ids - 0.5

    crops = np.zeros((2, 64, 64), np.float32)
    crops[:, :32] = 1
    assert reconstruction_iou(cast(MaskCodec, Perfect()), crops) == 1
    half = Perfect()
    half.decode_many = lambda ids: np.where(np.arange(64)[:, None] < 16, ids, 0) - 0.5
    assert reconstruction_iou(cast(MaskCodec, half), crops) == 0.5


def test_what_is_no_codec_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"lacks \[.*\] and \d+ more; want the names"):
        MaskCodec({"encoder.0.weight": np.zeros((8, 1, 4, 4))})
    shrunk = published(tmp_path / "a.npz", **{"_vq_vae._embedding": np.zeros((64, 512))})
    with pytest.raises(ValueError, match=r"must be \(128, width\), got \(64, 512\)"):
        MaskCodec.load(shrunk)
    narrow = published(tmp_path / "b.npz", **{"decoder.0.weight": np.zeros((128, 500, 1, 1))})
    with pytest.raises(ValueError, match="arrays must fit each other"):
        MaskCodec.load(narrow)
    gone = MaskCodecConfig(path=str(tmp_path / "gone.npz"))
    with pytest.raises(ValueError, match=r"mask_codec\.path must be an \.npz file"):
        list(adopt_codec([], gone, str(tmp_path)))


def test_no_masks_is_an_error():
    with pytest.raises(ValueError, match="crops is empty"):
        list(fit_codec([], TINY, ".", 0))
