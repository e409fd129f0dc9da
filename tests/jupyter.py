"""A real kernel of Jupyter, as a notebook has, without a notebook's server."""

import os
import time
from pathlib import Path

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.e2e.conftest import environment
from tests.processes import end_family


class Kernel:
    """A kernel of its own process, as a notebook has.

    Attributes:
      folder: the notebook's folder.

    Args:
      folder: the same.
      store: the store that its functions take.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        self._manager = KernelManager(kernel_name="python3")
        # As a notebook's server starts it: Jupyter sets the backend in the kernel, not the test.
        env = environment(store) | {"PARCEL_KEY": os.environ["PARCEL_KEY"]}
        env.pop("MPLBACKEND", None)
        self._manager.start_kernel(env=env, cwd=str(folder))
        self._client: BlockingKernelClient = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=180)
        self.pid: int = int(self.run("import os; print(os.getpid())"))

    def start(self, code: str) -> str:
        """Starts a cell; returns its id, for `finish`."""
        return self._client.execute(code)

    def finish(self, cell: str, timeout: float = 900) -> tuple[str, str]:
        """Returns what a cell printed, and the name of the error that ended it or ""."""
        printed, error = "", ""
        deadline = time.monotonic() + timeout
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            content = message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                error = content["ename"]
                printed += "\n".join(content["traceback"])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed, error

    def run(self, code: str) -> str:
        """Returns what a cell prints, which must end well."""
        printed, error = self.finish(self.start(code))
        assert not error, printed
        return printed

    def interrupt(self) -> None:
        """Does as the button of that name."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """Ends the kernel as a lost machine would, and all that it started."""
        end_family(psutil.Process(self.pid))
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
