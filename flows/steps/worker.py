"""Makes artifacts, in whatever process: hold the step, run its function, commit."""

import dataclasses
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.steps.kind import Work
from infra.progress import Progress
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """The end of one step.

    Attributes:
      name: of the step.
      reused: whether the artifact was there already.
      error: why there is no artifact; "" if there is one.
      traceback: where that happened.
    """

    name: str
    reused: bool = False
    error: str = ""
    traceback: str = ""


class OtherCodeError(RuntimeError):
    """This process would make a step with other code than was asked for."""


def make(
    store: str, recipes: Sequence[Recipe], context: Mapping[str, Any]
) -> Iterator[tuple[str, Progress] | Made]:
    """Yields (step, its progress) and the end of each step, one step after the other.

    An artifact already committed is not made again, and a step that fails leaves the others alone:
    a checkpoint is loaded once for all its evaluations, which have nothing to do with each other.

    Args:
      store: the store's folder.
      recipes: what to make; none of them reads another one's artifact.
      context: run ids of the orchestrator, for the manifests.
    """
    opened = Store(store)
    for recipe in recipes:
        try:
            reused = yield from _make(opened, recipe, context)
        except Exception as error:  # As text: not every exception survives the way back.
            reason = " ".join(str(error).split()) or type(error).__name__
            yield Made(name=recipe.name, error=reason, traceback=traceback.format_exc())
        else:
            yield Made(name=recipe.name, reused=reused)


def _make(store: Store, recipe: Recipe, context: Mapping[str, Any]) -> Any:
    from flows.steps.registry import KINDS

    _check_code(store, recipe)
    with store.lock(recipe.key) as scratch:
        if store.find(recipe.key):
            return True
        attempt = Attempt(store, recipe)
        work = Work(recipe, store, attempt.path, scratch)
        for progress in KINDS[recipe.kind].make(work):
            yield recipe.name, progress
        attempt.counts, attempt.content = work.counts, work.content
        attempt.commit(context)
        store.clear_scratch(recipe.key)
        return False


def _check_code(store: Store, recipe: Recipe) -> None:
    """Refuses to make a step with other code: its key, and its name in a table, would lie."""
    from flows.steps.code import Tree, checkout
    from flows.steps.registry import code_digest, code_of

    if recipe.code == code_digest(recipe.kind, recipe.config):
        return
    asked = code_of(recipe.kind, recipe.config, Tree(store.source(recipe.source)))
    here = code_of(recipe.kind, recipe.config, checkout())
    differ = sorted(name for name in asked | here if asked.get(name) != here.get(name))
    raise OtherCodeError(
        f"step {recipe.name!r} must be made with code {recipe.code[:8]}, but this process has "
        f"other code in {', '.join(differ) or 'no module it can name'}; start it from the same "
        f"checkout."
    )
