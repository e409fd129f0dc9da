"""Estimates the requests that a study's trainings make to a bucket, at the pace of a pod."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from infra.store.store import Artifact
from pipelines.records.dataset import DESCRIPTION, read_info

if TYPE_CHECKING:  # It imports grain, which takes a second.
    from model.data.reading import PartSize

POD_PACE = 7300
"""Assumed throughput of training on 256 TPU v4 chips [records/s]."""


def describe_reads(steps: Sequence[Step], artifacts: Mapping[Step, Artifact | None]) -> str:
    """Returns a line on the training that would make the most requests to a bucket.

    Args:
      steps: steps of the study.
      artifacts: step -> its artifact, or None if it has none yet.
    """
    from model.data.reading import PartSize, Reading, reading_of

    readings: dict[str, Reading] = {}
    unknown = 0
    for step in steps:
        if not isinstance(step.config, FitSpec):
            continue
        # Sizes of the parts, such as captions, summed over the datasets of the mixture.
        data = [
            artifacts.get(read) for role, read in step.inputs.items() if role.startswith("data/")
        ]
        parts: dict[str, PartSize] = {}
        for artifact in data:
            for name, size in dataset_parts(artifact).items() if artifact else ():
                parts[name] = parts[name] + size if name in parts else size
        # Every part that the mixture draws from must be there, or its share is not known.
        if not parts or None in data or not dict(step.config.train.mixture).keys() <= parts.keys():
            unknown += 1
            continue
        readings[step.name] = reading_of(parts, step.config.train.batches)
    if not readings:
        return "reading: known once the data of a training are prepared"
    name, most = max(readings.items(), key=lambda item: item[1].requests_per_record)
    more = f"; not known yet of {unknown} trainings" if unknown else ""
    return (
        f"reading {POD_PACE:,} records/s from a bucket takes at most "
        f"{POD_PACE * most.requests_per_record:,.0f} requests/s and "
        f"{POD_PACE * most.bytes_per_record / 1e6:,.0f} MB/s, and windows of "
        f"{most.window_bytes / 1e6:,.0f} MB over all hosts ({name}){more}"
    )


def dataset_parts(artifact: Artifact) -> "dict[str, PartSize]":
    """Returns name -> size of each part of a dataset; {} if it has no description file."""
    from model.data.reading import PartSize

    files = artifact.manifest.files
    if DESCRIPTION not in files:
        return {}
    # One small file: the shards themselves stay where they are.
    folder = artifact.files.local_folder(artifact.folder, {DESCRIPTION: files[DESCRIPTION]})
    return {
        name: PartSize(
            num_records=sum(part.num_records),
            num_bytes=sum(files[shard].size for shard in part.shards),
            num_shards=len(part.shards),
        )
        for name, part in read_info(folder).parts.items()
    }
