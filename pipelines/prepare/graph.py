"""The Beam graph: one element is one piece of work, so no items and no pixels cross Beam.

    units     ─▶ list  ─▶ cut a shard ─▶ write a piece ─▶ join a shard        sharded by id
    units     ─▶ list  ─▶ narrow a list ─▶ cut a shard ─▶ …                   a part of a split
    archives           ─────────────────▶ write a piece ─▶ join a shard        by archive

Each arrow is a reshuffle or a grouping of names and numbers. The data they refer to is in the work
folder (see `job`); every step first checks there whether its output already exists.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from infra.store.stored_folder import BUCKET_SCHEME
from pipelines.prepare import steps
from pipelines.prepare.job import ERROR, PrepareJob, WorkFolder, count_receipts, parse_receipt
from pipelines.prepare.lean_imports import imports_without
from pipelines.prepare.listing import ListTotals
from pipelines.prepare.steps import Archives, Units
from pipelines.prepare.worker_pool import LOCAL, WorkerLostError, pool_of, uses_processes

_FILE_SYSTEMS = (
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.gcp.gcsfilesystem",
    "apache_beam.io.hadoopfilesystem",
)
"""Modules by which runners on other machines reach the files that they stage."""

# These take half of Beam's import time, and a third of its memory; our graphs do not use them.
# It would say each time that it lacks what is left out.
logging.getLogger("apache_beam.io.mongodbio").setLevel(logging.ERROR)
with imports_without(*_FILE_SYSTEMS, "apache_beam.io.gcp.bigquery", "pandas", "pyarrow", "pymongo"):
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
    from apache_beam.runners.portability.fn_api_runner import worker_handlers
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.runners.worker.channel_factory import GRPCChannelFactory
    from apache_beam.transforms import core
    from apache_beam.transforms.environments import ExternalEnvironment
    from apache_beam.transforms.window import GlobalWindows
    from apache_beam.utils.windowed_value import WindowedValue

    from pipelines.prepare import beam_sockets

# FnApiRunner's threads lose buffered elements without an error, because a timer flushes the buffer
# while it is written to. With the timer off, no element was lost.
worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = -1  # type: ignore[assignment]

# Workers are asked for one after another at the address of their pools. A service behind it shares
# out connections, so each request needs one of its own, and gRPC would use one for several.
GRPCChannelFactory.DEFAULT_OPTIONS.append(("grpc.use_local_subchannel_pool", 1))

# Beam's own servers listen on every network interface.
beam_sockets.use_private_sockets()


def _remember_arguments(inspect: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Returns Beam's function that inspects a method's arguments, with a memory."""
    by_method: dict[tuple[type, str], Any] = {}

    def arguments_of(instance: Any, method: str) -> Any:
        # Beam's wrappers of plain functions have methods that differ between instances.
        if method in vars(instance) or hasattr(instance, f"_inspect_{method}"):
            return inspect(instance, method)
        key = type(instance), method
        if key not in by_method:
            by_method[key] = inspect(instance, method)
        names, defaults = by_method[key]
        return [*names], [*defaults]

    return arguments_of


# Beam inspects all methods of each transform anew for each of its checks, a third of the time that
# it takes for a graph.
core.get_function_arguments = _remember_arguments(core.get_function_arguments)

_CODE = ("sdk_container_image", "extra_package", "setup_file")
"""Beam options that bring the project's code to workers on other machines."""

_DATAFLOW = "DataflowRunner"
"""A runner whose workers cannot see this machine's folders."""

_POLL_S = 0.2
"""Least time between two checks of the progress [s]."""


class _Step(beam.DoFn):
    """Calls a step of `steps` for each element.

    In a run on this machine, all elements of a bundle are handed to its pool of processes at once,
    and the results are gathered at the bundle's end. Any other worker does the step itself.
    """

    def __init__(self, job: PrepareJob, step: steps.Step) -> None:
        self.job, self.step = job, step

    def setup(self) -> None:
        self.pool = pool_of(self.job.work)
        self.worker = None if self.pool else steps.Worker(self.job)

    def start_bundle(self) -> None:
        self.calls: list[Future[list[Any]]] = []

    def process(self, element: Any, *more: Any) -> Iterator[Any]:
        if self.pool is not None:
            self.calls.append(self.pool.submit(self.step, element, *more))
            return
        assert self.worker is not None
        with self.worker.note_errors():
            results = self.step(self.worker, element, *more)
        yield from results

    def finish_bundle(self) -> Iterator[WindowedValue]:  # type: ignore[override]
        for call in self.calls:
            yield from map(GlobalWindows.windowed_value, call.result())

    def teardown(self) -> None:
        if self.worker is not None:
            self.worker.close()


def _add_step(job: PrepareJob, step: steps.Step, results: Any, *more: Any) -> beam.PTransform:
    """Returns a step as a transform whose results have the type `results`."""
    return beam.ParDo(_Step(job, step), *more).with_output_types(results)


def add_prepare_steps(
    pipeline: beam.Pipeline, job: PrepareJob, units: Sequence[Units], archives: Sequence[Archives]
) -> None:
    """Adds the steps of a run to a pipeline.

    Args:
      pipeline: the pipeline to extend.
      job: the run.
      units: units to list, if the dataset is sharded by id.
      archives: archives to read, if it is sharded by archive.
    """
    # Nothing but names and numbers flows along the arrows:
    #
    #   by archive:  (shard, piece, [archive])
    #   by id:       (list, [units]) ─▶ totals of all lists ─▶ (shard, piece)
    if job.by_archive:
        pieces = _spread_over_workers(
            job, "SpreadArchives", _create_name_collection(pipeline, "NameArchives", archives)
        )
    else:
        # Every worker that cuts a shard needs all lists, so their totals are a barrier: a side
        # input exists only once each list has been written.
        totals = (
            _spread_over_workers(
                job, "SpreadUnits", _create_name_collection(pipeline, "NameUnits", units)
            )
            | "ListUnits" >> _add_step(job, steps.list_step, ListTotals)
            | "SumUp" >> beam.CombineGlobally(_add_totals).as_singleton_view()
        )
        # Which candidates belong to the part shows only once all of them are known: a second round
        # of list numbers passes the same kind of barrier.
        if job.part:
            totals = (
                _spread_over_workers(
                    job,
                    "SpreadLists",
                    _create_name_collection(pipeline, "NameLists", range(len(units))),
                )
                | "NarrowLists" >> _add_step(job, steps.narrow_step, ListTotals, len(units), totals)
                | "SumUpPart" >> beam.CombineGlobally(_add_totals).as_singleton_view()
            )
        shards = _create_name_collection(pipeline, "NameShards", range(job.config.num_shards))
        pieces = _spread_over_workers(
            job,
            "SpreadPieces",
            _spread_over_workers(job, "SpreadShards", shards)
            | "CutShards" >> _add_step(job, steps.cut_step, tuple[int, int], len(units), totals),
        )
    piece_reports = pieces | "WritePieces" >> _add_step(
        job, steps.write_step, tuple[int, list[str]]
    )
    # A shard must have a file for every part, even for one that it has no record of, so the names
    # of all parts are gathered before any shard is joined.
    parts = (
        piece_reports
        | "NameParts" >> beam.FlatMap(_part_names)
        | "AllParts" >> beam.CombineGlobally(_union_of_parts).as_singleton_view()
    )
    _ = (
        piece_reports
        | "GroupPieces" >> beam.GroupByKey()
        | "CountPieces" >> beam.Map(_count_pieces)
        | "JoinShards" >> _add_step(job, steps.join_step, int, parts)
    )


def _create_name_collection(pipeline: beam.Pipeline, label: str, names: Iterable[Any]) -> Any:
    """Returns names and numbers as a collection."""
    return pipeline | label >> beam.Create(names, reshuffle=False)


def _spread_over_workers(job: PrepareJob, label: str, elements: Any) -> Any:
    """Returns the elements, for any worker to take.

    A `WorkerPool` needs no reshuffle for that: each of its processes takes the next element. Each
    reshuffle costs five transforms, and Beam inspects each of them several times.
    """
    return elements if uses_processes(job.config) else elements | label >> beam.Reshuffle()


def _add_totals(totals: Iterable[ListTotals]) -> ListTotals:
    total = ListTotals()
    for totals_of_list in totals:
        total = total + ListTotals(*totals_of_list)
    return total


def _part_names(element: tuple[int, list[str]]) -> list[frozenset[str]]:
    return [frozenset(element[1])]


def _count_pieces(element: tuple[int, Iterable[list[str]]]) -> tuple[int, int]:
    shard, pieces = element
    return shard, sum(1 for _ in pieces)


def _union_of_parts(part_sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*part_sets)


def runner_options(job: PrepareJob) -> PipelineOptions:
    """Returns the runner's options, the user's last: the last value of an option wins."""
    # The local runner needs to be told how many workers to start; any other runner knows.
    options = []
    if job.config.runner == _DATAFLOW:
        _check_dataflow(job)
    if uses_processes(job.config):
        options += ["--direct_num_workers=1", "--direct_running_mode=in_memory"]
    elif job.config.runner == LOCAL:
        options.append(f"--direct_num_workers={job.config.num_workers}")
        if not any("environment_type" in option for option in job.config.runner_options):
            mode = "multi_threading" if job.config.num_workers > 1 else "in_memory"
            options.append(f"--direct_running_mode={mode}")
    return PipelineOptions([*options, *job.config.runner_options])


def make_pipeline(job: PrepareJob) -> beam.Pipeline:
    """Returns an empty pipeline on the configured runner.

    Raises:
      ValueError: if there is no such runner, or it refuses its options.
    """
    options, runner = runner_options(job), job.config.runner
    if runner != LOCAL:
        _add_file_systems()
    external: Any = ExternalEnvironment  # Beam's decorators hide its type.
    # Only to see whether it is there: Beam's own error would not say what to install.
    try:
        if runner == _DATAFLOW:
            import google.cloud.dataflow  # pyright: ignore[reportMissingImports] # noqa: F401
    except ImportError:
        raise ValueError(
            f"prepare.runner {runner} needs Dataflow's client: pip install "
            f"parcel-pipeline[dataflow]."
        ) from None
    try:
        if runner == LOCAL and options.view_as(PortableOptions).environment_type == "EXTERNAL":
            # FnApiRunner can use external worker pools, but does not read them from the options.
            pools = external.from_options(options.view_as(PortableOptions))
            return beam.Pipeline(FnApiRunner(default_environment=pools), options)
        return beam.Pipeline(runner, options)
    except Exception as error:  # Runners raise any kind of exception for a bad option.
        message = " ".join(str(error).split())
        raise ValueError(
            f"prepare.runner and prepare.runner_options must be what Beam takes, got {runner!r} "
            f"and {list(job.config.runner_options)}: {message}"
        ) from error


def _add_file_systems() -> None:
    """Makes gs:// and others known to Beam, as far as their clients are installed."""
    # They were left out of Beam's import above; each registers itself when it is imported.
    with contextlib.suppress(ImportError):
        from apache_beam.io.gcp import gcsfilesystem  # noqa: F401
    with contextlib.suppress(ImportError):
        from apache_beam.io.aws import s3filesystem  # noqa: F401
    with contextlib.suppress(ImportError):
        from apache_beam.io import hadoopfilesystem  # noqa: F401


def _check_dataflow(job: PrepareJob) -> None:
    """Refuses, before anything starts, a config that Dataflow's workers could not run.

    Raises:
      ValueError: if it could not run, naming the field, its value and the fix.
    """
    for field, uri in (("data_root", job.data_root), ("the store", job.work)):
        if not uri.startswith(BUCKET_SCHEME):
            raise ValueError(
                f"{field} must be gs://bucket/prefix for DataflowRunner, whose workers see no "
                f"folder of this machine, got {uri}."
            )
    option_names = {option.lstrip("-").partition("=")[0] for option in job.config.runner_options}
    for names, purpose in (_CODE, "the code"), (("project",), "who pays"), (("region",), "where"):
        if not option_names & set(names):
            options = " or ".join(f"--{name}=…" for name in names)
            raise ValueError(
                f"prepare.runner_options must have {options} for DataflowRunner ({purpose}), got "
                f"{list(job.config.runner_options)}."
            )


def run_pipeline(
    job: PrepareJob,
    units: Sequence[Units],
    archives: Sequence[Archives],
    *,
    timeout_s: float,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Runs a job on the configured runner; the results are in its work folder.

    Args:
      job: the run.
      units: see `add_prepare_steps`.
      archives: see `add_prepare_steps`.
      timeout_s: longest time [s].
      on_poll: called repeatedly while it runs.

    Raises:
      ValueError, FileNotFoundError: if a worker found an error in the corpus.
      RuntimeError: on any other error of a worker, in one line, for example a full disk.
      WorkerLostError: if the runner failed without a reported reason, or no worker finished
        anything for `stall_s`.
      TimeoutError: if the runner has not returned in time.
    """
    _supervise_runner(
        job, lambda pipeline: add_prepare_steps(pipeline, job, units, archives), timeout_s, on_poll
    )


def run_naming_pipeline(job: PrepareJob, units: Sequence[Units]) -> None:
    """Lets workers note the names of the files that some units are read from.

    Raises:
      ValueError, FileNotFoundError, RuntimeError, TimeoutError: as in `run_pipeline`.
    """

    def build_naming(pipeline: beam.Pipeline) -> None:
        names = _spread_over_workers(
            job, "SpreadUnits", _create_name_collection(pipeline, "NameUnits", units)
        )
        _ = names | "NameFiles" >> _add_step(job, steps.names_step, int)

    _supervise_runner(job, build_naming, job.config.timeout_s, lambda: None)


def _supervise_runner(
    job: PrepareJob,
    add_steps: Callable[[beam.Pipeline], None],
    timeout_s: float,
    on_poll: Callable[[], None],
) -> None:
    """Runs a pipeline in a daemon thread, which is abandoned if it stalls."""
    failure: list[BaseException] = []
    files = WorkFolder(job).files
    # An error that an earlier attempt left would be taken for this one's.
    files.remove(ERROR)
    pipeline = make_pipeline(job)
    add_steps(pipeline)

    def run_to_end() -> None:
        try:
            pipeline.run().wait_until_finish()
        except BaseException as error:
            failure.append(error)

    # Runners offer no time limit and cannot be cancelled, so the pipeline runs in a daemon thread
    # and this one watches the work folder: receipts that appear are the only sign of life that all
    # runners have in common.
    thread = threading.Thread(target=run_to_end, name="beam", daemon=True)
    thread.start()
    start_time = progress_time = time.monotonic()
    counts_before, poll_s = count_receipts(files), _POLL_S
    while thread.is_alive():
        thread.join(poll_s)
        poll_time = time.monotonic()
        on_poll()
        counts = count_receipts(files)
        if counts != counts_before:
            counts_before, progress_time = counts, poll_time
        # Listing a bucket is slow: at most about a tenth of the time goes into it.
        poll_s = max(_POLL_S, 10 * (time.monotonic() - poll_time))
        if thread.is_alive() and poll_time - start_time > timeout_s:
            raise TimeoutError(
                f"{job.config.runner} did not finish within timeout_s={job.config.timeout_s:g}; "
                f"what is done so far is in {job.work}. Run it again, with a longer timeout_s if "
                f"it needs one."
            )
        if thread.is_alive() and poll_time - progress_time > job.config.stall_s:
            raise WorkerLostError(
                f"no worker of {job.config.runner} finished anything for stall_s="
                f"{job.config.stall_s:g} s; a worker may be lost or may never have started"
            )
    if failure:
        _raise_worker_error(job, failure[0], parse_receipt(WorkFolder(job).receipt(ERROR)))


def _raise_worker_error(job: PrepareJob, error: BaseException, note: Any) -> None:
    """Raises the error that a worker noted (`note`) or, without one, the runner's error."""
    # The runner's own error is a page of tracebacks from several processes; the worker's note, if
    # there is one, says in a line what went wrong and whose fault it was.
    if note is None:
        if not isinstance(error, Exception):
            raise error
        line = str(error).strip().rpartition("\n")[2] or type(error).__name__
        raise WorkerLostError(f"{job.config.runner} failed: {line}") from error
    for kind in (FileNotFoundError, ValueError):
        if kind.__name__ in note["kinds"]:
            raise kind(note["text"]) from error
    raise RuntimeError(f"{job.config.runner} failed: {note['text']}") from error
