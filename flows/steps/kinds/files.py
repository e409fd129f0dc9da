"""Files that a study is given, not made by it; its lineage begins with them.

Files:
  files.txt: a line per file: digest, size, path
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from infra.store.digest import file_sha256

NOTES = "files.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesSpec:
    """Raw files, each as (path below the data root, sha256, size)."""

    files: tuple[tuple[str, str, int], ...]


def make(work: StepContext) -> Iterator[Progress]:
    """Notes the files of a `FilesSpec` by digest; their bytes stay where they are."""
    lines = [f"{sha256}  {size}  {path}\n" for path, sha256, size in work.config.files]
    (work.out / NOTES).write_text("".join(lines))
    work.counts["files"] = len(lines)
    yield Progress(done=1, total=1)


def check_input_files(folder: Path, digests_folder: Path) -> None:
    """Checks that copies of given files have the digests that a study noted.

    Args:
      folder: folder of the copies.
      digests_folder: folder of the `files` artifact.

    Raises:
      ValueError: naming the file that has changed since.
    """
    for line in (digests_folder / NOTES).read_text().splitlines():
        sha256, _, path = line.split("  ", 2)
        if file_sha256(folder / path) != sha256:
            raise ValueError(f"{path} has changed since the study noted it; run it again.")


FILES = Kind(name="files", make=make, spec=FilesSpec, file_field="files")
