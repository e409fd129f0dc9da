"""Makes a step under whatever source tree is on the path; run as a file by `flows.steps.remake`.

    PYTHONPATH=FOLDER/tree:FOLDER/tree/own python -P remake_child.py losses STORE FOLDER < recipe
    PYTHONPATH=FOLDER/tree:FOLDER/tree/own python -P remake_child.py remake STORE CONTEXT < recipe

`losses` makes it by hand and keeps nothing; `remake` has the tree's own worker commit it. This file
is always today's, while the tree may be old: it uses only names that every tree has.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Writes JSON lines on the standard output; see `losses` and `remake`."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print must not mix with the JSON.
    mode, store, last = sys.argv[1:4]
    recipe = _parse_tree_recipe(json.load(sys.stdin))
    for line in (
        losses(recipe, store, Path(last))
        if mode == "losses"
        else remake(recipe, store, json.loads(last))
    ):
        print(json.dumps(line), file=output, flush=True)
    # A normal exit may hang: it waits for JAX's threads.
    sys.stderr.flush()
    os._exit(0)


def losses(recipe: Any, store: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields a line per progress, and one with the content digest at the end."""
    from flows.steps.kind import StepContext
    from flows.steps.registry import KINDS
    from infra.store.digest import file_sha256, listing_sha256
    from infra.store.store import Store

    # By hand what a worker does, without lease, attempt and commit: an old tree's worker may do
    # these differently, and nothing of this run is kept.
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir()
    scratch.mkdir()
    work = StepContext(recipe, Store(store), out, scratch)
    for progress in KINDS[recipe.kind].make(work):
        yield {"done": progress.done, "loss": progress.loss}
    # The digest that a commit would have stated: the step's own, else that of its files.
    files = {p.relative_to(out).as_posix(): p for p in out.rglob("*") if p.is_file()}
    listing = listing_sha256({name: file_sha256(path) for name, path in files.items()})
    yield {"content": work.content or listing}


def remake(recipe: Any, store: str, context: Any) -> Iterator[dict[str, Any]]:
    """Commits the artifact to the store; yields its key, or the error."""
    from flows.steps.worker import StepOutcome, make

    for item in make(store, [recipe], context):
        if isinstance(item, StepOutcome):
            yield {"key": recipe.key, "error": item.error}


def _parse_tree_recipe(plain: dict[str, Any]) -> Any:
    """Returns the tree's own recipe, with a config of the tree's own type."""
    import pydantic

    from flows.steps.registry import KINDS
    from infra.store.manifest import Input, Recipe

    spec: Any = KINDS[plain["kind"]].spec
    inputs = {role: Input(**entry) for role, entry in plain["inputs"].items()}
    config = pydantic.TypeAdapter(spec).validate_python(plain["config"])
    known = {field.name for field in dataclasses.fields(Recipe)}  # An older tree has fewer.
    fields = {name: value for name, value in plain.items() if name in known}
    return Recipe(**{**fields, "inputs": inputs, "config": config})


if __name__ == "__main__":
    main()
