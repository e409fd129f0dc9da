"""Makes a step, or its beginning, under the code of another source tree, to compare the two."""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.steps import remake_child
from infra.source_code import USER_CODE
from infra.store.manifest import Recipe
from infra.store.sources import write_tree
from infra.store.store import Artifact, Store


class RemakeError(RuntimeError):
    """A step could not be made under a source tree."""


def step_loss_lines(
    store: Store, recipe: Recipe, tree: Mapping[str, bytes], units: int
) -> tuple[str, ...]:
    """Makes a step, or the beginning of a training, with the code of a tree; keeps nothing of it.

    Args:
      store: the store that holds the inputs.
      recipe: the step to make.
      tree: path below the checkout -> bytes of all its sources.
      units: number of updates after which a training is stopped; other steps are made whole.

    Returns:
      Lines to compare: one per reported loss, in full precision, and one with the content digest if
      the step was finished.

    Raises:
      ReplayError: if the step fails, with the last line that its process wrote.
    """
    # A training is stopped at the first report after `units` updates: leaving this block ends it.
    with _start_child(["losses", store.uri], tree, recipe) as (child, errors):
        lines: list[str] = []
        for report in _child_lines(child):
            if "content" in report:
                return *lines, f"contents {report['content']}"
            if not math.isnan(report["loss"]):
                lines.append(f"loss {report['loss']!r} after {report['done']} updates")
                if report["done"] >= units:
                    return tuple(lines)
        raise _child_error(child, errors)


def remake_step(
    store: Store,
    recipe: Recipe,
    tree: Mapping[str, bytes],
    context: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Artifact:
    """Makes a step with the code of a tree, its own worker included, and commits it to a store.

    Args:
      store: the store that holds the inputs, and will hold the artifact.
      recipe: the step to make.
      tree: path below the checkout -> bytes of all its sources.
      context: context for the manifest, as `worker.make` takes it.
      environment: environment variables of the process that makes it.

    Raises:
      ReplayError: if the step fails, or its process does.
    """
    words = ["remake", store.uri, json.dumps(dict(context))]
    with _start_child(words, tree, recipe, environment) as (child, errors):
        for report in _child_lines(child):
            if report["error"]:
                raise RemakeError(report["error"])
            return store.get(report["key"])
        raise _child_error(child, errors)


@contextlib.contextmanager
def _start_child(
    words: Sequence[str],
    tree: Mapping[str, bytes],
    recipe: Recipe,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Starts a process that imports from a source tree, sends it a recipe; yields it and its log.

    Args:
      words: arguments of `remake_child`; the path of a temporary folder is added to them.
      tree: path below the checkout -> bytes.
      recipe: recipe that it reads from its standard input.
      environment: environment variables of the process; None takes those of this one.
    """
    # Its own process, since modules of two trees have the same names, and Python has room for one.
    #
    #   <temporary>/tree/          the sources, first on the module path
    #   <temporary>/tree/own/      the user's own code
    #   <temporary>/errors.txt     what it wrote; the last line is the error
    with tempfile.TemporaryDirectory(prefix="parcel-replay-") as temporary:
        folder = Path(temporary)
        write_tree(tree, folder / "tree")
        errors = folder / "errors.txt"
        with errors.open("wb") as heard:
            # -P keeps the child's own folder, today's `flows/steps`, off the module path.
            child = subprocess.Popen(
                [sys.executable, "-P", remake_child.__file__, *words, str(folder)],
                env={
                    **(os.environ if environment is None else environment),
                    "PYTHONPATH": f"{folder}/tree:{folder}/tree/{USER_CODE}",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=heard,
            )
        try:
            assert child.stdin is not None
            # Plain values: the tree may know other types, or have them elsewhere.
            child.stdin.write(json.dumps(recipe, default=_recipe_dataclass_fields).encode())
            child.stdin.close()
            child.stdin = None  # `communicate` would flush it again.
            yield child, errors
        finally:
            child.kill()
            child.communicate()


def _recipe_dataclass_fields(value: Any) -> dict[str, Any]:
    """Returns all fields of a dataclass, those that are no identity too: they may round."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _child_lines(child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    yield from map(json.loads, child.stdout)


def _child_error(child: subprocess.Popen[bytes], errors: Path) -> RemakeError:
    wrote = errors.read_text(errors="replace").strip().splitlines()
    return RemakeError(wrote[-1] if wrote else f"its process ended with code {child.wait()}")
