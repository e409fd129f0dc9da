"""A call in a child process, whose output comes out here: for notebooks, and scripts like them.

A notebook's process is its user's. There IPython runs, which Beam takes for its own runner of
notebooks; an event loop, a signal handler and a Matplotlib backend are set; output has no file. A
run changes all of these, works with threads that no interrupt reaches, and ends its process at a
signal. So it gets a process in which it is alone, as a command has:

    here                       link                 child
    call_in_child       --  function, values  -->   calls it in its main thread
    writes to its cell  <-  (pipes)           --    prints
    returns, or raises  <-  value or error    --    ends, and with it all that it started
    is interrupted      --  SIGINT            -->   ends in order, as at Ctrl-C
    dies                --  the link closes   -->   the same
"""

import codecs
import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any, ParamSpec, TextIO, TypeVar

from infra.errors import one_line_message
from infra.processes.module import module_command, python_path
from infra.processes.signals import exit_now, install_signal_handlers

P = ParamSpec("P")
R = TypeVar("R")

_END_TIMEOUT = 10.0
"""Time for the child to end, after its answer or a signal, before it is killed [s]."""
_TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables that have output drawn as on a terminal, whatever it goes to."""
_LOOK_EVERY = 0.2
"""Longest wait for output between two looks at whether a child has ended that should [s]."""


def call_in_child(
    words: list[str], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Calls a function in a child process, with its output below this call; returns its result.

    Args:
      words: the request as its user made it, which is the child's `sys.argv`.
      function: function of a module, by which the child imports it.
      *args: arguments of the function; they and the result are pickled.
      **kwargs: the same.

    Raises:
      Exception: what the function raises.
      RuntimeError: if the child ends without an answer.
    """
    ours, theirs = Pipe()
    # A file of this process is the child's too, as a terminal is. A notebook's output is none.
    outputs = [
        None if now is usual else subprocess.PIPE
        for now, usual in ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))
    ]
    with contextlib.closing(ours):
        # In its own session: an interrupt that reaches all of a group comes here, and from here to
        # the child, once.
        with contextlib.closing(theirs):
            process = subprocess.Popen(
                module_command(
                    __name__, str(theirs.fileno()), *words, python=(sys.executable, "-u")
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                env=_child_environment(),
                start_new_session=True,
            )
        try:
            with contextlib.suppress(BrokenPipeError):  # It has ended: its output says why.
                ours.send_bytes(pickle.dumps((function, args, kwargs)))
            try:
                answer = _relay_child_output(process, ours)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                _relay_child_output(process, ours, time.monotonic() + _END_TIMEOUT)
                raise
        finally:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
    if answer is None:
        raise RuntimeError(f"{' '.join(words)} ended with code {process.returncode}.")
    has_returned, value = answer
    if not has_returned:
        raise value
    return value


def _child_environment() -> dict[str, str]:
    """Returns the child's environment, in which imports find the same modules as here."""
    own = {
        "PYTHONPATH": python_path(),
        # A character that cannot be encoded must not end the call.
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        # The backend is one for windows or cells; the child has none, and may not even have the
        # package of it.
        "MPLBACKEND": "agg",
    }
    # Jupyter has all processes draw as on a terminal: a cell would show a bar at each of its steps.
    return {name: value for name, value in os.environ.items() if name not in _TERMINAL} | own


def _relay_child_output(
    process: subprocess.Popen[bytes], link: Connection, deadline: float | None = None
) -> tuple[bool, Any] | None:
    """Passes the child's output on until it has ended; returns its answer, or None without one."""
    answer: tuple[bool, Any] | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None and not source.closed:
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
                selector.register(source, selectors.EVENT_READ, (sink, decoder))
        while True:
            ready = selector.select(_LOOK_EVERY)
            for key, _ in ready:
                if key.data is not None:
                    if not _pass_on(key.fd, *key.data):
                        selector.unregister(key.fileobj)
                    continue
                try:
                    answer = pickle.loads(link.recv_bytes())
                    deadline = time.monotonic() + _END_TIMEOUT
                except (EOFError, OSError):
                    selector.unregister(link)
            # What it started may keep its pipes open: its own end counts, once all is read.
            if not ready and process.poll() is not None:
                return answer
            if deadline is not None and time.monotonic() > deadline:
                return answer


def _pass_on(fd: int, sink: TextIO, decoder: codecs.IncrementalDecoder) -> bool:
    """Writes what there is to read to a stream; returns whether more may come."""
    data = os.read(fd, 1 << 16)
    if text := decoder.decode(data, final=not data):
        sink.write(text)
        sink.flush()
    return bool(data)


def main() -> None:
    """Answers the call that comes through the link, and ends with the process at its other end."""
    number, *words = sys.argv[1:]
    os.set_inheritable(int(number), False)  # Else what is started here would keep it open.
    link = Connection(int(number))
    install_signal_handlers()
    sys.argv = words
    request = link.recv_bytes()
    threading.Thread(target=_end_with_parent, args=(link,), daemon=True).start()
    answer: tuple[bool, Any]
    try:
        function, args, kwargs = pickle.loads(request)
        answer = True, function(*args, **kwargs)
    except Exception as error:
        answer = False, error
    try:
        text = pickle.dumps(answer)
        pickle.loads(text)  # Fails for errors that cannot be made from their arguments.
    except Exception:
        text = pickle.dumps((False, RuntimeError(one_line_message(answer[1]))))
    sys.stdout.flush()
    sys.stderr.flush()
    link.send_bytes(text)


def _end_with_parent(link: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        link.recv_bytes()  # Nothing comes.
    # As if a person had ended it: the run is settled, and can be continued.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_TIMEOUT)
    exit_now(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
