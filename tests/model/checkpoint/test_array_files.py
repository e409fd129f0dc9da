"""Files of arrays: what other packages read of ours, and we of theirs."""

import json
import math
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from model.checkpoint import array_files
from model.checkpoint.array_files import BFLOAT16, SafetensorsWriter

FLOAT32 = np.dtype(np.float32)
TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.c": np.linspace(-2, 2, 5, dtype=np.float32),
}


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_the_safetensors_package_reads_what_is_written_in_any_order(tmp_path, dtype):
    shapes = {name: x.shape for name, x in TENSORS.items()}
    writer = SafetensorsWriter(tmp_path / "x.safetensors", shapes, dtype, {"format": "pt"})
    for name in TENSORS:
        writer.write(name, TENSORS[name])
    writer.close()
    ours = array_files.read_safetensors(tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"} == ours.metadata
        assert set(file.keys()) == set(TENSORS) == set(ours)
        for name, x in TENSORS.items():
            expected = x.astype(dtype)
            np.testing.assert_array_equal(ours[name], expected, strict=True)
            theirs = np.asarray(file.get_tensor(name))
            np.testing.assert_array_equal(theirs.view(np.uint8), expected.view(np.uint8))


def test_reads_what_the_safetensors_package_writes(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / "x.safetensors")
    arrays = array_files.read_safetensors(tmp_path / "x.safetensors")
    assert arrays.shapes == {"b": (2, 3), "a.c": (5,)}
    for name, x in TENSORS.items():
        np.testing.assert_array_equal(arrays[name], x, strict=True)


def test_a_tensor_left_out_is_told(tmp_path):
    writer = SafetensorsWriter(tmp_path / "x.safetensors", {"a": (2,), "b": (3,)}, FLOAT32, {})
    with pytest.raises(ValueError, match=r"a must have shape \(2,\), got \(3,\)"):
        writer.write("a", np.zeros(3, np.float32))
    writer.write("b", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="in the header but were never written"):
        writer.close()


@pytest.mark.parametrize("cut", [5, 60, 150])
def test_a_cut_off_file_is_told(tmp_path, cut):
    safetensors.numpy.save_file(TENSORS, tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(whole[:cut])
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        array_files.read_safetensors(tmp_path / "x.safetensors")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-40, 80),
    st.just(1 << 62),
    st.floats(0, 8),
    st.text(max_size=3),
    st.lists(st.integers(-8, 48), max_size=3),
)


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=3),
    which=st.integers(0, 2),
    field=st.sampled_from(["dtype", "shape", "data_offsets", None]),
    odd=ODD,
    more=st.binary(max_size=9),
)
def test_a_header_is_believed_where_the_safetensors_package_believes_it(
    shapes, which, field, odd, more
):
    facts, end = {}, 0
    for i, shape in enumerate(shapes):
        size = 4 * math.prod(shape)
        facts[f"t{i}"] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    name = f"t{which % len(shapes)}"
    if field is None:
        facts[name] = odd
    else:
        facts[name][field] = odd
    header = json.dumps(facts).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(range(end)) + more
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        path.write_bytes(data)
        try:
            theirs = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, KeyError, ValueError, OverflowError):
            with pytest.raises(ValueError, match=r"^[^\n]{1,250}$"):
                array_files.read_safetensors(path)
            return
        ours = array_files.read_safetensors(path)
        assert set(ours) == set(theirs)
        for tensor in theirs:
            assert ours[tensor].shape == theirs[tensor].shape
            assert ours[tensor].tobytes() == theirs[tensor].tobytes()


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"a": ([4], [0, 4]), "b": ([4], [16, 32])}, "a must have 16 bytes by its shape"),
        ({"a": ([2], [-8, 0])}, "whole numbers"),
        ({"a": ([8], [0, 32]), "b": ([8], [0, 32])}, "b must begin at byte 32"),
        ({"a": ([-1], [0, 4])}, "whole numbers"),
        ({"a": ([1 << 40], [0, 4])}, "must have 4398046511104 bytes"),
        ({"a": ([4], [0, 16]), "b": ([2], [24, 32])}, "b must begin at byte 16"),
        ({"a": ([4], [0, 16])}, "must end with its last tensor"),
    ],
)
def test_a_header_that_lies_is_refused_with_the_tensor(tmp_path, facts, told):
    header = json.dumps(
        {n: {"dtype": "F32", "shape": s, "data_offsets": o} for n, (s, o) in facts.items()}
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
    with pytest.raises(ValueError, match=told):
        array_files.read_safetensors(path)


def test_shards_are_found_by_their_index(tmp_path):
    for i, (name, x) in enumerate(TENSORS.items()):
        safetensors.numpy.save_file({name: x}, tmp_path / f"model-{i}.safetensors")
    places = {name: f"model-{i}.safetensors" for i, name in enumerate(TENSORS)}
    index = tmp_path / array_files.INDEX
    index.write_text(json.dumps({"weight_map": places}))
    arrays = array_files.read_safetensors_folder(tmp_path)
    assert arrays.shapes == {name: x.shape for name, x in TENSORS.items()}
    index.write_text(json.dumps({"weight_map": {**places, "z": "model-0.safetensors"}}))
    with pytest.raises(ValueError, match=r"tensors its shards do not hold: \['z'\]"):
        array_files.read_safetensors_folder(tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"absent: \['model-1.safetensors'\]"):
        array_files.read_safetensors_folder(tmp_path)


def test_npz_with_bfloat16_as_two_bytes(tmp_path):
    half = TENSORS["b"].astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", a=TENSORS["b"], b=half)
    with np.load(tmp_path / "x.npz") as file:
        assert file["b"].dtype == np.dtype("V2")
    arrays = array_files.read_npz(tmp_path / "x.npz")
    assert arrays.dtypes == {FLOAT32, BFLOAT16}
    np.testing.assert_array_equal(arrays["b"], half, strict=True)
    again = ((name, arrays[name]) for name in arrays)
    array_files.write_npz(tmp_path / "y.npz", again, BFLOAT16)
    np.testing.assert_array_equal(array_files.read_npz(tmp_path / "y.npz")["a"], half, strict=True)


def test_no_npz_is_told(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"must be an \.npz file"):
        array_files.read_npz(tmp_path / "x.npz")


def test_orbax_arrays_are_read_one_at_a_time(tmp_path):
    tree = {"layer_0/attn": {"w": TENSORS["b"]}, "norm": {"scale": TENSORS["a.c"]}}
    with ocp.PyTreeCheckpointer() as saver:
        saver.save(tmp_path / "x", tree)
    arrays = array_files.read_orbax(tmp_path / "x")
    assert arrays.shapes == {"layer_0/attn/w": (2, 3), "norm/scale": (5,)}
    np.testing.assert_array_equal(arrays["layer_0/attn/w"], TENSORS["b"], strict=True)
