"""Makes a step under whatever source tree is on the path; run as a file by `flows.steps.replay`.

    PYTHONPATH=FOLDER/tree:FOLDER/tree/own python -P replay_child.py STORE FOLDER < recipe

This file is always today's, while the tree may be old: it uses only names that every tree has.
"""

import json
import os
import pickle
import sys
from pathlib import Path


def main() -> None:
    """Writes a JSON line per progress, and one with the content digest at the end."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print must not mix with the JSON.
    store, folder = sys.argv[1], Path(sys.argv[2])
    from flows.steps.kind import StepContext
    from flows.steps.registry import KINDS
    from infra.store.digest import file_sha256, listing_sha256
    from infra.store.store import Store

    # By hand what a worker does, without lease, attempt and commit: an old tree's worker may do
    # these differently, and nothing of this run is kept.
    recipe = pickle.load(sys.stdin.buffer)  # Trusted: the parent process wrote it.
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir()
    scratch.mkdir()
    work = StepContext(recipe, Store(store), out, scratch)
    for progress in KINDS[recipe.kind].make(work):
        print(json.dumps({"done": progress.done, "loss": progress.loss}), file=output, flush=True)
    # The digest that a commit would have stated: the step's own, else that of its files.
    files = {p.relative_to(out).as_posix(): p for p in out.rglob("*") if p.is_file()}
    listing = listing_sha256({name: file_sha256(path) for name, path in files.items()})
    print(json.dumps({"content": work.content or listing}), file=output, flush=True)


if __name__ == "__main__":
    main()
