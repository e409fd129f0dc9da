"""Conversions hold one parameter at a time beside ours: what numpy allocates for a small model.

The bounds describe the code as it is, in units of the largest parameter.
"""

import dataclasses
import tracemalloc

import numpy as np
import safetensors.numpy

from model import vlm
from model.checkpoint import array_files, translate
from model.checkpoint.digest import flatten_params
from model.checkpoint.importer import open_source
from model.text.config import TextConfig
from tests.model.checkpoint.converted import ODD, as_void, big_vision, config_of, hugging_face

BROAD = dataclasses.replace(
    ODD,
    text=TextConfig(
        vocab_size=2000, width=96, depth=12, mlp_dim=384, head_dim=16, num_heads=6, num_kv_heads=2
    ),
)
BYTES = {path: 4 * leaf.size for path, leaf in flatten_params(vlm.abstract_params(BROAD))}


def peak_of(work) -> int:
    """Returns the most that Python held meanwhile, beyond what it held before [bytes]."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_reading_either_format_holds_few_parameters(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    safetensors.numpy.save_file(hugging_face(BROAD), folder / "model.safetensors")
    (folder / "config.json").write_text(config_of(BROAD))
    np.savez(tmp_path / "x.npz", **as_void(big_vision(BROAD)))
    largest, total = max(BYTES.values()), sum(BYTES.values())
    assert total > 4 * largest

    def read_all(source):
        for _, array in source.parameters():
            del array

    for path in (folder, tmp_path / "x.npz"):
        source = open_source(path)
        assert peak_of(lambda source=source: read_all(source)) < 4 * largest


def test_writing_holds_few_parameters(tmp_path):
    params = dict(flatten_params(vlm.abstract_params(BROAD)))

    class Drawn(dict):
        """Parameters that exist only while someone holds them."""

        def __getitem__(self, path):
            return np.ones(params[path].shape, np.float32)

    largest = max(BYTES.values())
    shapes = translate.hugging_face_shapes(BROAD)
    writer = array_files.SafetensorsWriter(tmp_path / "x", shapes, array_files.BFLOAT16, {})

    def write_all():
        for name, array in translate.to_hugging_face(Drawn(), BROAD):
            writer.write(name, array)
        writer.close()

    assert peak_of(write_all) < 4 * largest

    def write_npz():
        arrays = translate.to_big_vision(Drawn(), BROAD)
        array_files.write_npz(tmp_path / "x.npz", arrays, array_files.BFLOAT16)

    # big_vision has gate and up in one array: both, and their stack.
    assert peak_of(write_npz) < 7 * largest
