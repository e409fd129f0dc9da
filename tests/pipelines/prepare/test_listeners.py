"""Where a preparation can be reached while it runs, and which files it hands out."""

import contextlib
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_artifact_api_pb2 as artifacts
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_api
from apache_beam.portability.api import beam_runner_api_pb2 as api

from pipelines.prepare.beam_sockets import DeclaredFiles
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus
from tests.processes import end_family

OPTIONS = ("--num-shards", "3", "--image-px", "32", "--max-reject-rate", "0.9")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drawn") / "raw"
    config = CorpusConfig(num_web=20, num_charts=0, num_scenes=0, num_videos=0, shard_size=7)
    render_corpus(config, str(root))
    return root


class Seen(NamedTuple):
    """What the processes of a run listened on, at any time."""

    addresses: set[str]
    sockets: dict[str, tuple[int, int]]  # Path -> modes of its folder and of itself.
    answers: set[str]  # Of whoever was asked for a file that is not the run's.


def watch(corpus: Path, out: Path, secret: Path, *options: str) -> Seen:
    """Prepares a dataset, looking at its processes until it has ended."""
    words = ["web", "train", "--data-root", str(corpus), "--out", str(out), *OPTIONS, *options]
    seen, asked = Seen(set(), {}, set()), set[tuple[str, int]]()
    run = psutil.Popen([sys.executable, "-m", "pipelines.prepare", *words])
    try:
        while run.poll() is None:
            family = [run, *run.children(recursive=True)]
            for ip, port in ports(family) - asked:
                asked.add((ip, port))
                seen.addresses.add(ip)
                seen.answers.add(ask(f"localhost:{port}", secret))
            for path in set(unix_sockets(family)) - set(seen.sockets):
                try:
                    modes = [
                        stat.S_IMODE(p.stat().st_mode) for p in (Path(path).parent, Path(path))
                    ]
                except FileNotFoundError:
                    continue
                seen.sockets[path] = modes[0], modes[1]
                seen.answers.add(ask(f"unix:{path}", secret))
            time.sleep(0.02)
        assert run.returncode == 0
    finally:
        end_family(run)
    return seen


def ports(family: list[psutil.Process]) -> set[tuple[str, int]]:
    """Returns the addresses and ports that any of them listens on."""
    found = set()
    for process in family:
        with contextlib.suppress(psutil.Error):
            entries = process.net_connections()
            found |= {tuple(e.laddr) for e in entries if e.status == psutil.CONN_LISTEN}
    return found


def unix_sockets(family: list[psutil.Process]) -> Iterator[str]:
    """Yields the paths of Unix sockets with a name in the file system."""
    for process in family:
        try:
            entries = process.net_connections("unix")
        except psutil.Error:
            continue
        # A connection has its listener's path, too.
        yield from (entry.laddr for entry in entries if str(entry.laddr).startswith("/"))


def ask(target: str, path: Path) -> str:
    """Asks a server for a file as one of its workers would; returns the file, or its refusal."""
    payload = api.ArtifactFilePayload(path=str(path)).SerializeToString()
    wanted = api.ArtifactInformation(
        type_urn=common_urns.artifact_types.FILE.urn, type_payload=payload
    )
    with grpc.insecure_channel(target) as channel:
        stub = artifact_api.ArtifactRetrievalServiceStub(channel)
        try:
            parts = stub.GetArtifact(artifacts.GetArtifactRequest(artifact=wanted), timeout=10)
            return b"".join(part.data for part in parts).decode()
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text("not the run's")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in_memory", "multi_threading", "multi_processing"])
def test_on_one_machine_it_listens_on_sockets_of_its_user_alone(
    corpus: Path, tmp_path: Path, secret: Path, mode: str
):
    options = ("--num-workers", "2", "--runner-options", f"direct_running_mode={mode}")
    seen = watch(corpus, tmp_path / "out", secret, *options)
    assert seen.addresses == set()
    names = {Path(path).name for path in seen.sockets}
    assert names == (set() if mode == "in_memory" else {"control", "data", "state", "logging"})
    for path, (folder, _) in seen.sockets.items():
        assert folder == 0o700, path
        assert not Path(path).parent.exists()
    if mode != "in_memory":  # Only the control server has files, so the others know no such call.
        assert seen.answers <= {"PERMISSION_DENIED", "UNIMPLEMENTED", "UNAVAILABLE"}
        assert "PERMISSION_DENIED" in seen.answers


@pytest.mark.slow
def test_pools_elsewhere_reach_it_and_get_no_other_files(
    corpus: Path, tmp_path: Path, secret: Path
):
    """The user names worker pools, and so the network; the watcher above sees such a run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    module = "apache_beam.runners.worker.worker_pool_main"
    # The pool starts its workers by the name `python`.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, "-m", module, f"--service_port={port}"]
    pool = psutil.Popen(command, env={**os.environ, "PATH": path})
    try:
        grpc.channel_ready_future(grpc.insecure_channel(f"localhost:{port}")).result(60)
        external = ["environment_type=EXTERNAL", f"environment_config=localhost:{port}"]
        options = ["--num-workers", "2", "--runner-options", *external]
        seen = watch(corpus, tmp_path / "out", secret, *options)
    finally:
        end_family(pool)
    assert "::" in seen.addresses
    assert not seen.sockets
    assert "PERMISSION_DENIED" in seen.answers
    assert seen.answers <= {"PERMISSION_DENIED", "UNIMPLEMENTED", "UNAVAILABLE"}


def test_a_file_is_handed_out_only_if_an_environment_declares_it(tmp_path: Path):
    def artifact(urn: str, payload: bytes) -> api.ArtifactInformation:
        return api.ArtifactInformation(type_urn=urn, type_payload=payload)

    types = common_urns.artifact_types
    (tmp_path / "declared.whl").write_bytes(b"code")
    (tmp_path / "other.txt").write_bytes(b"secret")
    declared, other, address = (
        artifact(
            types.FILE.urn,
            api.ArtifactFilePayload(path=f"{tmp_path}/declared.whl").SerializeToString(),
        ),
        artifact(
            types.FILE.urn,
            api.ArtifactFilePayload(path=f"{tmp_path}/other.txt").SerializeToString(),
        ),
        artifact(
            types.URL.urn,
            api.ArtifactUrlPayload(url=f"file://{tmp_path}/other.txt").SerializeToString(),
        ),
    )
    server = grpc.server(ThreadPoolExecutor(2))
    environment = api.Environment(dependencies=[declared])
    artifact_api.add_ArtifactRetrievalServiceServicer_to_server(
        DeclaredFiles([environment]), server
    )
    server.add_insecure_port(f"unix:{tmp_path}/socket")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{tmp_path}/socket") as channel:
            stub = artifact_api.ArtifactRetrievalServiceStub(channel)

            def get(wanted: api.ArtifactInformation) -> bytes:
                asked = artifacts.GetArtifactRequest(artifact=wanted)
                return b"".join(part.data for part in stub.GetArtifact(asked, timeout=10))

            assert get(declared) == b"code"
            for wanted in (other, address):
                with pytest.raises(grpc.RpcError) as refused:
                    get(wanted)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        server.stop(0)
