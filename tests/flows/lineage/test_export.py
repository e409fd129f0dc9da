"""Events and descriptions that other tools read, held against those tools' own libraries."""

import json
import uuid
from pathlib import Path

import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent

from flows.lineage.export import export_lineage
from flows.lookup.target import LookupTarget
from infra.store.store import Store


def test_events_of_every_step_are_open_lineages_and_lead_from_one_to_the_next(
    table: tuple[Store, LookupTarget],
):
    store, what = table
    texts = dict(export_lineage(store, what, "openlineage"))
    assert set(texts) == {f"{artifact.key}.jsonl" for artifact in store.artifacts()}
    assert texts == dict(export_lineage(store, what, "openlineage"))
    outputs, inputs, runs = set(), set(), set()
    for text in texts.values():
        start, complete = map(json.loads, text.splitlines())
        assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
        assert start["run"]["runId"] == complete["run"]["runId"]
        runs.add(uuid.UUID(start["run"]["runId"]))
        (output,) = complete["outputs"]
        outputs.add((output["name"], output["facets"]["version"]["datasetVersion"]))
        for read in complete["inputs"]:
            inputs.add((read["name"], read["facets"]["version"]["datasetVersion"]))
        RunEvent(  # Its validators raise.
            eventTime=complete["eventTime"],
            producer=complete["producer"],
            run=Run(complete["run"]["runId"]),
            job=Job("parcel", complete["job"]["name"]),
        )
    assert len(runs) == len(outputs) == len(texts)
    assert inputs < outputs


@pytest.mark.slow  # Its imports take two seconds.
def test_datasets_are_described_as_croissant_wants_it(
    table: tuple[Store, LookupTarget],
    tmp_path: Path,
):
    import mlcroissant

    store, what = table
    texts = dict(export_lineage(store, what, "croissant"))
    assert len(texts) == 3
    for name, text in texts.items():
        found = mlcroissant.Dataset(jsonld=json.loads(text))
        assert not found.metadata.ctx.issues.errors
        artifact = store.get(Path(name).stem)
        assert [s.name for s in found.metadata.record_sets] == ["color records"]
        (shard,) = found.metadata.file_objects
        stored = artifact.manifest.files[shard.name]
        assert (shard.sha256, shard.content_size) == (stored.sha256, f"{stored.size} B")
        assert Path(shard.content_url).stat().st_size == stored.size
