"""Headers of tar members are believed only where a member can be so large."""

import tarfile

import pytest

from pipelines.records.tar_members import CheckedMember
from tests.fuzz.changes import small_tar


def with_header(data: bytes, start: int, field: bytes) -> bytes:
    """Returns an archive with another field in its first header, under a right checksum."""
    changed = bytearray(data)
    changed[start : start + len(field)] = field
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed[:512])
    return bytes(changed)


WHOLE = small_tar({"a.txt": b"text" * 200, "b.txt": b"more"})


def names(path) -> list[str]:
    with tarfile.open(path, tarinfo=CheckedMember) as archive:
        return archive.getnames()


def test_whole_members_are_read(tmp_path):
    (tmp_path / "x.tar").write_bytes(WHOLE)
    assert names(tmp_path / "x.tar") == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    "size", [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\x80" + b"\0" * 3 + b"\x7f" * 8]
)
def test_a_size_that_no_member_has_is_an_error_at_once(tmp_path, size):
    (tmp_path / "x.tar").write_bytes(with_header(WHOLE, 124, size))
    with pytest.raises(tarfile.ReadError, match=r"a member states -?[0-9]+ bytes"):
        names(tmp_path / "x.tar")


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_a_name_of_gigabytes_is_not_read(tmp_path, kind):
    data = with_header(with_header(WHOLE, 156, kind), 124, b"77777777777\0")
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(tarfile.ReadError, match="a member states 8589934591 bytes"):
        names(tmp_path / "x.tar")
