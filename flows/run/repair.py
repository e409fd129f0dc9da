"""Makes again what a node reads if its files are damaged."""

from collections.abc import Callable, Set

from flows.graph.nodes import GraphNode
from flows.run.session import RunSession, StepFailedError
from flows.steps.kind import Step


def repair_inputs(
    session: RunSession,
    node: GraphNode,
    error: StepFailedError,
    repaired: Set[Step],
    make: Callable[[GraphNode], object],
) -> None:
    """Makes what a node reads and is damaged again, once, so that the node may be tried again.

    Args:
      session: state of the run.
      node: the node, which failed.
      error: why.
      repaired: steps that had been made again before it was tried.
      make: function that makes a node.

    Raises:
      StepFailedError: `error`, if the node would fail for it again.
    """
    # Whoever reads a damaged file sets it aside, and fails: from then on the store has no such
    # artifact. What it was made from may be damaged, too:
    #
    #   transfer  fails: model.json of Stage 1 is damaged
    #     stage1  is made again, fails: the tokenizer is damaged
    #       tokenizer  is made again
    #     stage1  is made again
    #   transfer  runs again
    reads = {read for step in node.steps for read in step.inputs.values()}
    with session.repair_lock:  # Another reader of the same may be making it again.
        lost = {step for step in reads if _is_lost(session, step)}
        if not lost and session.repaired & reads == repaired & reads:
            raise error
        # Once is enough: a disk may spoil all that it holds. What this node makes itself may still
        # wait for an input to be made again.
        if (lost and lost <= session.repaired) or (lost & session.repaired) - {*node.steps}:
            raise error
        with session.lock:
            expected = session.expected_keys.items()
            session.expected_keys = {s: k for s, k in expected if s not in lost}
        session.display.print_event(node.name, str(error))
        session.log(f"{node.name}: {error}", True)
        for maker in {session.graph.owner[step] for step in lost} - {node}:
            try:
                make(maker)
            finally:
                session.progress.end(maker.name)
                session.admission.leave(maker)
                session.display.finish(maker.name, outcome="repaired")
        session.repaired.update(lost)


def _is_lost(session: RunSession, step: Step) -> bool:
    """Whether the store no longer has the artifact that was found for a step."""
    artifact = session.artifacts.get(step)
    if artifact is None:
        return False
    return not (session.store.find(artifact.key) or session.store.find_pruned(artifact.key))
