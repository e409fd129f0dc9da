"""A dataset without duplicates and without pictures that a benchmark holds.

Files:
  *.tfrecord: the records that stay
  *.idx: beside each shard, the offset of every record
  *.licences: beside each shard, the licence of every record, if any states one
  *.json: its description, as in a dataset
  rejects.jsonl: the rejects of the dataset, and the records that were removed
  matches.jsonl: which record looks like which other one
"""

from collections.abc import Iterator

from flows.steps.kind import Kind, StepContext
from flows.steps.kinds.streamed import stream_progress
from infra.progress import Progress
from pipelines.hygiene.matches import MATCHES
from pipelines.hygiene.screen import HygieneConfig, screen_dataset
from pipelines.records.dataset import read_info
from pipelines.records.licence import licence_counts


def make(work: StepContext) -> Iterator[Progress]:
    """Compares the input `dataset` with itself and with all other inputs, by `HygieneConfig`."""
    # Every input but the dataset itself is a split of a benchmark, under its name.
    against = {role: str(path) for role, path in sorted(work.inputs.items()) if _is_split(role)}
    counts = yield from stream_progress(
        lambda report: screen_dataset(
            str(work.inputs["dataset"]),
            work.config,
            against=against,
            out=str(work.out),
            on_progress=report,
        )
    )
    work.counts.update(counts)
    work.counts.update(licence_counts(read_info(work.out).licences))


def _is_split(role: str) -> bool:
    return role != "dataset"


SCREENED = Kind(
    name="screened",
    make=make,
    spec=HygieneConfig,
    libraries=("pillow",),
    holds="dataset",
    leaves_out=_is_split,
    matches=MATCHES,
)
