"""A run of a study, or of the studies of a sweep, within a Prefect flow run."""

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from prefect.context import FlowRunContext
from prefect.states import Cancelled, Completed, Failed

from flows.graph.explain import Explanation, explain_study
from flows.lookup.runs import close_dead_records, stop_run_record
from flows.run.limits import Admission
from flows.run.node_tasks import NodeTasks
from flows.run.node_work import NodeWork
from flows.run.request import RunRequest
from flows.run.result import StudyResult
from flows.run.retry_policy import GIVEN_UP, HoldRule, hold_none, only_failed
from flows.run.session import RunTraces
from flows.run.study_pass import finish_pass, start_pass
from flows.run.trackers import Trackers
from flows.steps.workers import Workers
from infra.errors import one_line_message
from infra.prefect.approval import NotApprovedError
from infra.prefect.ending import journal_of
from infra.prefect.page_queue import PageQueue
from infra.prefect.server import ui_of
from infra.store.store import Store

_WAITING = 64
"""Nodes in flight beyond the workers' capacity, which wait for a worker."""


class Run:
    """A run: it starts the graph of each of its studies, runs it, and finishes with a record.

    A study is one pass. A sweep until decided is many, each drawn from what the last one made.

    Args:
      request: what is asked.
      store: the store of all passes.
      passes: the verdicts on the steps of each study; the next are drawn only if none before them
        failed or was held back, except for steps that were given up. Without passes, the
        request's study is the only one.
      explanation: the verdicts on that study, where the caller has them already.
      hold_rule: function that names the nodes not to begin.
      workers: processes for the steps that use JAX; None takes those that the study names.

    Attributes:
      result: the outcome so far, also where the server is lost before it is told; None before the
        first pass has ended.
    """

    def __init__(
        self,
        request: RunRequest,
        store: Store,
        *,
        passes: Iterable[Explanation] | None = None,
        explanation: Explanation | None = None,
        hold_rule: HoldRule = hold_none,
        workers: Workers | None = None,
    ) -> None:
        self.request, self.store = request, store
        self.result: StudyResult | None = None
        self._passes = self._only_pass() if passes is None else passes
        self._explanation = explanation
        self._hold_rule = hold_rule
        self._given_workers = self._workers = workers
        # With a window, a bound or an order, no node is queued beyond the workers' capacity: a node
        # that has passed the gate should begin at once, and none before those that come first.
        self._queue_length = _WAITING if request.limits.queues else 0

    def execute(self) -> Any:
        """Runs all passes within this process's flow run; returns the state that it ends in."""
        # Within one flow run:
        #
        #   pin, journal ─▶ pass 1: verdicts, run ─▶ pass 2: … ─▶ journal closed ─▶ pin released
        request, store = self.request, self.store
        admission = Admission(request.limits)
        hold_rule = self._hold_rule
        if request.failed:
            rule, line = only_failed(store, request.config.name)
            if rule is None:
                return Completed(message=line)
            print(line, flush=True)
            hold_rule = rule
        context = FlowRunContext.get()
        run_id = str(context.flow_run.id) if context and context.flow_run else ""
        api = os.environ.get("PREFECT_API_URL", "")

        def cancel() -> None:
            if self._workers is not None:
                self._workers.cancel()
            stop_run_record(store, pin.run, "cancelled")

        # The pin encloses all else: its lease shows others that this run is alive (see
        # `infra.prefect.watch`), so it must still be held while the journal is closed.
        with (
            store.pin_run(run_id or uuid.uuid4().hex) as pin,
            journal_of(store.state, run_id, cancel=cancel) as journal,
            PageQueue(run_id) as pages,
            Trackers(request.config.track, store, ui_of(api) if api else "") as trackers,
        ):
            previous_runs = close_dead_records(store)
            traces = RunTraces(
                pin=pin,
                journal=journal,
                pages=pages,
                trackers=trackers,
                previous_runs=previous_runs,
            )
            try:
                # A generator: what comes next is decided only now, with the cells of the last pass.
                for explanation in self._passes:
                    admission.holds = hold_rule(explanation)
                    session = start_pass(
                        explanation,
                        request,
                        store,
                        traces,
                        admission=admission,
                        workers=self._given_workers,
                    )
                    self._workers = session.workers
                    line = explanation.describe_remakes()
                    # A caller that explained the study has printed it.
                    if line and self._explanation is None:
                        print(line, flush=True)
                    with session.display, contextlib.closing(session.workers):
                        NodeTasks(session, NodeWork(session)).run(
                            on_workers=session.workers.capacity + self._queue_length,
                            in_process=explanation.study.compute.prepare_at_once,
                        )
                    result = finish_pass(session, explanation.study)
                    trackers.put_study(result.run)
                    self.result = self.result.followed_by(result) if self.result else result
                    request = dataclasses.replace(request, approve=False)  # Asked for once.
                    # What was given up is a hole in the table: later passes do without it.
                    if result.failed or {*result.holds.values()} - {GIVEN_UP}:
                        break
            except NotApprovedError as error:
                stop_run_record(store, pin.run, "cancelled")
                journal.close("cancelled", str(error))
                return Cancelled(message=str(error))
            except Exception as error:
                stop_run_record(store, pin.run, "ended", one_line_message(error))
                raise
            why = self.result.why if self.result else ""
            journal.close("failed" if why else "completed", why)
        if self.result is None:
            return Completed(message="nothing to run")
        if why:
            return Failed(message=why, data=self.result)
        return Completed(message=self.result.summary, data=self.result)

    def _only_pass(self) -> Iterator[Explanation]:
        request = self.request
        yield self._explanation or explain_study(request.config, self.store, request.until)
