"""The Beam graph: one element is one shard of work, so no pixels and no records cross Beam."""

import threading
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from pipelines.prepare.shards import Job, write_shards
from pipelines.video.client import VideoChild

# FnApiRunner's threads lose buffered elements without an error: a timer flushes the buffer while
# it is written to. Without the timer none was lost.
worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = -1  # type: ignore[assignment]


class _WriteShards(beam.DoFn):
    """Writes shards; the video decoder lives as long as its worker."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def setup(self) -> None:
        self.video = VideoChild(self.job.config.video_limits())

    def process(self, shard: int) -> Iterator[tuple[int, int]]:
        yield shard, write_shards(self.job, shard, self.video).num_items

    def teardown(self) -> None:
        self.video.close()


def run(job: Job, shards: list[int], *, timeout_s: float) -> None:
    """Runs the shards on the configured runner; what they did is in their reports.

    Raises:
      RuntimeError: if it failed, in one line: a full disk, for instance.
      TimeoutError: if the runner has not come back in time; a killed worker can hang it.
    """
    failure: list[BaseException] = []

    def supervise() -> None:
        try:
            _run(job, shards)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=supervise, name="beam", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(
            f"{job.config.runner} did not finish within timeout_s={timeout_s:g}, as when it loses "
            f"a worker; the shards written so far are in {job.out}. Run it again, into another "
            f"folder, with a longer timeout_s if it needs one."
        )
    if failure and isinstance(failure[0], OSError | RuntimeError):  # Beam adds tracebacks.
        line = str(failure[0]).strip().rpartition("\n")[2]
        raise RuntimeError(f"{job.config.runner} failed: {line}") from failure[0]
    if failure:
        raise failure[0]


def _run(job: Job, shards: list[int]) -> None:
    options = []
    if job.config.runner == "FnApiRunner":
        mode = "multi_threading" if job.config.num_workers > 1 else "in_memory"
        options += [
            f"--direct_running_mode={mode}",
            f"--direct_num_workers={job.config.num_workers}",
        ]
    options += job.config.runner_options  # The last one of a name counts.
    with beam.Pipeline(runner=job.config.runner, options=PipelineOptions(options)) as pipeline:
        _ = (
            pipeline
            | "ListShards" >> beam.Create(shards)
            | "SpreadOverWorkers" >> beam.Reshuffle()
            | "WriteShards" >> beam.ParDo(_WriteShards(job))
        )
