"""The library of shim.c, and what its processes share with a test: a page and a log."""

import dataclasses
import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path

_FIELDS = ("operations", "number", "ahead_ns", "clock_calls", "from", "left", "error_and_kinds")
_PLACES = {name: 8 * i for i, name in enumerate(_FIELDS)}
_CREATES, _WRITES, _READS, _LOOKS = 1, 2, 4, 8

DISK_ERRORS = {
    "disk full": (errno.ENOSPC, _CREATES | _WRITES),
    "inodes gone": (errno.ENOSPC, _CREATES),
    "EIO": (errno.EIO, _READS | _WRITES),
    "ESTALE": (errno.ESTALE, _READS | _LOOKS),
}
"""Fault -> the error, and the operations that it falls on."""


def compile_shim(folder: Path) -> Path | None:
    """Compiles the library into a folder; returns None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


@dataclasses.dataclass(frozen=True)
class Change:
    """A record of a store that came to be, was replaced, or went.

    Attributes:
      name: its name in the store.
      data: its bytes from then on; None if it went.
      pid: the process that did it; 0 if unknown.
    """

    name: str
    data: bytes | None
    pid: int = 0


class Shim:
    """What the library counts and strikes below one folder.

    Args:
      library: what `compile_shim` made.
      root: the folder.
      folder: an empty one on the same file system, for the page and the log.
    """

    def __init__(self, library: Path, root: Path, folder: Path) -> None:
        self._root, self._log = root, folder / "log"
        page = folder / "page"
        page.write_bytes(bytes(mmap.PAGESIZE))
        (folder / "log.d").mkdir()
        with page.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environment = {
            "LD_PRELOAD": str(library),
            "CERTIFICATE_PAGE": str(page),
            "CERTIFICATE_ROOT": str(root),
            "CERTIFICATE_LOG": str(self._log),
        }

    @property
    def operations(self) -> int:
        """How many operations there were so far."""
        return self._read("operations")

    @property
    def clock_calls(self) -> int:
        """How often a shifted clock was read."""
        return self._read("clock_calls")

    def fail(self, fault: str, times: int) -> None:
        """Has the next operations fail that a fault of `DISK_ERRORS` falls on."""
        error, kinds = DISK_ERRORS[fault]
        struct.pack_into("<II", self._page, _PLACES["error_and_kinds"], error, kinds)
        self._write("from", self.operations)
        self._write("left", times)

    def heal(self) -> None:
        """Has nothing fail any more."""
        self._write("left", 0)

    def set_clock_ahead(self, seconds: float) -> None:
        """Shifts the clock."""
        self._write("ahead_ns", int(seconds * 1e9))

    def strikes(self) -> int:
        """Returns how many operations have failed."""
        return sum(line.startswith("strike ") for line in self._lines())

    def changes(self) -> list[Change]:
        """Returns what became of the store's records, in order."""
        changes: list[tuple[int, Change]] = []
        for line in self._lines():
            word, number, rest = line.split(" ", 2)
            if word == "change":
                pid, call, path = rest.split(" ", 2)
                name = str(Path(path).relative_to(self._root))
                kept = Path(f"{self._log}.d/{number}")
                if name.endswith(".partial") or (call == "link" and not kept.exists()):
                    continue  # Half a record under another name, or one that went at once.
                data = kept.read_bytes() if call == "link" else None
                changes.append((int(number), Change(name, data, int(pid))))
        return [change for _, change in sorted(changes, key=lambda entry: entry[0])]

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def _read(self, field: str) -> int:
        return struct.unpack_from("<q", self._page, _PLACES[field])[0]

    def _write(self, field: str, value: int) -> None:
        struct.pack_into("<q", self._page, _PLACES[field], value)
