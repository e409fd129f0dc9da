"""Shows how far a job of a node is: in the terminal, on the UI's pages, in the log, in a file."""

import time

from prefect.runtime import task_run

from flows.graph.eta import JobClock
from flows.graph.nodes import GraphNode, StepJob
from flows.run import run_log
from flows.run.session import RunSession
from flows.steps.workers import AlreadyRunning
from infra.prefect.page_queue import UIPage
from infra.prefect.progress import NodeProgress
from infra.progress import COMPILING, Progress

_PAGE_AFTER = 5.0
"""Interval at which a running node refreshes its progress in the UI, first after as long [s]."""


class JobProgress:
    """Shows how far a job of a node is.

    Args:
      session: state of the run.
      node: the node.
      job: the job.
      key: key of its first missing step, after which its page in the UI is named.
    """

    def __init__(self, session: RunSession, node: GraphNode, job: StepJob, key: str) -> None:
        self._session, self._node, self._job, self._key = session, node, job, key
        self._clock: JobClock | None = None
        self._began, self._devices = 0.0, ""
        self._last: Progress | None = None
        self._page_written = self._logged = time.monotonic()
        # A job for a worker may wait for one that is free: it begins with its first progress, which
        # comes before it imports or compiles anything. Others begin now.
        if not job.cpus or job.pieces > 1:
            self._report_job_beginning()

    def show(self, item: tuple[str, Progress] | AlreadyRunning) -> None:
        """Shows what a worker told: the progress of a step, or that the work is under way."""
        session, node = self._session, self._node
        if isinstance(item, AlreadyRunning):
            detail = f": it was under way already, as {item.by}"
            session.display.finish(node.name, outcome="joined", detail=detail)
            return
        name, progress = item
        clock = self._clock or self._report_job_beginning()
        if self._job.cpus and not self._devices:
            self._devices = session.workers.describe_devices(self._job.cpus, self._job.gpus)
        if progress != self._last:  # The same report may arrive several times.
            if progress.happened:
                session.display.print_event(node.name, progress.note)
                session.log(f"{node.name}: {progress.note}", True)
            if progress.note == COMPILING:
                session.log(f"{name}: {COMPILING}", False)
        self._last = progress
        seconds_left = clock.seconds_left(name, progress)
        session.display.update(node.name, progress, seconds_left)
        session.progress.update(
            node.name,
            NodeProgress(
                step=name,
                done=progress.done,
                total=progress.total,
                note=progress.note,
                devices=self._devices,
                seconds_left=seconds_left,
                began=self._began,
                written=time.time(),
                key=self._key,
            ),
        )
        self._show_on_page(name, progress)

    def _report_job_beginning(self) -> JobClock:
        """Reports that the job has begun; returns the clock by which its time left is estimated."""
        session, node = self._session, self._node
        missing = [step for step in node.steps if step not in session.artifacts]
        expected = session.expected.of_steps(missing)
        if node not in session.begun:
            session.begun.add(node)
            session.log(run_log.beginning_line(node, missing, expected), False)
            session.display.begin(node.name, expected, run_log.describe_work(missing))
        self._clock, self._began = JobClock(expected, is_last=len(missing) == 1), time.time()
        return self._clock

    def _show_on_page(self, name: str, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._page_written < _PAGE_AFTER:
            return
        # Two rhythms: the page every few seconds, in place; a log line every `LINE_EVERY`, since
        # log lines pile up.
        self._page_written = now
        if now - self._logged >= run_log.LINE_EVERY:
            self._logged = now
            self._session.log(run_log.progress_line(name, progress), False)
        self._session.traces.pages.put_progress(
            UIPage(
                key=f"progress-{self._key}",
                text=round(100 * progress.done / max(progress.total, 1), 1),
                description=f"{name} {progress.note}",
                task_run_id=task_run.id,
            )
        )
