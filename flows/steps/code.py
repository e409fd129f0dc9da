"""The modules of a step's code: all that its function can reach, but for those that run every step.

    flows.steps.kinds.scores ─▶ model.eval.score ─▶ …      part of the code of scores
                             └▶ flows.steps.kind           runs every step, decides no bytes

`flows.steps.registry` adds what the step's config names.
"""

from collections.abc import Iterable

from infra.source_code import Tree

_RUN_EVERY_STEP = (
    "flows.steps.kind",
    "flows.steps.user_code",
    "flows.steps.registry",
    "flows.steps.worker",
)


def reach(tree: Tree, modules: Iterable[str], *, stop: Iterable[str] = ()) -> dict[str, str]:
    """Returns module -> digest for every module of a step's code; see `Tree.reach`.

    Args:
      tree: the sources.
      modules: the modules to start from, such as that of a kind of step.
      stop: modules that are not entered unless the user's own code imports them.
    """
    return tree.reach(modules, stop=stop, outside=_RUN_EVERY_STEP)
