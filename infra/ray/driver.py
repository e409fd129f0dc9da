"""The process that talks to Ray for a `Cluster`.

Ray can end the process that talks to it: a driver that has lost the head for a minute exits, and
one whose raylet died waits for ever. Neither may happen to a study, so the driver is a separate
process. It reads orders from a socket, answers with what tasks yield, and exits as soon as the
socket closes or its cluster is damaged. The kernel then ends the head that it started (Ray requests
that with PR_SET_PDEATHSIG), and the study sees its end of the socket close.

Functions and what they yield pass through as bytes, since only workers import the study's code. The
bytes are pickles, which is safe: only parent and child hold the pair of sockets, and anybody who
can put bytes into the cluster can run code there anyway.
"""

import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from infra.errors import one_line_message, traceback_text

_POLL_INTERVAL = 0.5
"""Interval between two looks at the head's processes [s]."""
_CANCEL_DELAY = 1.0
"""Time in which a task whose reader has left may end by itself [s]."""
_RESOURCES = ("CPU", "GPU", "TPU")


def main() -> None:
    """Serves orders until the socket closes."""
    # The only open end of this process: orders come in here, and answers go out. When the study
    # dies, `recv` raises, and the cluster goes with this process.
    link: Any = Connection(int(sys.argv[1]))
    sending = threading.Lock()

    def send(*message: Any) -> None:
        with sending:
            link.send(message)

    try:
        import ray

        _connect_to_ray(link.recv())
        send("ready", {name: int(ray.cluster_resources().get(name, 0)) for name in _RESOURCES})
    except Exception as error:
        send("failed", f"{type(error).__name__}: {error}")
        os._exit(1)
    # Of every task that runs: what Ray yields of it, and the thread that streams this.
    tasks: dict[int, Any] = {}
    threads: dict[int, threading.Thread] = {}
    # Ray itself may not notice for a minute, or never, that its head or raylet is gone.
    threading.Thread(target=_watch_head, daemon=True).start()
    while True:
        for number in [n for n, thread in threads.items() if not thread.is_alive()]:
            del threads[number]
        try:
            order = link.recv()
        except (EOFError, OSError):
            os._exit(0)
        # A thread for each task, since streaming its items blocks; this loop stays free to cancel
        # it.
        match order:
            case ("run", number, payload, options):
                work = (number, payload, options, tasks, send)
                threads[number] = threading.Thread(target=_stream_task, args=work, daemon=True)
                threads[number].start()
            case ("cancel", number):
                work = (number, tasks, threads.get(number))
                threading.Thread(target=_cancel_task, args=work, daemon=True).start()
            case ("stop",):
                ray.shutdown()
                os._exit(0)


def _connect_to_ray(options: dict[str, Any]) -> None:
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
        **options,
    )


def _watch_head() -> None:
    """Exits when the head started here cannot start workers any more: all its work is lost."""
    from ray._private import worker

    # Only the process that started the head knows its pids; on another's cluster there is nothing
    # to watch.
    node: Any = worker._global_node
    if node is None or not node.is_head():
        return
    started = node.all_processes
    vital = [info.process for name in ("gcs_server", "raylet") for info in started.get(name, [])]
    # Its processes outlive their files, but every worker that they start from then on would fail.
    # Whoever cleans the folder of temporary files may leave some of them.
    files = (node.get_logs_dir_path(), node.raylet_socket_name, node.plasma_store_socket_name)
    while all(process.poll() is None for process in vital) and all(map(os.path.exists, files)):
        time.sleep(_POLL_INTERVAL)
    os._exit(3)


def _stream_task(
    number: int, payload: bytes, options: dict[str, Any], tasks: dict[int, Any], send: Any
) -> None:
    import ray
    from ray import exceptions

    try:
        # max_retries=0: a retry by Ray could run beside an attempt that it wrongly takes for dead.
        # The caller retries, and the commit in the store decides.
        remote = ray.remote(_in_worker).options(num_returns="streaming", max_retries=0, **options)
        items: Any = remote.remote(payload)
        tasks[number] = items
        for reference in items:
            send("item", number, ray.get(reference))
        send("end", number)
    except exceptions.OutOfMemoryError as error:
        send("lost", number, f"ran out of memory: {error}")
    except (exceptions.RayError, ConnectionError) as error:
        # A task's own exception comes as an item; an error here means that its worker died.
        send("lost", number, f"died: {type(error).__name__}: {error}")
    except Exception as error:
        send("failed", number, f"{type(error).__name__}: {error}")
    finally:
        tasks.pop(number, None)


def _cancel_task(number: int, tasks: dict[int, Any], thread: threading.Thread | None) -> None:
    """Kills the worker of a task that does not end by itself."""
    # Never at once: a reader often leaves with the last item. Where a cancellation and the end of
    # its task cross, Ray 2.60 ends this process ("tried to complete task that was not pending"), or
    # gives the worker that is about to be killed to another task. The thread is None where the task
    # has ended already.
    if thread is None:
        return
    thread.join(_CANCEL_DELAY)
    if (items := tasks.get(number)) is not None:
        import ray

        ray.cancel(items, force=True)


def _in_worker(payload: bytes) -> Iterator[bytes]:
    """Runs the generator function in `payload` and yields its items as (kind, value), pickled.

    The driver passes the items on unchanged.
    """
    # Tagged items, since an exception that the function raises must not look like one of Ray's:
    # that would count as a lost worker, and be tried again.
    function, args, folder = pickle.loads(payload)
    os.chdir(folder)  # That of the command, as relative paths mean.
    try:
        for item in function(*args):
            yield cloudpickle.dumps(("item", item))
    except Exception as error:
        text = traceback_text(error)
        try:
            pickled_error = cloudpickle.dumps(("error", error, text))
            # Fails for exceptions that cannot be made from their arguments.
            pickle.loads(pickled_error)
        except Exception:
            plain = RuntimeError(f"{type(error).__name__}: {one_line_message(error)}")
            pickled_error = cloudpickle.dumps(("error", plain, text))
        yield pickled_error


def driver_connection() -> tuple[Connection, int]:
    """Returns this process's end of a socket, and the file descriptor of the driver's end."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs.detach()


if __name__ == "__main__":
    # Run from the imported module, not from `__main__`: workers look `_in_worker` up by module.
    from infra.ray import driver

    driver.main()
