"""A study where users run it: their folder, their file system, their home, their neighbours."""

import dataclasses
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.effects.installed import Installed, install
from tests.effects.product import PARCEL, SMALLEST, environment, parcel, wait_for
from tests.several_users import FIRST, SECOND, SharedMachine, shared_machine

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

STUDY = (SMALLEST, "transfers.chartqa.metric=lab_scores:length")
"""The smallest study, by a metric of the folder in which its command is given."""


@dataclasses.dataclass(frozen=True)
class Made:
    """A study that was made.

    Attributes:
      installed: the wheel and the folder that made it.
      store: its store.
      done: the command.
    """

    installed: Installed
    store: Path
    done: subprocess.CompletedProcess[str]

    def copy(self, folder: Path) -> Path:
        """Returns a copy of the store, which has no table: the next run makes that."""
        store = shutil.copytree(self.store, folder / "store")
        shutil.rmtree(store / "manifests" / "results")
        return store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    installed = install(tmp_path_factory.mktemp("installed"))
    store = tmp_path_factory.mktemp("made") / "store"
    return Made(installed, store, installed.run(store, "run", *STUDY, timeout=900))


def preloaded(name: str, folder: Path) -> str:
    """Returns a compiled library of this folder, for LD_PRELOAD; skips without a compiler."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no cc: install a C compiler")
    library, source = folder / f"{name}.so", Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


def tables(store: Path) -> list[Path]:
    return [*(store / "manifests" / "results").glob("*.json")]


def test_a_wheel_makes_a_study_in_a_folder_whose_modules_have_its_names(made: Made):
    assert made.done.returncode == 0, made.done.stdout[-3000:] + made.done.stderr
    assert "14 made" in made.done.stdout
    assert "lab_scores:length" in made.done.stdout
    assert len(tables(made.store)) == 1
    # The wheel did it, and not the checkout that these tests are of.
    asked = [str(Path(made.installed.command).with_name("python")), "-P", "-c"]
    script = "import parcel, model.config; print(parcel.__file__, model.config.__file__)"
    found = subprocess.run(
        [*asked, script], cwd=made.installed.folder, env=environment(made.store), text=True,
        capture_output=True,
    )  # fmt: skip
    site = str(Path(made.installed.command).parents[1])
    assert all(file.startswith(site) for file in found.stdout.split()), found
    assert len(found.stdout.split()) == 2


def test_what_pythonpath_puts_in_the_way_is_named(tmp_path: Path):
    for name in ("model.py", "optax.py"):
        (tmp_path / name).write_text("class Net: pass\n")
    own = environment(tmp_path / "store", {"PYTHONPATH": str(tmp_path)})
    words = ([PARCEL, "status"], [PARCEL, "doctor", "--engine", "none"])
    status, doctor = (
        subprocess.run(each, env=own, capture_output=True, text=True, timeout=120) for each in words
    )
    line = f"{tmp_path}/model.py hides the package model of parcel-pipeline"
    assert status.returncode == 2
    assert status.stderr.startswith(f"parcel: {line}: take its folder off PYTHONPATH")
    assert status.stderr.count("\n") == 1
    assert doctor.returncode == 1
    assert f"BAD  path       {line}\n" in doctor.stdout
    assert f"note path       {tmp_path}/optax.py hides the package optax\n" in doctor.stdout
    assert "ok   store " in doctor.stdout


def test_a_table_is_made_without_links_with_a_socks_proxy_and_on_a_damaged_database(
    made: Made, tmp_path: Path
):
    store = made.copy(tmp_path)
    database = store / "prefect" / "prefect.db"
    os.truncate(database, database.stat().st_size // 2)
    proxies = {"ALL_PROXY": "socks5://127.0.0.1:9", "HTTPS_PROXY": "socks://me:secret@127.0.0.1:9"}
    done = made.installed.run(
        store, "run", *STUDY,
        **proxies,
        LD_PRELOAD=preloaded("nolink", tmp_path),
        MPLBACKEND="module://matplotlib_inline.backend_inline_of_another_kernel",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "1 made, 13 reused" in done.stdout
    (table,) = tables(store)
    assert table.read_bytes()
    # One line each, which names what is put aside, and what is left out without its password.
    (aside,) = database.parent.glob("prefect.db.damaged-*")
    damage = f"parcel: {database} is damaged (database disk image is malformed): it is put aside as"
    assert f"{damage} {aside.name}, and made anew; `parcel lineage rebuild`" in done.stderr
    assert "parcel: ALL_PROXY is left out, " in done.stderr
    assert "parcel: HTTPS_PROXY is left out, " in done.stderr
    assert "secret" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 3, done.stderr
    assert "UI: http://127.0.0.1:" in done.stdout
    # The new database is a whole one: nothing is put aside a second time.
    again = made.installed.run(store, "run", *STUDY)
    assert again.returncode == 0, again.stderr
    assert "damaged" not in again.stderr
    assert [*database.parent.glob("prefect.db.damaged-*")] == [aside]


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(error: int, tmp_path: Path):
    store = tmp_path / "store"
    library = {"LD_PRELOAD": preloaded("noflock", tmp_path), "NO_FLOCK": str(error)}
    commands = [["run", SMALLEST], ["doctor", "--engine", "none"]]
    if error == errno.ENOSYS:  # A server elsewhere holds none of the store's locks.
        commands.append(["run", SMALLEST])
    for number, words in enumerate(commands):
        own = library | ({"PREFECT_API_URL": "http://127.0.0.1:9/api"} if number == 2 else {})
        done = subprocess.run(
            [PARCEL, *words], env=environment(store, own), capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert re.search(rf"{re.escape(str(store))} .*locks \({os.strerror(error)} ", said)
        assert "mount it with them, Lustre with -o flock" in said
        assert done.returncode == (1 if words[0] == "doctor" else 2)


@pytest.fixture
def machine() -> Iterator[SharedMachine]:
    with shared_machine(hidepid=0) as machine:
        yield machine


def hand_over(folder: Path, uid: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, uid, uid)


def test_a_user_without_a_home_runs_a_study(machine: SharedMachine, made: Made):
    store = made.copy(machine.folder)
    project = shutil.copytree(made.installed.folder, machine.folder / "project")
    for folder in (store, project):
        hand_over(folder, 12345)
    # As of `docker run -u 12345`: no entry of passwd, and a HOME that is not theirs.
    words = ["-c", f'cd {project} && exec "$0" "$@"', PARCEL, "run", *STUDY, "--store", str(store)]
    temporary = machine.folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    said = machine.run(12345, "bash", *words, HOME="/", TMPDIR=str(temporary))
    assert "1 made, 13 reused" in said
    key = store / "prefect" / "key"
    assert re.search(rf"key .*{re.escape(str(key))}, and alerts need", said)
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.stat().st_uid == 12345
    # Matplotlib's list of fonts, once for all commands of this user.
    (fonts,) = temporary.glob("parcel-matplotlib-12345-*")
    assert fonts.stat().st_mode & 0o777 == 0o700


def test_two_users_of_a_machine_serve_side_by_side(machine: SharedMachine):
    shared = machine.folder / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    stores = {uid: machine.folder / str(uid) / "store" for uid in (FIRST, SECOND)}
    commands = {}

    def begin(uid: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = (PARCEL, "serve", "--port", str(port), "--store", str(stores[uid]))
        commands[uid] = machine.start(uid, *words, TMPDIR=str(shared))
        # Prefect's runner has made its folder: from here on the server starts runs.
        wait_for(lambda: has_begun(uid), 300)

    def has_begun(uid: int) -> bool:
        command = commands[uid]
        assert command.poll() is None, command.stdout and command.stdout.read()
        return any((stores[uid] / "prefect" / "runner").glob("runner_storage/*"))

    try:
        begin(FIRST)
        begin(SECOND)
        assert has_begun(FIRST)
        for path in shared.iterdir():  # Nobody's folder has a name that another would want.
            assert path.name.startswith(("parcel-", "tmp")), path
        # Each has a server of their own: what one sets, the other does not see.
        sweep = ("sweep", SMALLEST, "--add-seeds", "1", "--max-seeds", "2", "--cron", "0 5 * * *")
        set_ = machine.run(FIRST, PARCEL, *sweep, PARCEL_STORE=str(stores[FIRST]))
        assert "deployment sweep/sweep: fires at '0 5 * * *' UTC" in set_
        lists = [
            machine.run(uid, PARCEL, "schedule", "list", PARCEL_STORE=str(store))
            for uid, store in stores.items()
        ]
        assert " 05:00 UTC" in lists[0]
        assert lists[1].startswith("no schedules: ")
    finally:
        for command in commands.values():
            end(command)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a command as Ctrl-C does, and waits for all that it started."""
    members = psutil.Process(process.pid).children(recursive=True)
    for member in members[:1]:
        member.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, left = psutil.wait_procs(members, timeout=30)
    for member in left:
        member.kill()


def test_a_store_whose_other_machine_died_whole_can_be_used(made: Made, tmp_path: Path):
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("machines of their own want root, and Debian's util-linux")
    store = made.copy(tmp_path)
    printed = tmp_path / "a.log"
    command = f"{made.installed.command} run {' '.join(STUDY)} seed=123 --store {store}"
    with printed.open("w") as log:
        first = subprocess.Popen(
            ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount",
             "sh", "-c", f"hostname machine-a; {command}; exit"],
            cwd=made.installed.folder, env=environment(store), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: " begun " in printed.read_text(), 300, printed.read_text)
        dead = (store / "prefect" / "server.json").read_text()
    finally:
        # Its first process, with which the kernel ends all others at once, as a power cut does.
        for process in psutil.Process(first.pid).children():
            process.kill()
        first.wait(timeout=60)
    address = printed.read_text().partition("UI: ")[2].split("/v2")[0]
    assert address in dead
    other = ["unshare", "--uts", "sh", "-c", 'hostname machine-b; exec "$0" "$@"']
    for words in (["run", *STUDY], ["status"]):
        done = subprocess.run(
            [*other, made.installed.command, *words, "--store", str(store)],
            cwd=made.installed.folder, env=environment(store), capture_output=True, text=True,
            timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr
        # The dead machine's loopback is not this one's.
        assert address not in done.stdout + done.stderr
    assert len(tables(store)) == 1


def test_a_port_that_cannot_be_had_is_named_with_what_to_do(tmp_path: Path):
    done = parcel(tmp_path / "store", "serve", "--port", "22222222")
    assert done.returncode == 2
    assert "'--port'" in done.stderr
    assert "65535" in done.stderr
    assert "22222222" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = parcel(tmp_path / "store", "serve", "--port", str(port))
    assert done.returncode == 2
    told = rf"parcel: --host 127\.0\.0\.1 --port {port}: Address already in use; .*--port.*\n"
    assert re.fullmatch(told, done.stderr)
