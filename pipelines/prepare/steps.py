"""The steps of preparing, each a function of a worker and of names and numbers.

They return names and numbers too: the data is in the work folder. `graph` calls them in Beam's
process, `worker_process` in one of its own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Concatenate

from pipelines.prepare.file_names import note_file_names
from pipelines.prepare.job import PrepareJob, WorkFolder
from pipelines.prepare.listing import ListTotals, cut_shard, list_units, narrow_list
from pipelines.prepare.reuse import reuse_shard
from pipelines.prepare.shards import join_shard, write_archives, write_piece
from pipelines.video.client import VideoChild

Units = tuple[int, list[str]]
"""(number of a list, units that it lists)"""

Archives = tuple[int, int, list[str]]
"""(shard, piece of that shard, archives read for the piece)"""


class Worker:
    """Holds a `WorkFolder` and a video decoder while it works. Not thread-safe."""

    def __init__(self, job: PrepareJob) -> None:
        self.work_folder = WorkFolder(job)
        self.video = VideoChild(job.config.video_limits())

    def close(self) -> None:
        """Ends the video decoder."""
        self.video.close()

    @contextlib.contextmanager
    def note_errors(self) -> Iterator[None]:
        """Notes an error in the work folder before the runner buries it in tracebacks."""
        try:
            yield
        except Exception as error:
            self.work_folder.note_error(error)
            raise


Step = Callable[Concatenate[Worker, Any, ...], list[Any]]
"""Returns the results of one element; further arguments are the same for all elements."""


def list_step(worker: Worker, element: Units) -> list[ListTotals]:
    """Lists some units; returns the totals of their list."""
    return [list_units(worker.work_folder, *element)]


def narrow_step(
    worker: Worker, number: int, num_lists: int, totals: ListTotals
) -> list[ListTotals]:
    """Makes a list from its candidates; returns its totals."""
    del totals  # Only waited for: it exists once all candidate lists do.
    return [narrow_list(worker.work_folder, number, num_lists)]


def names_step(worker: Worker, element: Units) -> list[int]:
    """Notes the names of the files of some units; returns their number."""
    return [note_file_names(worker.work_folder, *element)]


def cut_step(
    worker: Worker, shard: int, num_lists: int, totals: ListTotals
) -> list[tuple[int, int]]:
    """Cuts a shard; returns (shard, piece) of the pieces to write."""
    del totals  # Only waited for: it exists once all lists do.
    num_pieces = cut_shard(worker.work_folder, shard, num_lists)
    if reuse_shard(worker.work_folder, shard, num_pieces):
        num_pieces = 1
    return [(shard, piece) for piece in range(num_pieces)]


def write_step(worker: Worker, element: tuple[int, int] | Archives) -> list[tuple[int, list[str]]]:
    """Writes a piece; returns its shard and the names of its parts."""
    shard, piece, *units = element
    if units:
        report = write_archives(worker.work_folder, shard, piece, units[0], worker.video)
    else:
        report = write_piece(worker.work_folder, shard, piece, worker.video)
    return [(shard, sorted(report.parts))]


def join_step(worker: Worker, element: tuple[int, int], parts: frozenset[str]) -> list[int]:
    """Joins the pieces of a shard; returns the shard."""
    shard, num_pieces = element
    join_shard(worker.work_folder, shard, num_pieces, parts)
    return [shard]
