"""Trials: a study, on a disk or in a bucket, under drawn faults, and what must hold afterwards.

Of a trial's phase nothing is there at its start, and all else is, so that it costs one start and a
step or two. It is survived if the command, or after its end the same command once more, makes what
was missing, and then:

- the artifacts, their files and the tables are those of an undisturbed run;
- the history has no violation (see history.py);
- no process is left, no row of the UI hangs, and `parcel lineage verify` finds nothing.
"""

import contextlib
import dataclasses
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.certificate.history import Event, events_of, violations
from tests.certificate.kinds import KINDS, MARK, Fault, Scene, family, kill_family
from tests.certificate.places import (
    Artifacts,
    Disk,
    Files,
    InBucket,
    Place,
    artifacts_of,
    difference,
    in_bucket,
    inputs_of,
)
from tests.certificate.shim import Change, Shim
from tests.e2e.conftest import PARCEL, environment
from tests.processes import command_line

STUDY = str(Path(__file__).with_name("study.yaml"))
TIMEOUT = 1200.0
"""Of a command [s]; on a machine with much other work one took 10 minutes without any fault."""
RUNS = 5
"""How often a command may be tried, the last time without faults."""
GANG = "compute={num_cpus: 2, cpus_per_stage: 2, gpus_per_stage: 0, processes_per_stage: 2}"
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a study.

    Attributes:
      makes: whether it makes a step, of a kind and a name.
      words: the command; of `parcel`.
      same: whether what it makes has the bytes of the whole study's run.
    """

    makes: Callable[[str, str], bool]
    words: tuple[str, ...] = ("run", STUDY)
    same: bool = True


PHASES: Mapping[str, Phase] = {
    "data": Phase(makes=lambda kind, name: kind in ("corpus", "dataset", "screened", "chance")),
    "video": Phase(makes=lambda kind, name: kind == "dataset" and "msvd" in name),
    "mask codec": Phase(makes=lambda kind, name: kind in ("mask_codec", "tokenizer")),
    "stage 1": Phase(makes=lambda kind, name: name.startswith("stage1")),
    "evaluation": Phase(makes=lambda kind, name: kind in ("predictions", "scores", "results")),
    "transfer": Phase(makes=lambda kind, name: "chartqa" in name and kind == "checkpoint"),
    "all": Phase(makes=lambda kind, name: True),
    "sweep": Phase(
        makes=lambda kind, name: False,
        words=("sweep", STUDY, "--benchmarks", "chartqa", "--add-seeds", "1", "--max-seeds", "2"),
        same=False,
    ),
    "gang": Phase(
        makes=lambda kind, name: kind in ("checkpoint", "predictions", "scores", "results"),
        words=("train", STUDY, "intermediary=null", GANG),
        same=False,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """Faults of one study, in one phase of it.

    Attributes:
      number: number of the trial, which with the seed gives all the rest.
      place: "disk" or "bucket".
      phase: one of `PHASES`.
      faults: what strikes.
    """

    number: int
    place: str
    phase: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        kinds = ", ".join(f"{fault.kind} at {fault.share:.2f}" for fault in self.faults)
        return f"{self.number:4} {self.place:6} {self.phase:10} {kinds}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a trial.

    Attributes:
      seen: what was seen of each fault's strike; "" if it did not strike.
      wrong: what went wrong; "" if the study survived.
      lost: seconds beyond those of the phase without a fault [s].
    """

    seen: tuple[str, ...]
    wrong: str
    lost: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A phase without a fault.

    Attributes:
      artifacts: what the store then holds.
      operations: operations on files, as the shim counts them.
      requests: requests to the bucket, by verb; empty on a disk.
      seconds: duration [s].
    """

    artifacts: Artifacts
    operations: int
    requests: Mapping[str, int]
    seconds: float


def draw(
    number: int,
    seed: int,
    kinds: Sequence[str] = tuple(KINDS),
    at: tuple[str, str] = ("", ""),
    beside: Collection[str] = tuple(KINDS),
) -> Trial:
    """Returns a trial: kinds come in turn, on a disk and in a bucket in turn, the rest is drawn.

    Args:
      number: its number.
      seed: with the number, gives all that is drawn.
      kinds: the kinds that come in turn.
      at: a place and a phase, each drawn if it is "".
      beside: the kinds that may strike in the same trial.
    """
    dice = random.Random(f"{seed}/{number}")
    turn, index = divmod(number, len(kinds))
    first = KINDS[kinds[index]]
    place = first.places[(turn + index) % len(first.places)]
    phase = dice.choice(first.phases)
    place, phase = at[0] or place, at[1] or phase
    names = [kinds[index]]
    for _ in range(0 if first.alone else dice.randint(1, 4)):
        groups = {KINDS[name].group for name in names} - {""}
        others = [
            name
            for name, kind in KINDS.items()
            if name in beside
            and not kind.alone
            and place in kind.places
            and phase in kind.phases
            and name not in (*names, "request hung")
            and kind.group not in groups
        ]
        names += dice.sample(others, min(1, len(others)))
    faults = [
        Fault(
            kind=name,
            share=dice.random(),
            seconds=dice.uniform(0.5, 8.0),
            times=dice.randint(1, 5),
            dice=dice.getrandbits(32),
        )
        for name in names
    ]
    return Trial(number=number, place=place, phase=phase, faults=tuple(faults))


class Trials:
    """Trials of the study, and what they are compared with.

    Args:
      folder: an empty one, for stores, logs and the states of machines.
      library: the shim, compiled.
      scheme: of the buckets, one of `SERVERS`.
    """

    def __init__(self, folder: Path, library: Path, scheme: str = "gs") -> None:
        self._folder, self._library, self._scheme = folder, library, scheme
        self._compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        self._undisturbed: dict[tuple[str, str], Undisturbed] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._changes: list[Change] = []
        self._made: Files = {}
        self._database = b""  # Of an earlier run's server, since to make one takes seconds.
        self._state_name = ""  # Of the folder of a bucket's state on a machine.
        with self._world("disk", "all") as world:
            world.finish()
            self._made, self._changes = world.place.files(), world.place.changes()
            if wrong := world.wrong(artifacts_of(self._made)):
                raise RuntimeError(f"the undisturbed run is not as it should be: {wrong}")
            # Now that its server has ended, it is all in one file.
            self._database = (world.place.state / "prefect" / "prefect.db").read_bytes()

    def undisturbed(self, place: str, phase: str) -> Undisturbed:
        """Returns how a phase goes without a fault; it is run once."""
        with self._locks.setdefault((place, phase), threading.Lock()):
            if (place, phase) not in self._undisturbed:
                self._undisturbed[place, phase] = self._measure(place, phase)
            return self._undisturbed[place, phase]

    def _measure(self, place: str, phase: str) -> Undisturbed:
        with self._world(place, phase) as world:
            began = time.monotonic()
            world.finish()
            seconds = time.monotonic() - began
            requests: dict[str, int] = {}
            if isinstance(world.place, InBucket):
                counts = world.place.gcs.requests()
                requests = {verb: count["requests"] for verb, count in counts.items()}
                self._state_name = world.place.state.name
            operations = world.shim.operations
            artifacts = artifacts_of(world.place.files())
            expected = artifacts_of(self._made) if PHASES[phase].same else artifacts
            if wrong := world.wrong(expected):
                raise RuntimeError(f"{phase} without a fault is not as it should be: {wrong}")
        return Undisturbed(
            artifacts=artifacts, operations=operations, requests=requests, seconds=seconds
        )

    def run(self, trial: Trial) -> Outcome:
        """Runs a trial to its end."""
        usual = self.undisturbed(trial.place, trial.phase)
        seen = [""] * len(trial.faults)
        with self._world(trial.place, trial.phase) as world:
            began = time.monotonic()
            try:
                wrong = self._under(trial, world, usual, seen)
                lost = time.monotonic() - began - usual.seconds
                wrong = wrong or world.wrong(usual.artifacts)
            except Exception as failed:  # What cannot be judged was not survived.
                wrong = str(failed) if isinstance(failed, RuntimeError) else repr(failed)
                lost = time.monotonic() - began - usual.seconds
            world.keep = bool(wrong)
        return Outcome(seen=tuple(seen), wrong=wrong, lost=max(lost, 0.0))

    def _under(self, trial: Trial, world: "World", usual: Undisturbed, seen: list[str]) -> str:
        """Runs the command under the faults until it ends well; fills in what was seen of them."""
        last = ""
        for run in range(RUNS):
            armed = [i for i, what in enumerate(seen) if not what] if run < RUNS - 1 else []
            with world.begun() as begun, ThreadPoolExecutor(len(armed) or 1) as pool:
                scene = Scene(
                    process=begun.process,
                    mark=begun.mark,
                    place=world.place,
                    shim=world.shim,
                    of=usual.operations,
                    requests=usual.requests,
                    again=world.beside,
                    damaged=world.damaged,
                    before=world.shim.operations,
                )
                strikes = {
                    i: pool.submit(KINDS[trial.faults[i].kind].strike, scene, trial.faults[i])
                    for i in armed
                }
                try:
                    code = begun.process.wait(TIMEOUT)
                except subprocess.TimeoutExpired:
                    kill_family(begun.mark)
                    return f"hung for {TIMEOUT:.0f} s; {begun.log}"
                for i, strike in strikes.items():
                    seen[i] = strike.result()
            world.heal()
            if code == 0:
                return ""
            last = begun.last_words()
            if code == -signal.SIGKILL and isinstance(world.place, InBucket):
                world.place.lose_machine()
            ends = any(KINDS[trial.faults[i].kind].ends and seen[i] for i in strikes)
            if not ends:
                return f"{last} without a fault that may end it"
        return f"not finished after {RUNS} runs: {last}"

    @contextlib.contextmanager
    def _world(self, place: str, phase: str) -> Iterator["World"]:
        """Yields a world in which a phase is to be made."""
        folder = self._folder / uuid.uuid4().hex[:8]
        (folder / "shim").mkdir(parents=True)
        gone = set()
        for name, data in self._made.items():
            if name.startswith("manifests/"):
                manifest = json.loads(data)
                if PHASES[phase].makes(manifest["kind"], manifest["name"]):
                    gone.add(manifest["key"])
        files = {n: d for n, d in self._made.items() if not any(key in n for key in gone)}
        # What is there is taken as it is: some of what it was made from is to be made again.
        before = [
            dataclasses.replace(event, inputs={})
            for event in events_of(self._changes)
            if event.key not in gone
        ]
        with contextlib.ExitStack() as stack:
            shim = Shim(self._library, folder / "store", folder / "shim")
            where: Place
            if place == "disk":
                where = Disk(folder / "store", shim)
            else:
                where = stack.enter_context(in_bucket(folder / "store", self._scheme))
            where.put(files)
            prefect = where.state / (self._state_name if place == "bucket" else "") / "prefect"
            if self._database and (place == "disk" or self._state_name):
                prefect.mkdir(mode=0o700, parents=True)
                (prefect / "prefect.db").write_bytes(self._database)
            world = World(folder, where, shim, PHASES[phase].words, self._compiled, before)
            stack.callback(world.end)
            yield world
        if not world.keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
    """A command under way.

    Attributes:
      process: its process.
      mark: what all of its family have in their environment.
      log: file with its output.
    """

    process: subprocess.Popen[bytes]
    mark: str
    log: Path

    def last_words(self) -> str:
        """Returns how it ended, in a line."""
        lines = self.log.read_text(errors="replace").splitlines()
        said = [line for line in lines if "failed" in line or ":" in line]
        return f"exit code {self.process.returncode}: {' / '.join(said[-3:])[:600]}; {self.log}"


def _is_table(key: str) -> bool:
    return key.startswith("results-")


class World:
    """A store, the machine that works on it, and what was seen of both.

    Attributes:
      place: the store.
      shim: below the store, or the machine's state.
      damaged: keys of artifacts that a fault has damaged -> the file.
      keep: whether the folder is kept, for a person to look at.
    """

    def __init__(
        self,
        folder: Path,
        place: Place,
        shim: Shim,
        words: Sequence[str],
        compiled: Mapping[str, str],
        before: Sequence[Event],
    ) -> None:
        self.place, self.shim = place, shim
        self.damaged: dict[str, str] = {}
        self.keep = False
        self._folder, self._words, self._before = folder, words, before
        self._compiled = compiled
        self._marks: list[str] = []

    @property
    def _environment(self) -> dict[str, str]:
        return environment(self._folder) | dict(self.place.environment) | dict(self._compiled)

    def beside(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Begins the command once more, while another is under way; returns it and its log."""
        begun = self._begin()
        return begun.process, begun.log

    def _begin(self) -> Begun:
        mark = uuid.uuid4().hex
        self._marks.append(mark)
        log = self._folder / f"{len(self._marks)}.log"
        own = {**self._environment, **self.shim.environment, MARK: mark}
        with log.open("w") as out:
            process = subprocess.Popen(
                [PARCEL, *self._words], env=own, stdout=out, stderr=subprocess.STDOUT
            )
        return Begun(process=process, mark=mark, log=log)

    @contextlib.contextmanager
    def begun(self) -> Iterator[Begun]:
        """Yields the command under way; all of it has ended when the context is left."""
        begun = self._begin()
        try:
            yield begun
        finally:
            if begun.process.poll() is None:
                kill_family(begun.mark)
            begun.process.wait()

    def finish(self) -> None:
        """Runs the command without a fault.

        Raises:
          RuntimeError: if it fails.
        """
        with self.begun() as begun:
            begun.process.wait(TIMEOUT)
        if begun.process.returncode:
            raise RuntimeError(f"without a fault: {begun.last_words()}")

    def end(self) -> None:
        """Kills whatever of its commands is still there."""
        for mark in self._marks:
            kill_family(mark)

    def heal(self) -> None:
        """Ends what faults are still in force."""
        self.shim.heal()
        self.shim.set_clock_ahead(0)
        if isinstance(self.place, InBucket):
            self.place.gcs.faults.clear()

    def wrong(self, expected: Artifacts) -> str:
        """Returns the first thing that is not as it must be after a trial; "" if all is well."""
        return (
            self._left()
            or self._verified()
            or difference(expected, self._artifacts(expected))
            or "; ".join(violations(self.history(), self.damaged)[:3])
            or self._rows()
        )

    def _artifacts(self, expected: Artifacts) -> Artifacts:
        """Returns the store's artifacts, without tables with holes, which failed runs made.

        Such a table is made from some of what a whole one is made from, and from nothing else.
        """
        files = self.place.files()
        inputs = inputs_of(files)
        whole = [inputs[key] for key in expected.keys() & inputs.keys() if _is_table(key)]
        return {
            key: values
            for key, values in artifacts_of(files).items()
            if key in expected or not (_is_table(key) and any(inputs[key] < of for of in whole))
        }

    def history(self) -> list[Event]:
        """Returns the history of the store, with what the runs said to have made at its end."""
        events = [*self._before, *events_of(self.place.changes())]
        said = [
            Event(kind="acknowledged", key=line["name"])
            for path in (self.place.state / "runs").glob("*/*.jsonl")
            for line in _lines(path)
            if line["what"] == "ended" and line["outcome"] == "made"
        ]
        return [*events, *said]

    def _left(self) -> str:
        """Returns the processes that outlived their commands by 20 s; "" if there is none."""
        deadline = time.monotonic() + 20.0
        while left := [process for mark in self._marks for process in family(mark)]:
            if time.monotonic() > deadline:
                return f"processes are left: {[command_line(process)[:80] for process in left]}"
            time.sleep(0.2)
        return ""

    def _verified(self) -> str:
        """Returns what `parcel lineage verify` finds; what was damaged it must name, if anything.

        A damaged file that no run has read is made again as its user would do it: it is
        deleted, and the command runs once more.
        """
        code, said = self._verify()
        if code and self.damaged:
            name = next(iter(self.damaged.values()))
            if name.rpartition("/")[2] not in said:
                return f"verify does not name {name}: {said[-600:]}"
            self.place.remove(name)
            self.finish()
            code, said = self._verify()
        return f"verify: {said[-600:]}" if code else ""

    def _verify(self) -> tuple[int, str]:
        done = subprocess.run(
            [PARCEL, "lineage", "verify"], env=self._environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    def _rows(self) -> str:
        """Returns the rows of the UI that hang; what hangs, the next command ends."""
        if _hanging(self.place.state):
            self.finish()
            if (hanging := _hanging(self.place.state)) or self._left():
                return f"rows hang: {hanging}"
        return ""


def _hanging(state: Path) -> list[str]:
    """Returns the rows of runs and steps that have no final state."""
    database = sqlite3.connect(f"file:{state}/prefect/prefect.db?mode=ro", uri=True)
    with contextlib.closing(database):
        rows = [
            (table, *row)
            for table in ("flow_run", "task_run")
            for row in database.execute(f"select name, state_type from {table}")
        ]
    return [f"{table} {name}: {kind}" for table, name, kind in rows if kind not in FINAL]


def _lines(path: Path) -> Iterator[dict]:
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):  # A writer that is killed leaves half of one.
            yield json.loads(line)
