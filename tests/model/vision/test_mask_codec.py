import numpy as np
import pytest

from model.vision.mask_codec import MaskCodec, MaskCodecConfig, crop_mask, init_params
from model.vision.mask_training import fit_codec

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
        assert (last.step, last.total) == (9, 9)
        with np.load(out / "mask_codec.npz") as file:
            digests.append({n: file[n].tobytes() for n in file.files})
        assert '"crops": 7, "iou": 0.' in (out / "codec.json").read_text()
    assert digests[0] == digests[1]
    assert MaskCodec.load(tmp_path / "a" / "mask_codec.npz").encode(crops[0], (0, 0, 1, 1))


def test_no_masks_is_an_error():
    with pytest.raises(ValueError, match="crops is empty"):
        list(fit_codec([], TINY, ".", 0))
