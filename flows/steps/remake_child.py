"""Makes a step with the worker of whatever source tree is on the path; run as a file.

    PYTHONPATH=FOLDER/tree:FOLDER/tree/own python -P remake_child.py STORE CONTEXT < recipe

Like `replay_child`, it uses only names that every source tree has.
"""

import json
import os
import pickle
import sys


def main() -> None:
    """Commits the step's artifact to the store; writes a JSON line with its key, or the error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print must not mix with the JSON.
    from flows.steps.worker import StepOutcome, make

    recipe = pickle.load(sys.stdin.buffer)  # Trusted: the parent process wrote it.
    for item in make(sys.argv[1], [recipe], json.loads(sys.argv[2])):
        if isinstance(item, StepOutcome):
            print(json.dumps({"key": recipe.key, "error": item.error}), file=output, flush=True)
    # A normal exit may hang: it waits for JAX's threads.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
