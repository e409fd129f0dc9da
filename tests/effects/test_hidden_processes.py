"""Two users share a store on a machine where /proc may hide the one's processes from the other."""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.infra.store.test_gc import make
from tests.several_users import FIRST, GROUP, SECOND, SharedMachine, line_of, shared_machine

pytestmark = pytest.mark.deep

RUN = "5e0c0ffe-0000-4000-8000-000000000001"
PINS = """
import sys, time
from infra.store.store import Store
with Store(sys.argv[1]).pin_run(sys.argv[2]) as pin:
    pin.add(*sys.argv[3:])
    print("pinned", flush=True)
    time.sleep(600)
"""
HOLDS = """
import sys, time
from pathlib import Path
from infra.store.disk import Disk
from infra.store.lease import hold_lease
began = time.monotonic()
with hold_lease(Disk(Path(sys.argv[1]), durable=False), "leases/work", ttl=12) as held:
    print(time.monotonic() - began, flush=True)
    time.sleep(float(sys.argv[2]))
    print(held.lost, flush=True)
"""
LOOKS = """
import sys, time
from infra.prefect.settings import import_prefect
import_prefect()
from infra.prefect.watch import Watch
from infra.store.store import Store
watch = Watch(Store(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    print(*watch.look(), flush=True)
    time.sleep(11)
"""
PARCEL = str(Path(sys.prefix) / "bin" / "parcel")


# Where nothing is hidden is the control, at night.
@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.night), 1, 2])
def hidepid(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def machine(hidepid: int) -> Iterator[SharedMachine]:
    with shared_machine(hidepid) as machine:
        yield machine


@pytest.fixture
def store(machine: SharedMachine) -> Store:
    """A store of the group, with three artifacts of which one is made from another."""
    store = Store(machine.folder / "store")
    raw = make(store, "raw")
    make(store, "data", raw)
    make(store, "other data")
    for path in (store.state, *store.state.rglob("*")):
        os.chown(path, 0, GROUP)
        path.chmod(0o2775 if path.is_dir() else 0o664)
    return store


def pin_all(machine: SharedMachine, store: Store, run: str = RUN):
    keys = [found.key for found in store.artifacts()]
    process = machine.python(FIRST, PINS, store.uri, run, *keys)
    assert line_of(process) == "pinned"
    return process


def let_pins_lapse(store: Store, seconds: float) -> None:
    """Sets the clock of the pins back, as if nobody had renewed them for a while."""
    then = time.time() - seconds
    for path in (store.state / "pins").iterdir():
        os.utime(path, (then, then))


def test_gc_leaves_what_a_run_of_another_user_relies_on(
    machine: SharedMachine, store: Store, hidepid: int
):
    gc = (PARCEL, "gc", "--older-than", "0d", "--delete", "--store", store.uri)
    process = pin_all(machine, store)
    said = machine.run(SECOND, *gc)
    assert "deleted nothing" in said
    assert "Traceback" not in said
    assert len(list(store.artifacts())) == 3
    status = machine.run(SECOND, PARCEL, "status", "--store", store.uri)
    assert "process gone" not in status
    assert re.search(r"run 000000000001: process \d+ of .*, renewed \d+ s ago", status), status
    # The pin of a run that has ended counts for nothing, and its end shows everywhere: there is no
    # such process.
    process.kill()
    process.wait()
    assert "deleted 3 artifacts" in machine.run(SECOND, *gc)
    assert list(store.artifacts()) == []


def test_a_pid_given_again_to_a_hidden_process_holds_nothing_for_ever(
    machine: SharedMachine, store: Store, hidepid: int
):
    gc = (PARCEL, "gc", "--older-than", "0d", "--delete", "--store", store.uri)
    pin_all(machine, store)
    (path,) = (store.state / "pins").iterdir()
    lease = json.loads(path.read_text())
    lease["holder"]["began"] -= 1  # The run that died; its pid is now another process's.
    path.with_name(f"{RUN}.aaaaaaaa.json").write_text(json.dumps(lease, sort_keys=True) + "\n")
    path.unlink()
    if hidepid:
        let_pins_lapse(store, 1800)
        assert "deleted nothing" in machine.run(SECOND, *gc)
    let_pins_lapse(store, 7200)
    assert "deleted 3 artifacts" in machine.run(SECOND, *gc)


def test_a_lease_that_another_user_holds_is_waited_for(machine: SharedMachine, store: Store):
    holder = machine.python(FIRST, HOLDS, store.uri, "25")
    assert float(line_of(holder)) < 5
    waiting = machine.python(SECOND, HOLDS, store.uri, "0")
    assert float(line_of(waiting)) > 15  # Longer than its time to live: it was renewed.
    assert line_of(holder) == "False"
    # Of a holder that is gone the lease is free at once.
    holder = machine.python(FIRST, HOLDS, store.uri, "600")
    line_of(holder)
    holder.kill()
    holder.wait()
    assert float(line_of(machine.python(SECOND, HOLDS, store.uri, "0"))) < 5


def test_a_run_of_another_user_is_not_shown_as_crashed(
    machine: SharedMachine,
    store: Store,
    served_store: Path,
    hidepid: int,
):
    from tests.infra.prefect.test_rows import new_run, state_of

    run = new_run("another user's")
    process = pin_all(machine, store, run)
    settings = {name: os.environ[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")}
    look = (sys.executable, "-c", LOOKS, store.uri)
    assert machine.run(SECOND, *look, "2", **settings).split() == []
    assert state_of(run)[0] == "Running"
    process.kill()
    process.wait()
    assert "Crashed, its lease lapsed" in machine.run(SECOND, *look, "1", **settings)
    assert state_of(run)[0] == "Crashed"


def test_a_command_ends_its_family_where_others_are_hidden(machine: SharedMachine):
    # psutil's list of a process's children fails of any process that may not be read.
    code = """
import subprocess, sys
from infra.processes.family import Family, MARK
family = Family()
go = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; " \\
     "time.sleep(600)'], env={}); print('ready', flush=True); import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", go], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(*(process.pid for process in family.processes()), flush=True)
child.wait()
"""
    founder = machine.python(FIRST, code)
    pids = [int(word) for word in line_of(founder).split()]
    assert len(pids) == 2  # Also the one that dropped its mark.
    founder.kill()
    founder.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
