"""Makes a step, or its beginning, under the code of another source tree, to compare the two."""

import contextlib
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.steps import remake_child, replay_child
from flows.steps.code import OWN
from infra.store.manifest import Recipe
from infra.store.sources import lay_out
from infra.store.store import Artifact, Store


class ReplayError(RuntimeError):
    """A step could not be made under a source tree."""


def replay(store: Store, recipe: Recipe, tree: Mapping[str, bytes], units: int) -> tuple[str, ...]:
    """Makes a step, or the beginning of a training, with the code of a tree; keeps nothing of it.

    Args:
      store: where the inputs are.
      recipe: what to make.
      tree: path below the checkout -> bytes of all its sources.
      units: a step that tells of a loss is left after so many updates; others are made whole.

    Returns:
      What can be compared: a line per loss told, in full precision, and one for the contents of a
      step that came to its end.

    Raises:
      ReplayError: if the step fails, with the last line that its process wrote.
    """
    with _child(replay_child.__file__, [store.uri], tree, recipe) as (child, errors):
        lines: list[str] = []
        for told in _lines(child):
            if "content" in told:
                return *lines, f"contents {told['content']}"
            if not math.isnan(told["loss"]):
                lines.append(f"loss {told['loss']!r} after {told['done']} updates")
                if told["done"] >= units:
                    return tuple(lines)
        raise _failed(child, errors)


def remake(
    store: Store,
    recipe: Recipe,
    tree: Mapping[str, bytes],
    context: Mapping[str, Any],
    variables: Mapping[str, str],
) -> Artifact:
    """Makes a step with the code of a tree, its own worker included, and commits it to a store.

    Args:
      store: where the inputs are, and the artifact will be.
      recipe: what to make.
      tree: path below the checkout -> bytes of all its sources.
      context: for the manifest, as `worker.make` takes it.
      variables: of the environment, besides those of this process.

    Raises:
      ReplayError: if the step fails, or its process does.
    """
    words = [store.uri, json.dumps(dict(context))]
    with _child(remake_child.__file__, words, tree, recipe, variables) as (child, errors):
        for told in _lines(child):
            if told["error"]:
                raise ReplayError(told["error"])
            return store.get(told["key"])
        raise _failed(child, errors)


@contextlib.contextmanager
def _child(
    file: str,
    words: Sequence[str],
    tree: Mapping[str, bytes],
    recipe: Recipe,
    variables: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yields a process that has only a source tree, and was sent a recipe; and what it complains.

    Args:
      file: what it runs.
      words: its arguments; a folder of its own follows them.
      tree: path below the checkout -> bytes.
      recipe: what it reads first.
      variables: of its environment, besides those of this process.
    """
    with tempfile.TemporaryDirectory(prefix="parcel-replay-") as temporary:
        folder = Path(temporary)
        lay_out(tree, folder / "tree")
        errors = folder / "errors.txt"
        with errors.open("wb") as heard:
            # -P: not the child's own folder but the tree is where modules are looked for.
            child = subprocess.Popen(
                [sys.executable, "-P", file, *words, str(folder)],
                env={
                    **os.environ,
                    **(variables or {}),
                    "PYTHONPATH": f"{folder}/tree:{folder}/tree/{OWN}",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=heard,
            )
        try:
            assert child.stdin is not None
            pickle.dump(recipe, child.stdin)
            child.stdin.close()
            child.stdin = None  # `communicate` would flush it again.
            yield child, errors
        finally:
            child.kill()
            child.communicate()


def _lines(child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    yield from map(json.loads, child.stdout)


def _failed(child: subprocess.Popen[bytes], errors: Path) -> ReplayError:
    wrote = errors.read_text(errors="replace").strip().splitlines()
    return ReplayError(wrote[-1] if wrote else f"its process ended with code {child.wait()}")
