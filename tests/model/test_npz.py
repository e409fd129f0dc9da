"""Headers of NumPy's files are believed only where they fit the bytes behind them."""

import io
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from model.npz import read_members, read_npy


def header(shape: str, kind: str = "'<f4'") -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_arrays_come_back_with_their_shapes_types_and_orders(tmp_path: Path):
    arrays = {
        "a": np.arange(15, dtype=np.float32).reshape(3, 5),
        "b": np.asfortranarray(np.arange(14, dtype=np.int64).reshape(2, 7)),
        "c": np.array("text"),
        "empty": np.zeros((0, 4), np.float16),
    }
    np.savez_compressed(tmp_path / "x.npz", **arrays)  # pyright: ignore[reportArgumentType]
    members = read_members(tmp_path / "x.npz")
    assert {name: member.shape for name, member in members.items()} == {
        name: array.shape for name, array in arrays.items()
    }
    for name, array in arrays.items():
        np.testing.assert_array_equal(members[name].read(), array, strict=True)
    np.save(tmp_path / "x.npy", arrays["a"])
    np.testing.assert_array_equal(read_npy(tmp_path / "x.npy"), arrays["a"], strict=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("(1 << 40,)") + bytes(24), "must be an .npz"),
        (header("(1099511627776,)") + bytes(24), "takes 4398046511104 bytes, got 24"),
        (header("(7,)") + bytes(24), "takes 28 bytes, got 24"),
        (header("(5,)") + bytes(24), "takes 20 bytes, got 24"),
        (header("(-1,)") + bytes(24), "whole numbers, got"),
        (header("(3,)", "'|O'") + bytes(24), "must be of numbers, got object"),
        (header("(3,)", "[('a', '<f4')]") + bytes(12), "must be of numbers"),
        (header("(")[:-1] + bytes(24), "must be an .npz"),
        (b"", "must be an .npz"),
    ],
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(
    tmp_path: Path, content: bytes, message: str
):
    path = archive(tmp_path / "x.npz", {"a.npy": content})
    with pytest.raises(ValueError, match=r"x\.npz must be an \.npz file") as refused:
        read_members(path)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.npy must be an \.npy file"):
        read_npy(tmp_path / "x.npy")


def test_a_zip_that_lies_about_sizes_or_names_is_refused(tmp_path: Path):
    whole = io.BytesIO()
    np.savez(whole, a=np.arange(6.0))
    archive(tmp_path / "x.npz", {"a.npy": header("(0,)"), "a": header("(0,)")})
    with pytest.raises(ValueError, match="a is there twice"):
        read_members(tmp_path / "x.npz")
    # The size in the directory, which comes after the members: 4 GB of an array of 48 bytes.
    directory = whole.getvalue().index(b"PK\x01\x02")
    data = bytearray(whole.getvalue())
    data[directory + 24 : directory + 28] = (2**32 - 2).to_bytes(4, "little")
    (tmp_path / "y.npz").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="4294967294 bytes"):
        read_members(tmp_path / "y.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_damaged_bytes_are_found_when_they_are_read(tmp_path: Path):
    np.savez(tmp_path / "x.npz", a=np.arange(600.0))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[3000] ^= 1
    (tmp_path / "x.npz").write_bytes(data)
    members = read_members(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x\.npz: a\.npy is damaged: Bad CRC-32"):
        members["a"].read()
    with pytest.raises(FileNotFoundError):
        read_members(tmp_path / "none.npz")
