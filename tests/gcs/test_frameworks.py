"""Beam and Orbax on gs://, each in a process that knows the server by its environment alone."""

import os
import subprocess
import sys

import pytest

from tests.gcs.server import GCS

pytestmark = pytest.mark.slow

BEAM = """
import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

options = PipelineOptions(["--no_auth", "--project=test"])
FileSystems.set_options(options)
lines = [f"line {index}" for index in range(100)]
with beam.Pipeline(options=options) as pipeline:
    pipeline | beam.Create(lines) | beam.io.WriteToText("gs://testing/out/text", num_shards=3)
with beam.Pipeline(options=options) as pipeline:
    read = pipeline | beam.io.ReadFromText("gs://testing/out/text*")
    read | beam.combiners.ToList() | beam.io.WriteToText(
        "gs://testing/all", shard_name_template="", coder=beam.coders.coders.PickleCoder()
    )

data = bytes(range(256)) * 4096
with FileSystems.create("gs://testing/one") as file:
    file.write(data)
with FileSystems.open("gs://testing/one") as file:
    assert file.read() == data
FileSystems.rename(["gs://testing/one"], ["gs://testing/two"])
FileSystems.copy(["gs://testing/two"], ["gs://testing/three"])
FileSystems.delete(["gs://testing/three"])
assert not FileSystems.exists("gs://testing/one")
[match] = FileSystems.match(["gs://testing/t*"])
assert [(found.path, found.size_in_bytes) for found in match.metadata_list] == [
    ("gs://testing/two", len(data))
]
"""

ORBAX = """
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

tree = {"a": jnp.arange(1000, dtype=jnp.float32), "b": {"c": jnp.ones((64, 64))}}
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save("gs://testing/one", tree)
with ocp.StandardCheckpointer() as checkpointer:
    back = checkpointer.restore("gs://testing/one", tree)
np.testing.assert_array_equal(back["a"], tree["a"])

options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager("gs://testing/steps", options=options) as manager:
    for step in range(4):
        scaled = {"a": tree["a"] * np.float32(step), "b": tree["b"]}
        manager.save(step, args=ocp.args.StandardSave(scaled))
    manager.wait_until_finished()
with ocp.CheckpointManager("gs://testing/steps") as manager:
    assert sorted(manager.all_steps()) == [2, 3], manager.all_steps()
    for step in (2, 3):
        back = manager.restore(step, args=ocp.args.StandardRestore(tree))
        np.testing.assert_array_equal(back["a"], tree["a"] * np.float32(step))
        np.testing.assert_array_equal(back["b"]["c"], tree["b"]["c"])
"""


def run(gcs: GCS, code: str) -> None:
    environment = {**os.environ, **gcs.environment, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "other" not in gcs.requests()  # Nothing was asked for that is not served.


def test_beam_writes_and_reads(gcs: GCS):
    run(gcs, BEAM)
    names = gcs.store.bucket("testing").names
    shards = [f"out/text-0000{shard}-of-00003" for shard in range(3)]
    assert names == ["all", *shards, "two"]  # Nothing is left of temporary files.
    lines = [
        line for name in shards for line in gcs.store.get("testing", name).data.split(b"\n") if line
    ]
    assert sorted(lines) == sorted(b"line %d" % index for index in range(100))


def test_orbax_saves_and_restores(gcs: GCS):
    run(gcs, ORBAX)
    steps = {name.split("/")[1] for name in gcs.store.bucket("testing").names if "steps/" in name}
    assert steps == {"2", "3"}
