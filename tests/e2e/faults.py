"""Seeded trials: a study in a bucket that misbehaves, or killed, at a moment drawn for each.

    python -m tests.e2e.faults --count 60 --seed 1

A trial is a fault, a phase of the study (or all of it), a kind of request, and a moment: which of
the requests of that kind, of those that the phase makes without a fault. Of a phase the other
phases' artifacts are there already, so that what it costs is one start and a step or two. It is
survived if the command ends well (after a kill: the next one does) and the bucket then holds the
artifacts of a run without faults, to the byte.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import random
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from infra.prefect.server import server_of
from infra.store.store import Store
from tests.e2e.conftest import PARCEL, SMALLEST, environment
from tests.gcs.faults import ACTIONS, Rule
from tests.gcs.objects import Content
from tests.gcs.server import GCS

BUCKET = "testing"
URI = f"gs://{BUCKET}/studies"
MARK = "PARCEL_TEST_FAMILY"
TIMEOUT = 900.0
"""For a command [s]."""

PHASES: dict[str, Callable[[str, str], bool]] = {
    "data": lambda kind, name: kind in ("corpus", "dataset", "screened", "chance"),
    "given": lambda kind, name: kind in ("files", "start", "tokenizer", "results"),
    "mask codec": lambda kind, name: kind == "mask_codec",
    "stage 1": lambda kind, name: name.startswith("stage1"),
    "evaluation": lambda kind, name: kind in ("predictions", "scores"),
    "transfer": lambda kind, name: name.startswith(("transfer", "evaluate", "score")),
    "all": lambda kind, name: True,
}
"""Phase -> whether it makes a step of a kind and a name."""
TURNS = (
    "data", "mask codec", "given", "stage 1", "data", "evaluation", "given", "transfer", "stage 1",
    "data", "mask codec", "given", "all",
)  # fmt: skip
"""The phases of trials in turn: those that start no worker more often, since they cost less."""
NO_WORKER = ("data", "given")

RULES: dict[str, Mapping[str, object]] = {
    "503 burst": {"action": "answer", "status": 503, "times": 5},
    "429 burst": {"action": "answer", "status": 429, "times": 5},
    "reply lost": {"action": "lose"},
    "reply lost, 503 instead": {"action": "lose_answer", "status": 503},
    "reset": {"action": "reset", "times": 3},
    "torn request": {"action": "reset_request"},
    "short read": {"action": "reset_reply", "verb": "media"},
    "corrupt download": {"action": "corrupt"},
    "corrupt upload": {"action": "corrupt_upload"},
    "stale listing": {"action": "stale", "seconds": 3.0, "times": 3},
    "stall": {"action": "stall", "seconds": 5.0},
    "late reply": {"action": "late", "seconds": 5.0},
    "hang": {"action": "stall", "seconds": 75.0},
}
"""Fault -> what of a rule is not drawn."""

OTHERS = (
    "clock an hour ahead",
    "clock an hour behind",
    "kill -9 of the run",
    "kill -9 of a worker",
)
FAULTS = (*RULES, *OTHERS)

Files = dict[str, bytes]
"""Of a bucket, by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A fault and the moment at which it falls.

    Attributes:
      fault: one of `FAULTS`.
      phase: one of `PHASES`.
      verb: kind of request; "*" for any.
      moment: index, among the requests of that kind, of the one on which the fault falls; for the
        kill of a worker, counted from the time when a worker first has a task.
      of: number of such requests without a fault; for the kill of a worker, a tenth of it.
    """

    fault: str
    phase: str
    verb: str
    moment: int
    of: int

    def __str__(self) -> str:
        return f"{self.fault:24} {self.phase:12} {self.verb:8} {self.moment:4} of {self.of:4}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a trial.

    Attributes:
      fired: how often the fault fell on a request, or a process was killed.
      wrong: what went wrong; "" if the study survived.
      seconds: duration [s].
    """

    fired: int
    wrong: str
    seconds: float


class Trials:
    """Trials of one study, and what they are compared with.

    Args:
      folder: an empty one, for logs and the states of machines.
      start: folder of the checkpoint that the study starts from.
      prefect: environment that names the server that all of them report to.
    """

    def __init__(self, folder: Path, start: Path, prefect: Mapping[str, str]) -> None:
        self._folder, self._prefect = folder, prefect
        self._words = ["run", SMALLEST, f"start={start}", f"tokenizer.path={start}/tokenizer.model"]
        self._compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        self._counts: dict[str, dict[str, int]] = {}
        with self._bucket({}) as gcs:
            self._finish(gcs)
            self.made = files_of(gcs)
        self.expected = artifacts_of(self.made)

    def draw(self, number: int, seed: int) -> Trial:
        """Returns a trial; every fault and every phase comes in its turn, the rest is drawn."""
        dice = random.Random(f"{seed}/{number}")
        fault = FAULTS[number % len(FAULTS)]
        phases = [p for p in TURNS if fault != "kill -9 of a worker" or p not in NO_WORKER]
        phase = phases[number % len(phases)]
        counts = self.counts(phase)
        verb = "*"
        if fault in RULES:
            able = ACTIONS[str(RULES[fault]["action"])]
            verb = str(RULES[fault].get("verb") or dice.choice(sorted(able & set(counts))))
        of = sum(counts.values()) if verb == "*" else counts[verb]
        if fault == "kill -9 of a worker":
            of //= 10  # A step's own are fewer.
        # Not of the very last: how many there are differs a little from run to run.
        moment = dice.randrange(max(1, of * 9 // 10))
        return Trial(fault=fault, phase=phase, verb=verb, moment=moment, of=of)

    def counts(self, phase: str) -> dict[str, int]:
        """Returns the requests of a phase without a fault, by their kind."""
        if phase not in self._counts:
            self._counts[phase] = self._count(phase)
        return self._counts[phase]

    @property
    def totals(self) -> dict[str, int]:
        """Requests of each phase that was drawn so far, without a fault."""
        return {phase: sum(counts.values()) for phase, counts in self._counts.items()}

    def _count(self, phase: str) -> dict[str, int]:
        with self._bucket(self._without(phase)) as gcs:
            self._finish(gcs)
            wrong = difference(self.expected, artifacts_of(files_of(gcs)))
            assert not wrong, wrong
            return {verb: count["requests"] for verb, count in gcs.requests().items()}

    def run(self, trial: Trial) -> Outcome:
        """Runs a trial to its end."""
        began = time.monotonic()
        with self._bucket(self._without(trial.phase)) as gcs:
            try:
                fired = self._under(trial, gcs)
                gcs.faults.clear()
                wrong = difference(self.expected, artifacts_of(files_of(gcs)))
            except RuntimeError as failed:
                fired, wrong = sum(gcs.faults.fired()), str(failed)
        return Outcome(fired=fired, wrong=wrong, seconds=time.monotonic() - began)

    def _under(self, trial: Trial, gcs: GCS) -> int:
        """Runs the study under a fault, and again if it was killed; returns how often it fell."""
        if trial.fault in RULES:
            rule = {"verb": trial.verb, "skip": trial.moment, **RULES[trial.fault]}
            gcs.fail(Rule(**rule))  # pyright: ignore
            self._finish(gcs)
            return sum(gcs.faults.fired())
        with self._begun(gcs) as (process, mark, log):
            if trial.fault == "kill -9 of a worker":
                fired = kill_worker(process, lambda: asked(gcs), trial.moment)
            else:
                while asked(gcs) < trial.moment and process.poll() is None:
                    time.sleep(0.01)
                if trial.fault.startswith("clock"):
                    gcs.skew_s = 3600.0 if trial.fault.endswith("ahead") else -3600.0
                    fired = 1
                else:
                    fired = kill(mark)
            process.wait(TIMEOUT)
        if trial.fault != "kill -9 of the run":
            ended_well(process, log)
            return fired
        self._finish(gcs)  # On another machine: it has nothing but the bucket.
        return fired

    def _finish(self, gcs: GCS) -> None:
        with self._begun(gcs) as (process, _, log):
            process.wait(TIMEOUT)
        ended_well(process, log)

    @contextlib.contextmanager
    def _begun(self, gcs: GCS) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
        """Yields the study under way on a machine of its own, the mark of its family, its log."""
        mark = uuid.uuid4().hex
        state, log = self._folder / f"state-{mark}", self._folder / f"{mark}.log"
        env = environment(state) | gcs.environment | self._compiled
        env |= {"PARCEL_STORE": URI, "PARCEL_STATE": str(state), MARK: mark}
        env |= self._prefect
        with log.open("w") as out:
            process = subprocess.Popen(
                [PARCEL, *self._words], env=env, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            yield process, mark, log
        finally:
            kill(mark)
            process.wait()

    @contextlib.contextmanager
    def _bucket(self, files: Files) -> Iterator[GCS]:
        with GCS() as gcs:
            gcs.bucket(BUCKET)
            for name, data in files.items():
                gcs.store.put(BUCKET, name, Content.of(data))
            yield gcs

    def _without(self, phase: str) -> Files:
        """Returns the files of the finished study but for what a phase makes."""
        gone = set()
        for name, data in self.made.items():
            if "/manifests/" in name:
                manifest = json.loads(data)
                if PHASES[phase](manifest["kind"], manifest["name"]):
                    gone.add(manifest["key"])
        return {
            name: data
            for name, data in self.made.items()
            if not any(key in name for key in gone) and phase != "all"
        }


def files_of(gcs: GCS) -> Files:
    """Returns all that a bucket holds."""
    return {name: found.data for name, found in gcs.store.bucket(BUCKET).objects.items()}


def artifacts_of(files: Files) -> dict[str, tuple[str, dict[str, str]]]:
    """Returns key -> digest of the content, and of each file as it is stored.

    Raises:
      RuntimeError: if a file of a source tree holds other bytes than its name says.
    """
    prefix = URI.removeprefix(f"gs://{BUCKET}/")
    found = {}
    # Whatever is named by its digest must have it: source trees.
    sources = [name for name in files if name.startswith(f"{prefix}/sources/")]
    if other := [s for s in sources if s[-64:] != hashlib.sha256(files[s]).hexdigest()]:
        raise RuntimeError(f"other bytes than their names say: {other}")
    for name, data in files.items():
        if name.startswith(f"{prefix}/manifests/"):
            manifest = json.loads(data)
            folder = f"{prefix}/artifacts/{manifest['key']}/{manifest['folder']}"
            stored = {
                path: hashlib.sha256(files.get(f"{folder}/{path}", b"not there")).hexdigest()
                for path in manifest["files"]
                if not path.startswith("latency.")  # Measured, and other each time.
            }
            found[manifest["key"]] = manifest["content"], stored
    return found


def difference(
    expected: Mapping[str, tuple[str, dict[str, str]]],
    found: Mapping[str, tuple[str, dict[str, str]]],
) -> str:
    """Returns how two sets of artifacts differ; "" where they do not."""
    if expected.keys() != found.keys():
        return f"other artifacts: {sorted(expected.keys() ^ found.keys())}"
    differ = [
        key
        for key, (content, stored) in expected.items()
        if found[key][0] != content
        # A checkpoint's own files hold times; its digest is of its arrays.
        or (found[key][1] != stored and not key.startswith("checkpoint"))
    ]
    return f"other bytes: {differ}" if differ else ""


def asked(gcs: GCS) -> int:
    """Returns how many requests came so far."""
    return sum(count["requests"] for count in gcs.requests().values())


def ended_well(process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises `RuntimeError` with a command's last words if it failed."""
    if process.returncode:
        said = [line for line in log.read_text().splitlines() if "failed" in line or ":" in line]
        raise RuntimeError(f"exit code {process.returncode}: {' / '.join(said[-3:])[:600]}; {log}")


def kill(mark: str) -> int:
    """Kills all of a family; returns how many were killed."""
    killed = 0
    while found := family(mark):
        for member in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
                killed += 1
        time.sleep(0.05)
    return killed


def kill_worker(process: subprocess.Popen[bytes], asked: Callable[[], int], moment: int) -> int:
    """Kills a worker of a run that many requests after the first began; returns whether it did."""
    began = None
    while process.poll() is None:
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [p for p in psutil.Process(process.pid).children(True) if is_at_work(p)]
        if found and began is None:
            began = asked()
        if found and began is not None and asked() >= began + moment:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[0].kill()
                return 1
        time.sleep(0.05)
    return 0


def family(mark: str) -> list[psutil.Process]:
    """Every process begun by a run, wherever its parent went: they inherit its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def is_at_work(process: psutil.Process) -> bool:
    """Returns whether a process is a Ray worker with a task."""
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return words.startswith("ray::") and not words.startswith("ray::IDLE")
    return False


def checkpoint_to_start_from(folder: Path) -> Path:
    """Trains the smallest study's Stage 1 in a store of its own, and returns its checkpoint."""
    env = environment(folder / "store")
    subprocess.run([PARCEL, "train", SMALLEST], env=env, check=True, stdout=subprocess.DEVNULL)
    found = Store(folder / "store").artifacts("checkpoint")
    return next(a.path for a in found if a.manifest.name.startswith("stage1"))


def main() -> int:
    """Runs the trials that the command line says; returns 1 if one was not survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--lanes", type=int, default=2, help="trials at a time")
    parser.add_argument("--folder", type=Path, help="for logs and states, kept; none is temporary")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        start = checkpoint_to_start_from(folder)
        server = stack.enter_context(server_of(folder / "server"))
        named = {"PREFECT_API_URL": server.api, "PREFECT_API_AUTH_STRING": server.auth}
        trials = Trials(folder, start, named)
        numbers = range(given.first, given.first + given.count)
        drawn = [trials.draw(number, given.seed) for number in numbers]
        print(f"requests without a fault: {trials.totals}", flush=True)
        survived = fell = 0
        with ThreadPoolExecutor(given.lanes) as pool:
            outcomes = pool.map(trials.run, drawn)
            for number, trial, came in zip(numbers, drawn, outcomes, strict=True):
                survived += not came.wrong
                fell += bool(came.fired)
                end = came.wrong or "survived"
                print(
                    f"{number:3} {trial} fell {came.fired:2}, {came.seconds:4.0f} s: {end}",
                    flush=True,
                )
        print(f"{survived} of {given.count} survived; the fault fell in {fell} of them")
    return int(survived < given.count)


if __name__ == "__main__":
    raise SystemExit(main())
