"""The graph as other runners get it: by name, with its code, and without items in it."""

import dataclasses
import json
import subprocess
import sys
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PortableOptions, WorkerOptions
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import environments

from pipelines.prepare.graph import add_prepare_steps, make_pipeline, runner_options
from pipelines.prepare.job import PrepareJob
from pipelines.prepare.run import PrepareConfig

IMAGE = "registry.example/parcel-beam:1"
DATAFLOW = ("--project=p", "--region=europe-west4", f"--sdk_container_image={IMAGE}")


def job(**config: Any) -> PrepareJob:
    return PrepareJob(
        config=PrepareConfig(num_shards=3, **config),
        source="web",
        split="train",
        data_root="gs://testing/raw",
        path="web",
        work="gs://testing/work",
    )


def graph_of(job: PrepareJob) -> api.Pipeline:
    pipeline = beam.Pipeline(FnApiRunner(), options=runner_options(job))
    add_prepare_steps(pipeline, job, [(0, ["a.tar", "b.tar"]), (1, ["c.tar"])], [(0, 0, ["a.tar"])])
    container = environments.DockerEnvironment.from_container_image(IMAGE)
    return pipeline.to_runner_api(default_environment=container)


def test_the_graph_is_the_same_for_every_runner():
    flink = ("--flink_master=flink:8081", f"--environment_config={IMAGE}")
    graphs = [
        graph_of(job(runner="DataflowRunner", runner_options=DATAFLOW)),
        graph_of(job(runner="FlinkRunner", runner_options=flink)),
    ]
    names = [sorted(t.unique_name for t in g.components.transforms.values()) for g in graphs]
    assert names[0] == names[1]
    for step in ("ListUnits", "CutShards", "SpreadPieces", "WritePieces", "JoinShards"):
        assert step in names[0]
    for graph in graphs:
        (environment,) = graph.components.environments.values()
        assert environment.urn == "beam:env:docker:v1"
        assert IMAGE.encode() in environment.payload
        kinds = {t.spec.urn for t in graph.components.transforms.values()}
        assert {"beam:transform:reshuffle:v1", "beam:transform:group_by_key:v1"} <= kinds


def test_options_of_other_runners_are_parsed():
    options = runner_options(job(runner="DataflowRunner", runner_options=DATAFLOW))
    assert options.get_all_options()["project"] == "p"
    assert options.view_as(WorkerOptions).sdk_container_image == IMAGE
    external = ("--environment_type=EXTERNAL", "--environment_config=10.99.0.9:50000")
    flink = runner_options(job(runner="FlinkRunner", runner_options=external))
    assert flink.view_as(PortableOptions).environment_config == "10.99.0.9:50000"


def test_dataflow_gets_the_graph_with_its_container(gcs, tmp_path, monkeypatch):
    """Offline: with a key that nobody knows, and `--dry_run`."""
    pytest.importorskip("google.cloud.dataflow", reason="the extra `dataflow` is not installed")
    made = subprocess.run(["openssl", "genrsa", "2048"], capture_output=True, text=True, check=True)
    account = {
        "type": "service_account",
        "project_id": "parcel-test",
        "private_key_id": "0",
        "private_key": made.stdout,
        "client_email": "nobody@parcel-test.iam.gserviceaccount.com",
        "client_id": "0",
        "token_uri": "http://127.0.0.1:9/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    for name, value in {
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "account.json"),
        "NO_GCE_CHECK": "true",
        "GCE_METADATA_HOST": "127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    options = ("--project=parcel-test", *DATAFLOW[1:], "--temp_location=gs://testing/tmp")
    asked = job(runner="DataflowRunner", runner_options=(*options, "--dry_run=True"))
    pipeline = make_pipeline(asked)
    add_prepare_steps(pipeline, asked, [(0, ["a.tar"])], [])
    graph = pipeline.run().job.proto_pipeline
    names = {transform.unique_name for transform in graph.components.transforms.values()}
    assert {"ListUnits", "CutShards", "WritePieces", "JoinShards"} <= names
    images = [e.payload for e in graph.components.environments.values()]
    assert all(IMAGE.encode() in payload for payload in images)


@pytest.mark.parametrize(
    ("changes", "options", "told"),
    [
        ({"data_root": "/data"}, DATAFLOW, "data_root must be gs://bucket/prefix for Dataflow"),
        ({"work": "/tmp/x"}, DATAFLOW, "the store must be gs://bucket/prefix for DataflowRunner"),
        ({}, DATAFLOW[:2], "runner_options must have --sdk_container_image=… or --extra_package=…"),
        ({}, DATAFLOW[1:], "runner_options must have --project=… for DataflowRunner"),
    ],
)
def test_what_dataflow_cannot_reach_is_told_before_it_starts(changes, options, told):
    asked = job(runner="DataflowRunner", runner_options=options)
    with pytest.raises(ValueError, match=told):
        runner_options(dataclasses.replace(asked, **changes))


@pytest.mark.parametrize(
    ("runner", "options", "told"),
    [
        ("Flnk", (), "Unexpected pipeline runner: Flnk. Valid values are DataflowRunner"),
        ("FnApiRunner", ("--environment_type=EXTERNAL",), "got 'FnApiRunner' and"),
    ],
)
def test_what_beam_refuses_is_told_in_one_line(runner, options, told):
    with pytest.raises(ValueError, match=r"prepare\.runner and prepare\.runner_options") as caught:
        make_pipeline(job(runner=runner, runner_options=options))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dataflow_without_its_client_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.dataflow", None)
    asked = job(runner="DataflowRunner", runner_options=DATAFLOW)
    with pytest.raises(ValueError, match=r"pip install parcel-pipeline\[dataflow\]"):
        make_pipeline(asked)
