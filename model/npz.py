"""NumPy's files of arrays, whose headers are checked before they are believed.

An `.npz` is a zip of `.npy` files: a magic number, a header in Python's syntax with type and shape,
and the bytes (numpy.org/doc/stable/reference/generated/numpy.lib.format.html). A damaged or
malicious one may state terabytes: so an array is made only if its file has as many bytes as its
shape and type take.
"""

import dataclasses
import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

_MAX_RATIO = 1100
"""Most bytes that one packed byte stands for. Source: zlib.net/zlib_tech.html, 1032 to 1."""

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,  # Of a header, which NumPy parses as Python.
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    RuntimeError,  # Of a member with a password.
    NotImplementedError,
    OSError,
)
"""Errors of reading a damaged zip, or a damaged header, from trials."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One array of an `.npz`: its shape and type as its header states them."""

    path: Path
    file: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self) -> np.ndarray:
        """Returns the array.

        Raises:
          ValueError: if its bytes are damaged.
        """
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.file) as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        except FileNotFoundError:
            raise
        except _UNREADABLE as error:
            raise ValueError(
                f"{self.path}: {self.file} is damaged: {_npz_error_reason(error)}."
            ) from None


def read_members(path: Path) -> dict[str, Member]:
    """Returns the arrays of an `.npz` by name; none of them is read yet.

    Raises:
      ValueError: if it is not one; if a header does not fit the size of its array; if an array is
        of objects, of several fields, or there twice.
      FileNotFoundError: if there is no such file.
    """
    members: dict[str, Member] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in members:
                    raise ValueError(f"{name} is there twice")
                if entry.file_size > _MAX_RATIO * entry.compress_size + _MAX_RATIO:
                    raise ValueError(f"{name} cannot have the {entry.file_size} bytes it states")
                with archive.open(entry) as file:
                    shape, dtype = _read_npy_header(file, entry.file_size)
                members[name] = Member(path, entry.filename, shape, dtype)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise ValueError(f"{path} must be an .npz file: {_npz_error_reason(error)}.") from None
    return members


def read_npy(path: Path) -> np.ndarray:
    """Returns the array of an `.npy` file.

    Raises:
      ValueError: if it is not one, or its header does not fit its size.
    """
    try:
        with path.open("rb") as file:
            _read_npy_header(file, path.stat().st_size)
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise ValueError(f"{path} must be an .npy file: {_npz_error_reason(error)}.") from None


def _read_npy_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and type of the array that begins here and has `size` bytes with its header."""
    old = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject or dtype.names is not None or not dtype.itemsize:
        raise ValueError(f"an array must be of numbers, got {dtype}")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"a shape must be whole numbers, got {shape}")
    needed, actual = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != actual:
        raise ValueError(f"{shape} of {dtype} takes {needed} bytes, got {actual}")
    return shape, dtype


def _npz_error_reason(error: Exception) -> str:
    # Of a header that is no Python, NumPy shows all of it.
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
