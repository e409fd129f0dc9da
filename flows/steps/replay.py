"""Makes the beginning of a step under the code of another source tree, to compare the two."""

import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flows.steps import replay_child
from flows.steps.code import OWN
from infra.store.manifest import Recipe
from infra.store.sources import lay_out
from infra.store.store import Store


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
    with tempfile.TemporaryDirectory(prefix="parcel-replay-") as temporary:
        folder = Path(temporary)
        lay_out(tree, folder / "tree")
        errors = folder / "errors.txt"
        with errors.open("wb") as heard:
            # -P: not the child's own folder but the tree is where modules are looked for.
            child = subprocess.Popen(
                [sys.executable, "-P", replay_child.__file__, store.uri, str(folder)],
                env={**os.environ, "PYTHONPATH": f"{folder}/tree:{folder}/tree/{OWN}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=heard,
            )
        try:
            return _told(child, recipe, units, errors)
        finally:
            child.kill()
            child.communicate()


def _told(
    child: subprocess.Popen[bytes], recipe: Recipe, units: int, errors: Path
) -> tuple[str, ...]:
    assert child.stdin is not None
    assert child.stdout is not None
    pickle.dump(recipe, child.stdin)
    child.stdin.close()
    child.stdin = None  # `communicate` would flush it again.
    lines: list[str] = []
    for raw in child.stdout:
        told = json.loads(raw)
        if "content" in told:
            return *lines, f"contents {told['content']}"
        if not math.isnan(told["loss"]):
            lines.append(f"loss {told['loss']!r} after {told['done']} updates")
            if told["done"] >= units:
                return tuple(lines)
    wrote = errors.read_text(errors="replace").strip().splitlines()
    raise ReplayError(wrote[-1] if wrote else f"its process ended with code {child.wait()}")
