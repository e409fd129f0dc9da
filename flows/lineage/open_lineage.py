"""Writes the steps of a history as OpenLineage events, for a server such as Marquez.

A step is a job, and each attempt that made its artifact is a run. Artifacts are datasets, and a
dataset's version is the digest of the artifact's contents. The same artifacts give the same events,
so sending them again changes nothing.
"""

import datetime
import json
import uuid
from collections.abc import Iterator

from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    set_producer,
)
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    dataset_version_dataset,
    execution_parameters_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
)
from openlineage.client.serde import Serde

from flows.lookup.config_leaves import config_leaves
from infra.store.history import ARTIFACTS
from infra.store.manifest import Manifest
from infra.store.redact import redact
from infra.store.store import Artifact, Store
from infra.store.stored_folder import BUCKET_SCHEME

PRODUCER = "urn:parcel-pipeline"
"""Producer of the events [URI]."""

_JOBS = "parcel"
"""Namespace of the jobs."""


def open_lineage_events(store: Store, artifact: Artifact) -> Iterator[str]:
    """Yields the start and the end event of the step that made an artifact, as JSON.

    Args:
      store: the artifact's store; its address is part of the datasets' names.
      artifact: the artifact.
    """
    set_producer(PRODUCER)  # For facets; the library offers only this global setting.
    manifest = artifact.manifest
    began = datetime.datetime.fromisoformat(manifest.started)
    ended = began + datetime.timedelta(seconds=manifest.seconds)
    # An end is the start and its output: a step that is still running has made nothing yet.
    for state, at in ((RunState.START, began), (RunState.COMPLETE, ended)):
        event = RunEvent(
            eventTime=at.isoformat(),
            eventType=state,
            run=_run_facets(manifest),
            job=_job_of(manifest),
            inputs=[
                InputDataset(*_dataset_name(store, entry.key), facets=_version_facet(entry.content))
                for _, entry in sorted(manifest.inputs.items())
            ],
            outputs=[_output_dataset(store, manifest)] if state is RunState.COMPLETE else [],
        )
        yield Serde.to_json(event)


def _run_facets(manifest: Manifest) -> Run:
    values = {
        **config_leaves(redact(manifest.config)),
        "seed": manifest.seed,
        "code": manifest.code,
    }
    parameters = [
        execution_parameters_run.ExecutionParameter(
            key=key or "config", value=value if isinstance(value, str) else json.dumps(value)
        )
        for key, value in values.items()
        if value is not None
    ]
    facets: dict[str, RunFacet] = {
        "executionParameters": execution_parameters_run.ExecutionParametersRunFacet(
            parameters=parameters
        )
    }
    if version := manifest.environment.get("packages", {}).get("jax"):
        facets["processing_engine"] = processing_engine_run.ProcessingEngineRunFacet(
            name="jax", version=version
        )
    # The run's id is derived from the attempt, so the same artifact always gives the same id.
    return Run(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{manifest.key}/{manifest.attempt}")), facets)


def _job_of(manifest: Manifest) -> Job:
    kind = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="PARCEL", jobType=manifest.kind.upper()
    )
    return Job(_JOBS, manifest.name, {"jobType": kind})


def _output_dataset(store: Store, manifest: Manifest) -> OutputDataset:
    rows = manifest.counts.get("records")
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=int(rows) if rows is not None else None,
        size=sum(file.size for file in manifest.files.values()),
        fileCount=len(manifest.files),
    )
    return OutputDataset(
        *_dataset_name(store, manifest.key),
        facets=_version_facet(manifest.content),
        outputFacets={"outputStatistics": statistics},
    )


def _version_facet(content: str) -> dict[str, DatasetFacet]:
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(content)}


def _dataset_name(store: Store, key: str) -> tuple[str, str]:
    """Returns (namespace, name) of an artifact by OpenLineage's rules for files and objects."""
    place = f"{store.uri}/{ARTIFACTS}/{key}"
    if not place.startswith(BUCKET_SCHEME):
        return "file", place
    scheme, separator, rest = place.partition("://")
    bucket, _, name = rest.partition("/")
    return f"{scheme}{separator}{bucket}", name
