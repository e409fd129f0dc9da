"""Jobs on a cluster already there: code comes to them; they outlive whoever submitted them."""

import json
import pickle
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from infra.ray.jobs import JobServer, RayJob
from infra.source_code import checkout
from tests.processes import end_family
from tests.ray_nodes import Head, head_of, job_servers, node

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("node")
    for package in ("flows", "infra"):
        (made / package).mkdir()
        (made / package / "__init__.py").write_text("raise ImportError('an old checkout')")
    return made


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[Head]:
    """A cluster of one node, with more cores than this machine and the chips of a TPU host."""
    patience = {"RAY_JOB_START_TIMEOUT_SECONDS": "30"}  # Of 900.
    with head_of(home, "--num-cpus=5", '--resources={"TPU": 4}', **patience) as made:
        yield made


@pytest.fixture
def connect(head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], JobServer]]:
    with job_servers(head, monkeypatch, node_wait=4) as connect:
        yield connect


@pytest.fixture
def server(connect: Callable[[], JobServer]) -> JobServer:
    return connect()


def python(code: str, *words: object) -> Callable[[RayJob], str]:
    return lambda job: shlex.join(["python", "-c", code, *map(str, words)])


def end_of(server: JobServer, job: RayJob) -> str:
    deadline = time.monotonic() + 60
    while (why := server.end_reason(job)) is None:
        assert time.monotonic() < deadline
        server.wait(1)
    return why


ENDLESS = python("import time\nwhile True: time.sleep(1)")
TELL = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))"


def told(server: JobServer, out: Path, work: str, **resources: float) -> dict[str, str]:
    """The environment of a job."""
    job = server.submit(work, python(TELL, out), **({"num_cpus": 1} | resources))  # type: ignore[arg-type]
    assert end_of(server, job).startswith("succeeded")
    return json.loads(out.read_text())


def test_jobs_run_the_code_of_the_run_whatever_lies_on_their_node(
    server: JobServer, tmp_path: Path
):
    code = (
        "import sys, flows, infra, pickle\nfrom infra.source_code import checkout\n"
        "pickle.dump((flows.__file__, infra.__file__, dict(checkout().files)), "
        "open(sys.argv[1], 'wb'))"
    )
    job = server.submit("code", python(code, tmp_path / "told"), num_cpus=1)
    assert end_of(server, job).startswith("succeeded")
    *paths, files = pickle.loads((tmp_path / "told").read_bytes())
    assert all("/working_dir_files/" in path for path in paths), paths
    # Without what other tests of this process have imported of users' files.
    assert files == {k: text for k, text in checkout().files.items() if not k.startswith("own/")}


def test_a_job_gets_what_it_asks_for_in_an_environment_that_is_its_nodes(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WHOSE", "the submitter's")
    monkeypatch.setenv("PARCEL_STATE", "/of/the/submitter")
    found = told(server, tmp_path / "five", "five", num_cpus=5)
    assert (found["NPROC"], found["WHOSE"], found["JAX_PLATFORMS"]) == ("5", "the node's", "cpu")
    assert "PARCEL_STATE" not in found
    # A job that wants GPUs takes the chips of a TPU host, where there are those instead.
    found = told(server, tmp_path / "chips", "chips", num_cpus=1, num_gpus=0.5)
    assert found["JAX_PLATFORMS"] == "tpu,cpu"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in found


def test_a_job_too_large_for_every_node_says_so(server: JobServer):
    job = server.submit("large", ENDLESS, num_cpus=64)
    with pytest.raises(RuntimeError) as caught:
        end_of(server, job)
    told = r"64 CPU, .* 4 s \(compute\.node_wait\); .* 1 with 5 CPU and 4 TPU\."
    assert re.search(told, str(caught.value))


def test_of_many_who_need_the_same_work_one_starts_it_and_all_find_it(
    connect: Callable[[], JobServer],
):
    racers, jobs = [connect() for _ in range(4)], list[RayJob]()
    together = threading.Barrier(len(racers))

    def submit(server: JobServer) -> None:
        together.wait()
        jobs.append(server.submit("same", ENDLESS, num_cpus=1))

    threads = [threading.Thread(target=submit, args=(racer,)) for racer in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {job.id for job in jobs} == {"same-1"}
    late = connect()
    for one in racers:
        one.close()
    job = late.submit("same", ENDLESS, num_cpus=1)
    assert job == jobs[0]
    assert job.reattached
    assert [one.reattached for one in jobs].count(False) >= 1
    began = time.monotonic()
    late.stop([job])
    assert end_of(late, job).startswith("stopped")
    assert time.monotonic() - began < 30
    again = late.submit("same", python("print('done')"), num_cpus=1)
    assert (again.id, again.earlier_attempts) == ("same-2", [job.name])
    assert end_of(late, again).startswith("succeeded")


@pytest.mark.deep
def test_a_long_wait_makes_neither_the_next_submission_nor_its_command_longer(
    server: JobServer, connect: Callable[[], JobServer], monkeypatch: pytest.MonkeyPatch
):
    # Ray gives all of these attempts up, since no node has 64 cores.
    numbers = range(1, 21)
    server._connect()
    for number in numbers:
        server._client.submit_job(
            entrypoint="true", submission_id=f"many-{number}", entrypoint_num_cpus=64
        )
    attempts = [RayJob(id=f"many-{n}", cluster=server._cluster, attempt=n) for n in numbers]
    for attempt in attempts:
        while not server._job_info(attempt).status.is_terminal():
            server.wait(1)
    late, questions = connect(), list[str]()
    ask = JobSubmissionClient.get_job_info

    def counted(client: JobSubmissionClient, job: str) -> object:
        questions.append(job)
        return ask(client, job)

    monkeypatch.setattr(JobSubmissionClient, "get_job_info", counted)
    job = late.submit("many", ENDLESS, num_cpus=1)
    assert job.attempt == 21
    assert len(questions) <= 12
    assert job.earlier_attempts == [attempt.name for attempt in attempts[-8:]]
    late.stop([job])
    end_of(late, job)
    questions.clear()
    again = late.submit("many", ENDLESS, num_cpus=1)
    assert again.attempt == 22
    assert len(questions) <= 2
    assert connect().submit("many", ENDLESS, num_cpus=1) == again
    late.stop([again])


def test_who_knows_a_run_only_can_stop_all_that_it_submitted(connect: Callable[[], JobServer]):
    server = connect()
    mine = [server.submit(name, ENDLESS, num_cpus=1, run="mine") for name in ("a", "b")]
    other = server.submit("c", ENDLESS, num_cpus=1, run="another's")
    late = connect()
    found = late.run_jobs("mine")
    assert sorted(job.name for job in found) == [job.name for job in mine]
    late.stop(found)
    assert all(end_of(late, job).startswith("stopped") for job in mine)
    assert late.run_jobs("mine") == []
    assert late.end_reason(other) is None
    late.stop([other])


def test_a_killed_process_ends_its_job_and_the_next_try_is_another(server: JobServer):
    kill = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    job = server.submit("killed", kill, num_cpus=1)
    assert end_of(server, job).startswith("failed")
    assert server.submit("killed", kill, num_cpus=1).attempt == 2


@pytest.mark.deep
def test_ray_gives_up_a_job_that_waits_for_long_and_it_can_be_told_from_one_that_failed(
    server: JobServer,
):
    first = server.submit("first", ENDLESS, num_cpus=5)
    second = server.submit("second", ENDLESS, num_cpus=5)
    assert end_of(server, second).startswith("failed")
    assert server.timed_out_unscheduled(second)
    server.stop([first])
    end_of(server, first)
    assert not server.timed_out_unscheduled(first)


@pytest.mark.deep
def test_a_job_on_a_stopped_node_is_lost(server: JobServer, head: Head, home: Path):
    words = (f"--address={head.address}", "--node-ip-address=127.0.0.3", "--num-cpus=6")
    second = psutil.Process(node(home, *words).pid)
    try:
        job = server.submit("cell", ENDLESS, num_cpus=6)
        while server._job_info(job).status != "RUNNING":
            server.wait(1)
        for process in [second, *second.children(recursive=True)]:
            process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert "node" in end_of(server, job) or "died" in end_of(server, job)
        assert time.monotonic() - began < 20
        assert server.submit("cell", ENDLESS, num_cpus=1).attempt == 2
    finally:
        end_family(second)


def test_the_same_code_is_the_same_archive_so_that_nodes_unpack_it_once():
    code, archives = checkout().files, list[bytes]()
    for files in (code, dict(sorted(code.items(), reverse=True))):
        server = JobServer("http://127.0.0.1:9", code=files, node_wait=1)
        server._write_archive()
        archives.append(server._archive.read_bytes())
        server.close()
    assert archives[0] == archives[1]


def test_no_job_server_is_one_clear_line():
    server = JobServer("http://127.0.0.1:9", code={}, node_wait=1)
    with pytest.raises(RuntimeError, match=r"no job server .*http://127\.0\.0"):
        server.submit("any", ENDLESS, num_cpus=1)
    server.close()


MEET = """
import json, os, pathlib, sys, time
here, others = pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]]
partial = here.with_suffix(".partial")
partial.write_text(json.dumps(dict(os.environ)))
partial.rename(here)
while not all(other.exists() for other in others):
    time.sleep(0.1)
"""


@pytest.mark.deep
def test_jobs_share_gpus_and_their_memory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    files = [tmp_path / f"{number}" for number in range(3)]
    with head_of(home, "--num-cpus=4", "--num-gpus=2") as made:
        server = JobServer(made.address, code=checkout().files, node_wait=4)
        try:
            jobs = [  # Each waits for the others: they run at the same time.
                server.submit(f"half-{i}", python(MEET, file, *files), num_cpus=1, num_gpus=0.5)
                for i, file in enumerate(files)
            ]
            assert all(end_of(server, job).startswith("succeeded") for job in jobs)
        finally:
            server.close()
    found = [json.loads(file.read_text()) for file in files]
    assert {told["CUDA_VISIBLE_DEVICES"] for told in found} == {"0", "1"}
    assert {told["XLA_PYTHON_CLIENT_MEM_FRACTION"] for told in found} == {"0.45"}
    assert {told["JAX_PLATFORMS"] for told in found} == {"cuda,cpu"}
