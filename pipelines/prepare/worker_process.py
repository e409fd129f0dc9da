"""The processes of a `WorkerPool`: `python -m pipelines.prepare.worker_process SOCKET…`.

The program reads a job from its input, imports all that the work needs, and forks a worker for each
socket: imports cost time and memory once, however many workers there are. Workers answer requests
(step, arguments) until their socket closes. The program itself waits until its input ends, which it
also does when the process at the other end is killed, and then kills the workers.
"""

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from PIL import Image

from infra.errors import one_line_message, traceback_text
from pipelines.prepare.job import PrepareJob
from pipelines.prepare.steps import Step, Worker

Request = tuple[Step, tuple[Any, ...]]
Answer = tuple[str, list[Any]]
"""(error in one line or "", results)"""


def main(sockets: Sequence[int]) -> None:
    """Forks the workers, and kills them when the input ends."""
    # Ctrl-C reaches all processes of the terminal. Their end is the input's, without tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job: PrepareJob = pickle.load(sys.stdin.buffer)
    # Pillow loads the usual formats at the first picture, and the code's digest is computed once:
    # here for all workers.
    Image.preinit()
    _ = job.process_code
    workers = []
    for number, socket in enumerate(sockets):
        pid = os.fork()
        if pid == 0:
            # A socket shows the end of its worker only if no other worker holds it too.
            for other in (*sockets[:number], *sockets[number + 1 :]):
                _close_worker_socket(other)
            _serve_worker_requests(job, Connection(socket))
        workers.append(pid)
        _close_worker_socket(socket)
    sys.stdin.buffer.read()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)


def _close_worker_socket(socket: int) -> None:
    try:
        os.close(socket)
    except OSError:  # Closed before this worker was forked.
        return


def _serve_worker_requests(job: PrepareJob, connection: Connection) -> None:
    """Answers requests until the connection ends, then ends the process."""
    status = 1
    try:
        worker = None
        while True:
            step, arguments = connection.recv()
            try:
                # Not before the first request: an error that it notes is one of the graph's run.
                worker = worker or Worker(job)
                with worker.note_errors():
                    answer = "", step(worker, *arguments)
            except Exception as error:
                answer = one_line_message(error), []
            connection.send(answer)
    except (EOFError, BrokenPipeError):
        status = 0
    except Exception as error:
        print(traceback_text(error), file=sys.stderr)
    finally:
        # Not `sys.exit`: a fork must not run what its parent has planned for its own end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
