"""Members of tar archives, whose headers are checked before they are believed."""

import tarfile
from tarfile import (
    EOFHeaderError,  # pyright: ignore[reportAttributeAccessIssue]
    HeaderError,
    ReadError,
    TarFile,
)
from typing import Self

_NAME_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of members that `tarfile` reads whole, since they hold names of others."""

_MAX_NAME = 1 << 20
"""Largest of these [bytes]; a path has at most 4096."""

_MAX_SIZE = 1 << 50
"""Largest member [bytes]; no disk holds a larger one, and places beyond it cannot be computed."""


class CheckedMember(tarfile.TarInfo):
    """Raises an error at a damaged header, which `tarfile` would take for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Returns a member by its header, as `tarfile` documents it."""
        member = super().frombuf(buf, encoding, errors)
        most = _MAX_NAME if member.type in _NAME_TYPES else _MAX_SIZE
        if not 0 <= member.size <= most:
            raise HeaderError(f"a member states {member.size} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        """Returns the next member, as `tarfile` documents it."""
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:  # The zeros at the archive's real end.
            raise
        except HeaderError as error:
            raise ReadError(f"{error} after {tarfile.offset} bytes") from error
