"""A dataset: raw files, read and prepared with Beam.

Files:
  *.tfrecord: records, shard by shard
  *.idx: beside each shard, the offset of every record
  *.licences: beside each shard, the licence of every record, if any states one
  dataset.json: counts, settings, features
  shards.json: what each shard was made from, for `parcel data mend`
  rejects.jsonl: every input that is no record, with stage and reason
  omissions.jsonl: what looks like data beside the inputs and was not read, if anything
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from flows.report.text_lists import abbreviate_list
from flows.steps.kind import Kind, StepContext
from flows.steps.kinds.streamed import stream_progress
from flows.steps.user_code import reader_of, with_user_code
from infra.progress import Progress
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.dataset import OMISSIONS, records_sha256
from pipelines.records.licence import Licence, licence_counts
from pipelines.sources.own_source import OwnSource

_NAMED = 5
"""Most files named among the counts, of those that look like data and were not read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """One dataset: a reader, its folder, split and features, and how to prepare it.

    The licence is that of the source, for records whose rows state none; of `licences`, None allows
    all.
    """

    reader: str | OwnSource
    path: str
    split: str
    prepare: PrepareConfig
    features: Mapping[str, str] = dataclasses.field(default_factory=dict)
    licence: Licence = Licence()
    licences: LicencesConfig | None = None


def make(work: StepContext) -> Iterator[Progress]:
    """Prepares the dataset of a `DatasetSpec`; unchanged shards are taken from an earlier one."""
    from pipelines.prepare.job import EarlierDataset
    from pipelines.prepare.run import make_dataset

    spec: DatasetSpec = work.config
    # User data is read in place; a drawn corpus is an artifact.
    data_root = work.location or str(work.inputs["raw"])
    # The newest dataset with the same settings and code, from other raw files: shards whose inputs
    # did not change are taken from it.
    earlier = work.earlier()
    info, files, num_reused_shards, omissions = yield from stream_progress(
        lambda report: make_dataset(
            spec.prepare,
            source=with_user_code(spec.reader),
            split=spec.split,
            data_root=data_root,
            path=spec.path or None,
            features=spec.features,
            work=work.shared,
            on_progress=report,
            earlier=EarlierDataset(store=earlier[0], folder=earlier[1]) if earlier else None,
            code=work.code,
            licence=spec.licence,
            licences=spec.licences,
        )
    )
    # The workers wrote the shards into the store already, perhaps from other machines.
    for name, (stored, file) in files.items():
        work.adopt(name, stored, file)
    # What was not read is in no record: a stray file beside the inputs must make nothing new that
    # reads the dataset.
    if OMISSIONS in files:
        work.content = records_sha256({name: file.sha256 for name, (_, file) in files.items()})
    work.counts.update(inputs=info.num_inputs, records=info.num_records, rejected=info.num_rejected)
    if info.num_dropped:
        work.counts.update(dropped=info.num_dropped)
    work.counts.update(licence_counts(info.licences))
    if info.num_composed:
        work.counts.update(composed=info.num_composed)
    # decoded_by_decord=12, decoded_by_pyav=3
    work.counts.update({f"decoded_by_{name}": num for name, num in info.decoders.items()})
    if num_reused_shards:
        work.counts.update(shards=spec.prepare.num_shards, reused_shards=num_reused_shards)
    if names := sorted({omission.source for omission in omissions}):
        work.counts.update(not_read=abbreviate_list(names, _NAMED))


def _dataset_reader_module(spec: Mapping[str, Any]) -> tuple[str, ...]:
    from pipelines.sources.registry import reader_module

    return (reader_module(reader_of(spec)),)


def _unused_decoders(spec: Mapping[str, Any]) -> tuple[str, ...]:
    from pipelines.sources.registry import may_have_clips

    # Frames of clips pass through Pillow, too. decord never decodes alone: PyAV probes each clip.
    if not may_have_clips(reader_of(spec)):
        return ("av", "decord")
    return () if spec["prepare"]["decoder"] == "decord" else ("decord",)


DATASET = Kind(
    name="dataset",
    make=make,
    spec=DatasetSpec,
    libraries=("pillow", "av", "decord"),
    unused_libraries=_unused_decoders,
    # The registry knows every reader, but one of them makes a dataset: `also` adds that one.
    stop=("pipelines.sources.registry",),
    also=_dataset_reader_module,
    functions=lambda spec: [reader_of(spec)],
    holds="dataset",
    content="pipelines.records.dataset:digest_records",
)
