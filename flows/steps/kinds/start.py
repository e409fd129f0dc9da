"""A checkpoint that a study starts from, copied into the store."""

import shutil
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from flows.steps.kinds.files import check_given
from infra.progress import Progress


def make(work: Work) -> Iterator[Progress]:
    """Copies the checkpoint at `work.location`, whose digest is what its arrays say."""
    from model.checkpoint.folder import checked_digest

    work.content = checked_digest(work.location or "")
    shutil.copytree(work.location or "", work.out, dirs_exist_ok=True)
    if "given" in work.inputs:
        check_given(work.out, work.inputs["given"])
    yield Progress(done=1, total=1)


START = Kind(name="start", make=make)
