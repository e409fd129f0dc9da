"""Makes steps in a Ray Job, and reports through the store, so that nobody need be connected.

<store>/jobs/<job>/work-<sha256>   what to make
                   report.json     how far it is, and how each step ended
                   run-<id>        a run that waits for it

    python -m flows.steps.job STORE JOB SHA256 EARLIER…

The work is pickled, since configs are typed values. The store is not trusted with it: the job's
command has its digest. Of two runs that submit a job at the same time Ray takes one, whose work the
other one's must not replace: they differ, because each names its own run.
"""

import dataclasses
import hashlib
import json
import os
import pickle
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flows.steps.worker import StepOutcome, make
from infra.progress import Progress
from infra.store.backend import StoreBackend
from infra.store.manifest import Recipe
from infra.store.store import JOBS, Store

_REPORT_EVERY = 3.0
"""Time between two reports of progress [s]."""
_WAITING = "run-"
"""Beginning of a file's name: the rest is a run that waits for the job."""


@dataclasses.dataclass(kw_only=True)
class JobReport:
    """Progress of a job, and the outcomes of its steps so far.

    Attributes:
      step, progress: name and progress of the step under way; "" and None before the first.
      ends: how each step ended.
      is_ended: whether nothing more will come.
    """

    step: str = ""
    progress: Progress | None = None
    ends: list[StepOutcome] = dataclasses.field(default_factory=list)
    is_ended: bool = False

    def write(self, files: StoreBackend, job: str) -> None:
        """Writes the report to the store."""
        text = json.dumps(dataclasses.asdict(self))
        files.put(f"{JOBS}/{job}/report.json", text.encode())

    @classmethod
    def read(cls, files: StoreBackend, job: str) -> "JobReport":
        """Returns the report of a job; an empty one if it has not written any."""
        try:
            raw: dict[str, Any] = json.loads(files.read(f"{JOBS}/{job}/report.json"))
        except FileNotFoundError:
            return cls()
        progress = Progress(**raw["progress"]) if raw["progress"] else None
        ends = [StepOutcome(**end) for end in raw["ends"]]
        return cls(step=raw["step"], progress=progress, ends=ends, is_ended=raw["is_ended"])


def command(
    store: Store,
    job: str,
    earlier: Sequence[str],
    recipes: Sequence[Recipe],
    context: Mapping[str, Any],
) -> str:
    """Stores the work of a job, and returns the command that does it.

    Args:
      store: the store for the work and for the artifacts.
      job: name of the job.
      earlier: names of attempts at the same work that have ended; nobody waits for their leases.
      recipes: steps to make; none of them reads another one's artifact.
      context: run ids of the orchestrator, for the manifests.
    """
    work = pickle.dumps((tuple(recipes), dict(context)))
    digest = hashlib.sha256(work).hexdigest()
    store.volatile.put(_job_work_name(job, digest), work)
    return shlex.join(["python", "-m", "flows.steps.job", store.uri, job, digest, *earlier])


def _job_work_name(job: str, digest: str) -> str:
    return f"{JOBS}/{job}/work-{digest}"


def add_waiting_run(files: StoreBackend, job: str, run: str) -> None:
    """Notes that a run waits for a job."""
    files.put(f"{JOBS}/{job}/{_WAITING}{run}", run.encode())


def remove_waiting_run(files: StoreBackend, job: str, run: str) -> None:
    """Notes that a run does not wait for a job any more."""
    files.compare_and_delete(f"{JOBS}/{job}/{_WAITING}{run}", run.encode())


def waiting_runs(files: StoreBackend, job: str) -> set[str]:
    """Returns the runs that wait for a job, those that died while waiting included."""
    names = files.listing(f"{JOBS}/{job}")
    return {name.removeprefix(_WAITING) for name in names if name.startswith(_WAITING)}


def main() -> None:
    """Makes the steps; exits with 1 if one failed."""
    # An exception releases the leases on its way out, so that the next holder need not wait.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    uri, job, digest, *earlier = sys.argv[1:]
    store = Store(uri)
    work = store.volatile.read(_job_work_name(job, digest))
    if hashlib.sha256(work).hexdigest() != digest:
        sys.exit(f"the work of {job} in {uri} is not what was submitted.")
    recipes, context = pickle.loads(work)
    report, written = JobReport(), 0.0
    for item in make(uri, recipes, context, job, tuple(earlier), True):
        if isinstance(item, StepOutcome):
            report.ends.append(item)
            print(f"{item.name}: {item.traceback or item.error or 'done'}", flush=True)
        else:
            (step, progress), before = item, report.progress
            # Of units that are done the newest number is enough, a little later; what has begun,
            # compiles or was lost is told at once.
            is_count = before and step == report.step and progress.done > before.done
            report.step, report.progress = step, progress
            if is_count and not progress.happened and time.monotonic() - written < _REPORT_EVERY:
                continue
        report.write(store.volatile, job)
        written = time.monotonic()
    report.is_ended = True
    report.write(store.volatile, job)
    # A normal exit may hang: it waits for threads of JAX and gRPC.
    sys.stdout.flush()
    os._exit(1 if any(end.error for end in report.ends) else 0)


if __name__ == "__main__":
    main()
