"""The kinds of faults, and how each strikes; a strike returns what was seen of it, "" if nothing.

Nothing is taken for granted: of a signal, the process was alive and then ended or stopped; of a
reply, the server gave it; of a disk's error, a process got it; of a clock, somebody read it.
"""

import contextlib
import dataclasses
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.certificate.places import BUCKET, PREFIX, InBucket, Place
from tests.certificate.shim import DISK_ERRORS, Shim
from tests.gcs.faults import Rule
from tests.processes import command_line

MARK = "PARCEL_TEST_FAMILY"

_LOOK_EVERY_S = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a trial; all of it is drawn.

    Attributes:
      kind: one of `KINDS`.
      share: moment, as a share of what a phase does without a fault; of a process that comes and
        goes, of a part of it, counted from when it was first seen.
      seconds: how long it lasts, where that is drawn [s].
      times: operations or requests that it falls on, where that is drawn.
      dice: seed of what is drawn when it falls.
    """

    kind: str
    share: float
    seconds: float
    times: int
    dice: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What a strike works on.

    Attributes:
      process: the command.
      mark: what all of its family have in their environment.
      place: its store.
      shim: below its store, or its state.
      of: operations of the phase without a fault.
      requests: requests of the phase without a fault, by verb; empty on a disk.
      again: begins the same command once more beside it; returns the process and its log.
      damaged: key of an artifact that was damaged -> the file; a strike adds to it.
      before: operations before the command began.
      looks: what `_family` keeps.
    """

    process: subprocess.Popen[bytes]
    mark: str
    place: Place
    shim: Shim
    of: int
    requests: Mapping[str, int]
    again: Callable[[], tuple[subprocess.Popen[bytes], Path]]
    damaged: dict[str, str]
    before: int
    looks: list[tuple[float, list[psutil.Process]]] = dataclasses.field(default_factory=list)

    @property
    def done(self) -> int:
        """Operations of the command so far."""
        return self.shim.operations - self.before

    @property
    def runs(self) -> bool:
        """Whether the command is under way."""
        return self.process.poll() is None


Strike = Callable[[Scene, Fault], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
      strike: has it fall.
      phases: names of the phases in which it can.
      ends: whether the command may end by it, without having made everything.
      places: where it can.
      alone: whether a trial has no other fault beside it.
      group: of those of one group a trial has at most one, since they would count as each other.
    """

    strike: Strike
    phases: tuple[str, ...] = ("data", "mask codec", "stage 1", "evaluation", "transfer", "sweep")
    ends: bool = False
    places: tuple[str, ...] = ("disk", "bucket")
    alone: bool = False
    group: str = ""


def family(mark: str) -> list[psutil.Process]:
    """Every process begun by a command, wherever its parent went: they inherit its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_family(mark: str) -> None:
    """Kills all of a family."""
    while found := family(mark):
        for member in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        time.sleep(0.05)


# Processes.


def _family(scene: Scene) -> list[psutil.Process]:
    """Returns a command's family as of a moment ago: a look at every process takes a while."""
    if not scene.looks or time.monotonic() - scene.looks[-1][0] > _LOOK_EVERY_S:
        scene.looks[:] = [(time.monotonic(), family(scene.mark))]
    return scene.looks[-1][1]


def _flow(scene: Scene) -> list[psutil.Process]:
    return [psutil.Process(scene.process.pid)]


def _members(*words: str) -> Callable[[Scene], list[psutil.Process]]:
    """Returns a look-up of those of a family whose command line has one of the words."""

    def found(scene: Scene) -> list[psutil.Process]:
        return [p for p in _family(scene) if any(word in command_line(p) for word in words)]

    return found


def _workers(scene: Scene) -> list[psutil.Process]:
    """Ray's workers with a task."""
    lines = [(process, command_line(process)) for process in _family(scene)]
    return [p for p, line in lines if "ray::" in line and "ray::IDLE" not in line]


def _beam_workers(scene: Scene) -> list[psutil.Process]:
    """Those that the program of the pool has forked."""
    found = _members("pipelines.prepare.worker_process", "sdk_worker_main")(scene)
    pids = {process.pid for process in found}
    return [process for process in found if process.ppid() in pids]


TARGETS: Mapping[str, tuple[Callable[[Scene], list[psutil.Process]], float]] = {
    "flow": (_flow, 0.9),
    "Prefect server": (_members("infra.prefect.app"), 0.7),
    "Ray worker": (_workers, 0.1),
    "raylet": (_members("raylet/raylet"), 0.3),
    "Ray head": (_members("gcs/gcs_server"), 0.3),
    "Ray driver": (_members("infra.ray.driver"), 0.3),
    "Beam worker": (_beam_workers, 0.05),
    "video child": (_members("pipelines.video.child"), 0.02),
    "gang member": (_members("flows.steps.member"), 0.1),
}
"""Name -> the processes that bear it, and the part of a phase from which a moment is drawn."""


def _wait(scene: Scene, operations: int, condition: Callable[[], Any] = lambda: True) -> bool:
    """Waits for a number of operations and a condition; returns whether both came in time."""
    while scene.runs:
        if scene.done >= operations and condition():
            return True
        time.sleep(0.05)
    return False


def _signalled(target: str, number: signal.Signals) -> Strike:
    found, part = TARGETS[target]

    def look(scene: Scene) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return found(scene)
        return []

    def strike(scene: Scene, fault: Fault) -> str:
        if not _wait(scene, 0, lambda: look(scene)):
            return ""
        first = scene.done if target != "flow" else 0
        moment = first + int(fault.share * part * scene.of)
        dice = random.Random(fault.dice)
        while _wait(scene, moment, lambda: look(scene)):
            with contextlib.suppress(psutil.Error, IndexError):
                victim = dice.choice(look(scene))
                if seen := _send(victim, number, fault.seconds):
                    # A command may have ended by itself just then; its exit code tells.
                    by_signal = (-number, 128 + number)
                    if target == "flow" and number != signal.SIGSTOP:
                        return seen if scene.process.wait() in by_signal else ""
                    return f"{seen}: {victim.pid}"
        return ""

    return strike


def _send(victim: psutil.Process, number: signal.Signals, seconds: float) -> str:
    """Signals a process; returns what was seen of the effect."""
    if victim.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ""
    victim.send_signal(number)
    deadline = time.monotonic() + 20.0  # What ends later may have ended by itself.
    if number == signal.SIGSTOP:
        while victim.status() != psutil.STATUS_STOPPED:
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.01)
        time.sleep(seconds)
        was_stopped = not _has_ended(victim) and victim.status() == psutil.STATUS_STOPPED
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)
        # One that was given up and killed meanwhile was stopped until then.
        return f"stopped for {seconds:.1f} s" if was_stopped else "stopped, then killed by its own"
    while time.monotonic() < deadline:
        if _has_ended(victim):
            return f"ended by {number.name}"
        time.sleep(0.01)
    return ""


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Disks and clocks.


def _disk_error(name: str) -> Strike:
    def strike(scene: Scene, fault: Fault) -> str:
        if not _wait(scene, int(0.9 * fault.share * scene.of)):
            return ""
        before = scene.shim.strikes()
        times = fault.times * (40 if DISK_ERRORS[name][0] == 28 else 1)  # A full one stays so.
        scene.shim.fail(name, times)
        scene.process.wait()
        struck = scene.shim.strikes() - before
        return f"{struck} operations failed" if struck else ""

    return strike


def _clock(seconds: float) -> Strike:
    def strike(scene: Scene, fault: Fault) -> str:
        if not _wait(scene, int(0.9 * fault.share * scene.of)):
            return ""
        before = scene.shim.clock_calls
        scene.shim.set_clock_ahead(seconds)
        scene.process.wait()
        scene.shim.set_clock_ahead(0)
        read = scene.shim.clock_calls - before
        return f"read {read} times" if read else ""

    return strike


def _clock_of_bucket(seconds: float) -> Strike:
    def strike(scene: Scene, fault: Fault) -> str:
        assert isinstance(scene.place, InBucket)
        gcs = scene.place.gcs
        if not _wait(scene, int(0.9 * fault.share * scene.of)):
            return ""
        before = asked(scene.place)
        gcs.skew_s += seconds
        scene.process.wait()
        answered = asked(scene.place) - before
        return f"in {answered} replies" if answered else ""

    return strike


def asked(place: InBucket) -> int:
    """Returns how many requests a bucket's server has answered."""
    return sum(count["requests"] for count in place.gcs.requests().values())


# Buckets.


def _rule(verbs: frozenset[str], **values: Any) -> Strike:
    """Returns a strike by a rule of the server, on one of the verbs that the phase asks with."""

    def strike(scene: Scene, fault: Fault) -> str:
        assert isinstance(scene.place, InBucket)
        dice = random.Random(fault.dice)
        able = sorted(verbs & set(scene.requests)) or ["*"]
        verb = values.get("verb") or dice.choice(able)
        # Not the very last: how many there are differs a little from run to run.
        skip = int(0.9 * fault.share * scene.requests.get(verb, 0))
        faults, status = scene.place.gcs.faults, values.get("status")
        number = faults.add(Rule(**{**values, "verb": verb, "skip": skip}))
        scene.process.wait()
        fired = faults.fired()[number]
        return f"{fired} x {verb} {status or ''}".strip() if fired else ""

    return strike


# Runs and artifacts.


def _second_run(scene: Scene, fault: Fault) -> str:
    """Has the same config run twice at once."""
    if not _wait(scene, int(0.5 * fault.share * scene.of)):
        return ""
    other, log = scene.again()
    together = False
    while not together and scene.runs and other.poll() is None:
        together = "[ " in log.read_text(errors="replace")  # Its first step.
        time.sleep(0.05)
    code = other.wait()
    if code:
        raise RuntimeError(f"the second run ended with exit code {code}")
    return "both had steps under way" if together else ""


def _late_holder(scene: Scene, fault: Fault) -> str:
    """Stops the holder of a step; its lease lapses, another run makes the step; then it goes on."""
    holder: list[tuple[str, psutil.Process]] = []

    def held() -> bool:
        holder[:] = _holders(scene)
        return bool(holder)

    if not _wait(scene, 0, held):
        return ""
    moment = scene.done + int(0.05 * fault.share * scene.of)
    if not _wait(scene, moment, held):
        return ""
    name, victim = random.Random(fault.dice).choice(holder)
    victim.suspend()
    try:
        scene.place.age_lease(name)
        code = scene.again()[0].wait()
        key = name.removeprefix("leases/").removesuffix(".json")
        made = any(n.startswith("manifests/") and f"/{key}.json" in n for n in scene.place.files())
        taken = made and victim.status() == psutil.STATUS_STOPPED
    finally:
        victim.resume()
    if code:
        raise RuntimeError(f"the run that took {name} ended with exit code {code}")
    return f"{name} was taken from {victim.pid}" if taken else ""


def _holders(scene: Scene) -> list[tuple[str, psutil.Process]]:
    """Returns the steps' leases that processes of the command hold, but for the command's own."""
    pids = {process.pid: process for process in _family(scene)}
    found = []
    for name, data in _leases(scene.place).items():
        with contextlib.suppress(ValueError, KeyError):
            pid = json.loads(data)["holder"]["pid"]
            if pid in pids and pid != scene.process.pid:
                found.append((name, pids[pid]))
    return found


def _leases(place: Place) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if isinstance(place, InBucket):
        for name, there in dict(place.gcs.store.bucket(BUCKET).objects).items():
            if name.startswith(f"{PREFIX}leases/"):
                found[name.removeprefix(PREFIX)] = there.data
    else:
        for path in (place.state / "leases").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found[f"leases/{path.name}"] = path.read_bytes()
    return found


def _flip(scene: Scene, fault: Fault) -> str:
    """Flips a bit of any file of any artifact that is committed."""
    if not _wait(scene, int(0.9 * fault.share * scene.of)):
        return ""
    dice = random.Random(fault.dice)
    files = scene.place.files()
    manifests = [json.loads(data) for name, data in files.items() if name.startswith("manifests/")]
    places = {
        f"artifacts/{manifest['key']}/{manifest['folder']}/{name}": manifest["key"]
        for manifest in manifests
        for name, file in manifest["files"].items()
        if file["size"]
    }
    name = dice.choice(sorted(places))
    if name not in files:
        return ""
    data = bytearray(files[name])
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    scene.damaged[places[name]] = name
    scene.place.replace(name, bytes(data))
    return f"a bit of {name}" if scene.place.files().get(name) == bytes(data) else ""


_COMPUTE = ("mask codec", "stage 1", "evaluation", "transfer", "sweep")
_ANY = frozenset({"upload", "start", "chunk", "media", "metadata", "list", "delete"})
_BODIES = frozenset({"upload", "chunk"})


def _of_bucket(verbs: frozenset[str] = _ANY, **values: Any) -> Kind:
    return Kind(strike=_rule(verbs, **values), places=("bucket",))


KINDS: Mapping[str, Kind] = {
    "SIGKILL flow": Kind(strike=_signalled("flow", signal.SIGKILL), ends=True),
    "SIGTERM flow": Kind(strike=_signalled("flow", signal.SIGTERM), ends=True),
    "SIGINT flow": Kind(strike=_signalled("flow", signal.SIGINT), ends=True),
    "SIGSTOP flow": Kind(strike=_signalled("flow", signal.SIGSTOP)),
    "SIGKILL Ray worker": Kind(strike=_signalled("Ray worker", signal.SIGKILL), phases=_COMPUTE),
    "SIGTERM Ray worker": Kind(strike=_signalled("Ray worker", signal.SIGTERM), phases=_COMPUTE),
    "SIGSTOP Ray worker": Kind(strike=_signalled("Ray worker", signal.SIGSTOP), phases=_COMPUTE),
    "SIGKILL raylet": Kind(strike=_signalled("raylet", signal.SIGKILL), phases=_COMPUTE),
    "SIGSTOP raylet": Kind(strike=_signalled("raylet", signal.SIGSTOP), phases=_COMPUTE),
    "SIGKILL Ray head": Kind(strike=_signalled("Ray head", signal.SIGKILL), phases=_COMPUTE),
    "SIGSTOP Ray head": Kind(strike=_signalled("Ray head", signal.SIGSTOP), phases=_COMPUTE),
    "SIGKILL Ray driver": Kind(strike=_signalled("Ray driver", signal.SIGKILL), phases=_COMPUTE),
    "SIGKILL Prefect server": Kind(strike=_signalled("Prefect server", signal.SIGKILL)),
    "SIGTERM Prefect server": Kind(strike=_signalled("Prefect server", signal.SIGTERM)),
    "SIGSTOP Prefect server": Kind(strike=_signalled("Prefect server", signal.SIGSTOP)),
    "SIGKILL Beam worker": Kind(
        strike=_signalled("Beam worker", signal.SIGKILL), phases=("data", "video")
    ),
    "SIGSTOP Beam worker": Kind(
        strike=_signalled("Beam worker", signal.SIGSTOP), phases=("data", "video")
    ),
    "SIGKILL video child": Kind(
        strike=_signalled("video child", signal.SIGKILL), phases=("data", "video")
    ),
    "SIGSTOP video child": Kind(
        strike=_signalled("video child", signal.SIGSTOP), phases=("data", "video")
    ),
    "SIGKILL gang member": Kind(strike=_signalled("gang member", signal.SIGKILL), phases=("gang",)),
    "SIGTERM gang member": Kind(strike=_signalled("gang member", signal.SIGTERM), phases=("gang",)),
    "SIGSTOP gang member": Kind(strike=_signalled("gang member", signal.SIGSTOP), phases=("gang",)),
    **{name: Kind(strike=_disk_error(name), ends=True, group="disk") for name in DISK_ERRORS},
    "503": _of_bucket(action="answer", status=503, times=5),
    "429": _of_bucket(action="answer", status=429, times=5),
    "reply lost": _of_bucket(action="lose"),
    "reply lost, 503 instead": _of_bucket(action="lose_answer", status=503),
    "connection reset": _of_bucket(action="reset", times=3),
    "request torn": _of_bucket(_BODIES, action="reset_request"),
    "reply torn": _of_bucket(action="reset_reply", verb="media"),
    "byte flipped in a download": _of_bucket(action="corrupt", verb="media"),
    "byte flipped in an upload": _of_bucket(_BODIES, action="corrupt_upload"),
    "stale listing": _of_bucket(action="stale", verb="list", seconds=3.0, times=3),
    "request stalled": _of_bucket(action="stall", seconds=5.0),
    "reply late": _of_bucket(action="late", seconds=5.0),
    "request hung": _of_bucket(action="stall", seconds=75.0),
    "clock an hour ahead": Kind(strike=_clock(3600.0), group="clock"),
    "clock an hour behind": Kind(strike=_clock(-3600.0), group="clock"),
    "bucket's clock ahead": Kind(
        strike=_clock_of_bucket(3600.0), places=("bucket",), group="clock"
    ),
    "bucket's clock behind": Kind(
        strike=_clock_of_bucket(-3600.0), places=("bucket",), group="clock"
    ),
    "two runs at once": Kind(strike=_second_run, alone=True),
    "holder after its lease": Kind(strike=_late_holder, phases=_COMPUTE, alone=True),
    "bit flipped": Kind(strike=_flip, ends=True, alone=True),
}

OF_STORES = (
    *(name for name, kind in KINDS.items() if kind.places == ("bucket",)),
    "two runs at once",
    "holder after its lease",
    "bit flipped",
)
"""Kinds of faults that a bucket has, not its users."""

WITH_CHECKSUMS = ("byte flipped in a download", "byte flipped in an upload")
"""Kinds that only a server with checksums for all bytes shows; TLS alone guards Azure's."""
