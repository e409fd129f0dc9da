"""Makes a step with the worker of whatever source tree is on the path; run as a file.

    PYTHONPATH=FOLDER/tree:FOLDER/tree/own python -P remake_child.py STORE CONTEXT < recipe

As `replay_child`, it asks of the tree only what all of them have.
"""

import json
import os
import pickle
import sys


def main() -> None:
    """Commits the step's artifact to the store; writes a JSON line with its key, or the error."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print what they like.
    from flows.steps.worker import Made, make

    recipe = pickle.load(sys.stdin.buffer)  # From our parent, and nobody else.
    for item in make(sys.argv[1], [recipe], json.loads(sys.argv[2])):
        if isinstance(item, Made):
            print(json.dumps({"key": recipe.key, "error": item.error}), file=told, flush=True)
    # JAX has threads that some exits wait for.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
