"""The process that talks to Ray for a `Cluster`.

Ray ends the process that talks to it: a driver that has lost the head for a minute exits, one
whose raylet died waits for ever. Neither may happen to a study, so the driver is a process of its
own. It reads orders from a socket, answers with what tasks yield, and leaves as soon as the
socket closes or its cluster is damaged; the kernel then ends the head it started (Ray asks for
that with PR_SET_PDEATHSIG), and the other end of the socket hears of it.

What is run, and what it yields, passes through as bytes: only workers know the study's code. They
are pickles. None comes from outside: the socket is a pair that only parent and child hold, and who
can put bytes into the cluster can run code there anyway.
"""

import collections
import dataclasses
import logging
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

_LOOK_EVERY = 0.5
"""Between two looks at the head's processes, or at the nodes [s]."""
_COUNTED = ("CPU", "GPU", "TPU")


@dataclasses.dataclass
class _Task:
    """A task that was handed to Ray.

    Attributes:
      number: of its stream.
      options: Ray's, for it.
      place_within: how long it may wait for a node that is large enough [s].
      items: what Ray gave for it; None before that.
      node: id of the node that it runs on; "" before it does.
      placeable: when a node was last large enough for it [s, monotonic].
    """

    number: int
    options: dict[str, Any]
    place_within: float
    items: Any = None
    node: str = ""
    placeable: float = dataclasses.field(default_factory=time.monotonic)


def main() -> None:
    """Serves orders until the socket closes."""
    link: Any = Connection(int(sys.argv[1]))
    sending = threading.Lock()

    def send(*message: Any) -> None:
        with sending:
            link.send(message)

    try:
        import ray

        _connect(link.recv())
        send("ready", list(_nodes().values()))
    except Exception as error:
        send("failed", f"{type(error).__name__}: {error}")
        os._exit(1)
    tasks: dict[int, _Task] = {}
    threading.Thread(target=_watch_head, daemon=True).start()
    threading.Thread(target=_watch_tasks, args=(tasks, send), daemon=True).start()
    while True:
        try:
            order = link.recv()
        except (EOFError, OSError):
            os._exit(0)
        match order:
            case ("run", number, payload, options, place_within):
                task = tasks[number] = _Task(number, options, place_within)
                work = (task, payload, tasks, send)
                threading.Thread(target=_run, args=work, daemon=True).start()
            case ("cancel", number):
                if number in tasks and tasks[number].items is not None:
                    ray.cancel(tasks[number].items, force=True)
            case ("stop",):
                ray.shutdown()
                os._exit(0)


def _connect(options: dict[str, Any]) -> None:
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
        **options,
    )


def _watch_head() -> None:
    """Leaves when a process of the head started here is gone: what runs there is lost."""
    from ray._private import worker

    node: Any = worker._global_node
    if node is None or not node.is_head():
        return
    started = node.all_processes
    vital = [info.process for name in ("gcs_server", "raylet") for info in started.get(name, [])]
    while all(process.poll() is None for process in vital):
        time.sleep(_LOOK_EVERY)
    os._exit(3)


def _nodes() -> dict[str, dict[str, int]]:
    """Returns node id -> total CPUs, GPUs and TPU chips, for every living node."""
    import ray

    return {
        node["NodeID"]: {name: int(node["Resources"].get(name, 0)) for name in _COUNTED}
        for node in ray.nodes()
        if node["Alive"]
    }


def _run(task: "_Task", payload: bytes, tasks: "dict[int, _Task]", send: Any) -> None:
    import ray
    from ray import exceptions

    number = task.number
    try:
        remote = ray.remote(_in_worker).options(
            num_returns="streaming", max_retries=0, **task.options
        )
        items: Any = remote.remote(payload)
        task.items = items
        for reference in items:
            if task.node:
                send("item", number, ray.get(reference))
            else:
                task.node = ray.get(reference)
        send("end", number)
    except exceptions.OutOfMemoryError as error:
        send("lost", number, f"ran out of memory: {error}")
    except (exceptions.RayError, ConnectionError) as error:
        # A task's own exception comes as an item: what comes here befell its worker or node.
        send("lost", number, f"died: {type(error).__name__}: {error}")
    except Exception as error:
        send("failed", number, f"{type(error).__name__}: {error}")
    finally:
        tasks.pop(number, None)


def _watch_tasks(tasks: "dict[int, _Task]", send: Any) -> None:
    """Tells what Ray does not: that a task waits for a node that there is not, or is lost with one.

    Ray hears of a node that was stopped within its health checks, but whoever waits for a task on
    it only when the connection to its worker is given up, seven minutes later.
    """
    import ray

    while True:
        time.sleep(_LOOK_EVERY)
        if not tasks:
            continue
        try:
            nodes = _nodes()
        except Exception:  # A head that does not answer says nothing about the nodes.
            continue
        for task in list(tasks.values()):
            if task.node and task.node not in nodes:
                tasks.pop(task.number, None)
                send("lost", task.number, "died with its node.")
            elif task.node or not (reason := _no_place(task.options, nodes)):
                task.placeable = time.monotonic()
            elif time.monotonic() - task.placeable > task.place_within:
                tasks.pop(task.number, None)
                send("failed", task.number, reason)
                ray.cancel(task.items, force=True)


def _no_place(options: dict[str, Any], nodes: Mapping[str, Mapping[str, int]]) -> str:
    """Returns why no node could ever run a task; "" if one could, were it free."""
    tpus = options["resources"].get("TPU", 0)
    wanted = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "TPU": tpus}
    if any(all(node[name] >= n for name, n in wanted.items()) for node in nodes.values()):
        return ""
    there = collections.Counter(_words(node) for node in nodes.values())
    found = ", ".join(f"{count} with {words}" for words, count in there.items())
    return f"no node of the cluster has {_words(wanted)}; there are {found or 'no nodes'}."


def _words(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{n:g} {name}" for name, n in resources.items() if n) or "0 CPU"


def _in_worker(payload: bytes) -> Iterator[bytes | str]:
    """Yields its node, then what the generator function in `payload` does: (kind, value), pickled.

    Every item but the first passes through the driver as it is.
    """
    import ray

    yield ray.get_runtime_context().get_node_id()
    function, args = pickle.loads(payload)
    try:
        for item in function(*args):
            yield cloudpickle.dumps(("item", item))
    except Exception as error:
        text = traceback.format_exc()
        try:
            told = cloudpickle.dumps(("error", error, text))
            pickle.loads(told)  # Some exceptions cannot be made again from their arguments.
        except Exception:
            plain = RuntimeError(f"{type(error).__name__}: {error}")
            told = cloudpickle.dumps(("error", plain, text))
        yield told


def connect_pair() -> tuple[Connection, int]:
    """Returns this process's end of a socket, and the number of the driver's end to inherit."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs.detach()


if __name__ == "__main__":
    # As its module, not as `__main__`: workers look `_in_worker` up there.
    from infra.ray import driver

    driver.main()
