"""The nodes of a run as Prefect tasks: rows, retries, and how each one ended."""

import contextvars
import dataclasses
import queue
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from prefect import allow_failure, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from flows.graph.nodes import GraphNode
from flows.run.limits import NodeHeldError
from flows.run.node_work import Work
from flows.run.run_order import RunOrder
from flows.run.session import RunSession
from infra.errors import one_line_message, redact_error
from infra.prefect import journal
from infra.prefect.rows import end_state
from infra.processes.signals import wait_if_stopping
from infra.ray.errors import RayWorkerLostError

_MAX_REUSED_ROWS = 200
"""Up to this many reused nodes get a row each; more of them share one row."""


class NodeTasks:
    """Runs nodes as Prefect tasks; the session then has their artifacts, or why there are none.

    A node that lacks an input is not run; nodes that do not depend on it continue.

    Args:
      session: state of the run.
      work: finds or makes their artifacts.
    """

    def __init__(self, session: RunSession, work: Work) -> None:
        self._session, self._work = session, work
        self._nodes = {node.name: node for node in session.graph.nodes}

        # Bound, so that its only parameter is a name: Prefect looks for states in what it is given.
        self._task = task(
            name="step",
            task_run_name="{name}",
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=session.retries,
            retry_delay_seconds=session.retry_after,
            retry_condition_fn=_is_lost_worker,
        )(self._make_and_report)

    def run(self, *, on_workers: int, in_process: int) -> None:
        """Runs all nodes, in threads; returns when all have ended, however they did.

        Args:
          on_workers: most nodes in flight at a time of those that run on workers.
          in_process: most nodes in flight at a time of those that run in this process.
        """
        # The way of a node; a failed one goes the same way, so its readers begin, find their input
        # missing, and fail in turn:
        #
        #   waits for what it reads ─▶ ready (`order`) ─▶ in flight (the pool) ─▶ ended (a queue)
        #             ▲                                                               │
        #             └──────────────── `order.end` frees its readers ◀───────────────┘
        #
        # Only this thread touches `order` and `states`; the pool's threads only put into `ended`.
        session, states = self._session, dict[GraphNode, State[Any]]()
        done = self._share_row()
        order = RunOrder(
            session.graph,
            expected=session.expected,
            on_workers=on_workers,
            in_process=in_process,
            done=done,
            priority=session.priority,
        )
        ended: queue.SimpleQueue[tuple[GraphNode, Future[State[Any]]]] = queue.SimpleQueue()
        pool = ThreadPoolExecutor(on_workers + in_process, thread_name_prefix="node")
        try:
            while order.is_active():
                for node in order.begin():
                    # The arrows of the run's picture. Prefect would not begin a task whose input
                    # was not run; ours begins, and says so itself.
                    reads = [states[n] for n in session.graph.upstream[node] if n in states]
                    inputs = [allow_failure(s) for s in reads if s.is_completed() or s.is_failed()]
                    # A copy of this context, so that the task belongs to the flow run.
                    future = pool.submit(
                        contextvars.copy_context().run,
                        self._task,
                        node.name,
                        wait_for=inputs,
                        return_state=True,
                    )
                    future.add_done_callback(lambda end, node=node: ended.put((node, end)))
                node, future = ended.get()
                # A failure is noted where it happens, in the task; here only one of Prefect itself.
                if (error := future.exception()) is not None:
                    session.fail(node, one_line_message(error))
                else:
                    state = states[node] = future.result()
                    if state.is_failed() or state.is_crashed():
                        session.fail(node, state.message or "")
                order.end(node)
        finally:
            # Without waiting: here either all have ended, or the run is being ended.
            pool.shutdown(wait=False, cancel_futures=True)

    def _share_row(self) -> list[GraphNode]:
        """Has reused nodes share one row, if they are many; returns the nodes that it is for."""
        session, shared_row = self._session, list[GraphNode]()
        if len(session.reused) <= _MAX_REUSED_ROWS:
            return shared_row
        # In the graph's order: a node's inputs are found before it. A node that is no longer found
        # (damaged or collected meanwhile) runs like the others.
        shared_row += (
            node for node in session.graph.nodes if node in session.reused and self._work.find(node)
        )

        @task(task_run_name="{count} reused", cache_policy=NO_CACHE, persist_result=False)
        def reused_steps(count: int) -> State[Any]:
            return Completed(message="\n".join(node.name for node in shared_row))

        for node in shared_row:
            session.forecast.end(node)
        session.display.reuse(len(shared_row))
        session.traces.journal.reused(
            {node.name: self._work.describe(node, "reused")[0] for node in shared_row}
        )
        reused_steps(len(shared_row))
        return shared_row

    def _make_and_report(self, name: str) -> State[Any]:
        """Makes or finds a node's artifacts, as its Prefect task; returns the state it ends in.

        Raises:
          RayWorkerLostError: if its worker died and Prefect is to try again.
        """
        session, node, attempt = self._session, self._nodes[name], task_run.run_count
        # Journal before UI: what a killed process was doing must be on disk, not on a server.
        began = journal.JournalNode(name=node.name, started=journal.now())
        session.traces.journal.started(node.name, task_run.id)
        outcome: journal.NodeOutcome
        detail, took = "", None
        try:
            outcome = self._work.make(node)
        except NodeHeldError as error:
            outcome, detail = "not run", str(error)
            session.holds[node] = detail
        except BaseException as error:
            # What a signal ends is no failure: the process is about to exit, with its workers.
            wait_if_stopping()
            outcome, detail = "failed", one_line_message(error)
            if isinstance(error, RayWorkerLostError) and attempt <= session.retries:
                session.display.finish(node.name, outcome="again", detail=f": {detail}")
                redact_error(error)  # Prefect sends its message with the state of the row.
                raise
            session.fail(node, detail)
            session.forecast.end(node)
        finally:
            session.progress.end(node.name)
        # The unused part of its estimate is free for other nodes.
        session.admission.leave(node)
        if outcome == "made" or outcome == "reused":
            detail, took = self._work.describe(node, outcome)
            session.forecast.end(node, took if outcome == "made" else 0.0)
            session.display.finish(node.name, outcome=outcome, seconds=took, detail=detail)
        else:
            session.display.finish(node.name, outcome=outcome, detail=f": {detail}")
        session.traces.journal.ended(node.name, outcome, detail)
        end = dataclasses.replace(
            began, outcome=outcome, detail=detail, ended=journal.now(), took=took
        )
        if outcome != "reused":
            session.log(f"{node.name}: {end.summary}", outcome == "failed")
        return end_state(end)


def _is_lost_worker(task: object, run: object, state: State[Any]) -> bool:
    """Only a lost worker is worth another try: other errors would come again."""
    return isinstance(state.data, RayWorkerLostError)
