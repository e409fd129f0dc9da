"""Unix sockets, which only their owner can open, between Beam's local runner and its workers.

FnApiRunner serves its workers over gRPC. Left to Beam, it listens on every network interface and
asks for no password, and one of its services reads any file of the user, another takes pickled
objects. Workers on this machine, threads or processes, therefore meet it at Unix sockets in a
folder that only the user may enter:

    <temporary folder>/control    instructions to workers, and files that they fetch
                       data       elements
                       state      side inputs
                       logging    log lines

Worker pools on other machines need ports of the network, without a password, as their protocol has
none: only a user who names such pools in `runner_options` gets these. Files that the pipeline does
not declare are refused in either case.
"""

import os
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Generator
from typing import Any

import grpc
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_api
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_api
from apache_beam.portability.api import beam_provision_api_pb2_grpc as provision_api
from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.portability.artifact_service import ArtifactRetrievalService
from apache_beam.runners.portability.fn_api_runner import worker_handlers as beam
from apache_beam.runners.worker.data_plane import BeamFnDataServicer
from apache_beam.utils import thread_pool_executor
from google.protobuf import json_format, text_format

_THREADS, _PROCESSES = python_urns.EMBEDDED_PYTHON_GRPC, python_urns.SUBPROCESS_SDK
_LOCAL_ENVIRONMENTS = {python_urns.EMBEDDED_PYTHON, _THREADS, _PROCESSES}
"""Environments whose workers run on this machine."""

_LONGEST_PARENT = 70
"""Longest path of the folder for temporary files that leaves room for a socket's [bytes].

A socket's path has at most 103 bytes on macOS, and 107 on Linux.
"""

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
]
"""Options of `GrpcServer` in Beam 2.77."""


def use_private_sockets() -> None:
    """Puts the server and the workers below in place of Beam's own, in this process."""
    beam.GrpcServer = PrivateServer
    beam.WorkerHandler.register_environment(_THREADS, bytes)(ThreadWorker)
    beam.WorkerHandler.register_environment(_PROCESSES, bytes)(ProcessWorker)


class DeclaredFiles(ArtifactRetrievalService):
    """Hands out the files that a pipeline's environments declare, and no others."""

    def __init__(self, environments: Any) -> None:
        super().__init__(_open_uncompressed)
        # By their bytes: messages of protobuf cannot be members of a set.
        self._declared = {
            artifact.SerializeToString(deterministic=True)
            for environment in environments
            for artifact in environment.dependencies
        }

    def GetArtifact(self, request: Any, context: Any = None) -> Generator[Any]:
        """Yields the parts of a file; ends the call if the pipeline does not declare it."""
        if request.artifact.SerializeToString(deterministic=True) not in self._declared:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not a file of this pipeline")
        yield from super().GetArtifact(request, context)


class PrivateServer(beam.GrpcServer):
    """Beam's services for workers, on sockets if all workers are on this machine, else on ports.

    Differs from Beam's own in where it listens and in the files that it hands out.
    """

    def __init__(self, state: Any, provision_info: Any, worker_manager: Any) -> None:
        self.state, self.provision_info = state, provision_info
        environments = worker_manager._environments.values()
        is_on_one_machine = {environment.urn for environment in environments} <= _LOCAL_ENVIRONMENTS
        self._folder = _socket_folder() if is_on_one_machine else None

        # Beam gives each service a server of its own, so that none waits for another's buffers.
        self.control_server, self.control_port = self._open_grpc_server("control")
        self.data_server, self.data_port = self._open_grpc_server("data")
        self.state_server, self.state_port = self._open_grpc_server("state")
        self.logging_server, self.logging_port = self._open_grpc_server("logging")

        self.control_handler = beam.BeamFnControlServicer(worker_manager)
        self.data_plane_handler = BeamFnDataServicer(beam.DATA_BUFFER_TIME_LIMIT_MS)
        fn_api.add_BeamFnControlServicer_to_server(self.control_handler, self.control_server)
        provision_api.add_ProvisionServiceServicer_to_server(
            beam.BasicProvisionService(provision_info.provision_info, worker_manager),
            self.control_server,
        )
        artifact_api.add_ArtifactRetrievalServiceServicer_to_server(
            DeclaredFiles(environments), self.control_server
        )
        fn_api.add_BeamFnDataServicer_to_server(self.data_plane_handler, self.data_server)
        fn_api.add_BeamFnStateServicer_to_server(beam.GrpcStateServicer(state), self.state_server)
        fn_api.add_BeamFnLoggingServicer_to_server(beam.BasicLoggingService(), self.logging_server)
        for server in (
            self.logging_server,
            self.state_server,
            self.data_server,
            self.control_server,
        ):
            server.start()

    def close(self) -> None:
        """Ends the services."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()

    def _open_grpc_server(self, name: str) -> tuple[grpc.Server, Any]:
        """Returns a server and where it listens: a socket's address or a port's number."""
        # A socket's address needs no port, and its folder's mode (0700) is the password.
        threads: Any = thread_pool_executor.shared_unbounded_instance()
        server = grpc.server(threads, options=_OPTIONS)
        if self._folder is None:
            return server, server.add_insecure_port("[::]:0")
        address = f"unix:{urllib.parse.quote(os.path.join(self._folder.name, name))}"
        server.add_insecure_port(address)
        return server, address


# Beam's decorators, which register workers, hide that these are classes.
_THREAD_WORKER: Any = beam.EmbeddedGrpcWorkerHandler
_PROCESS_WORKER: Any = beam.SubprocessSdkWorkerHandler


class _AtSocket(beam.GrpcWorkerHandler):
    """A worker on this machine: the addresses of its services are those of sockets."""

    def port_from_worker(self, port: Any) -> str:
        return port if isinstance(port, str) else super().port_from_worker(port)


class ThreadWorker(_AtSocket, _THREAD_WORKER):
    """A worker in a thread (`multi_threading`)."""


class ProcessWorker(_AtSocket, _PROCESS_WORKER):
    """A worker in a process (`multi_processing`).

    Beam's own opens a port of its own for the process's log lines; here they go to the server's.
    """

    def start_worker(self) -> None:
        """Starts the process, and a thread that waits for it."""
        self.worker_thread = threading.Thread(name="run_worker", target=self._run_worker_process)
        self.worker_thread.start()

    def _run_worker_process(self) -> None:
        # The environment that Beam's own handler sets, except that log lines go to the server's
        # service instead of a port that is opened for this process alone.
        options = self.provision_info.provision_info.pipeline_options
        environment = {
            **os.environ,
            "CONTROL_API_SERVICE_DESCRIPTOR": _descriptor_text(
                self.control_api_service_descriptor()
            ),
            "LOGGING_API_SERVICE_DESCRIPTOR": _descriptor_text(
                self.logging_api_service_descriptor()
            ),
            "PIPELINE_OPTIONS": json_format.MessageToJson(options),
            "WORKER_ID": self.worker_id,
        }
        command = self._worker_command_line.decode()
        with beam.SUBPROCESS_LOCK:
            process = subprocess.Popen(command, shell=True, env=environment)
        # Whatever happens, no worker outlives its handler.
        try:
            if process.wait():
                raise RuntimeError(f"a worker process ended with code {process.returncode}")
        finally:
            process.kill()


def _socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder that only this user may enter, and whose path leaves room for a socket's."""
    parent = tempfile.gettempdir()
    is_short = len(os.fsencode(parent)) <= _LONGEST_PARENT
    return tempfile.TemporaryDirectory(prefix="parcel-beam-", dir=parent if is_short else "/tmp")


def _open_uncompressed(path: str) -> Any:
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _descriptor_text(descriptor: endpoints_pb2.ApiServiceDescriptor) -> str:
    return text_format.MessageToString(descriptor)
