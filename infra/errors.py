"""Formats errors for people, in one line; and the error of a wrong request."""

import errno
import importlib
import traceback

MAKE_ROOM = "; make room, then give the same command again: what is made already is re-used"
"""What to do about a full disk."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that say so."""

_MAX_LINE = 1000
"""Longest line shown [characters]: a value that somebody's file has may be of any length."""


class ConfigError(ValueError):
    """The user's request is wrong; the message is one line that names the field and the cure."""


def one_line_message(error: BaseException) -> str:
    """Returns an error's message in one line, or the name of its type if it has no message.

    That of a full disk ends with what to do about it.
    """
    cure = MAKE_ROOM if isinstance(error, OSError) and error.errno in DISK_FULL else ""
    return one_line(f"{error}{cure}") or type(error).__name__


def one_line(text: str) -> str:
    """Returns a text in one line of printable characters, without its middle if it is long."""
    words = " ".join(text.split())
    # A value from a file may hold anything, such as what a terminal takes for a command.
    shown = words if words.isprintable() else "".join(map(_printable, words))
    if len(shown) <= _MAX_LINE:
        return shown
    # The beginning names the field, and the end the cure.
    return f"{shown[: _MAX_LINE // 2]} … {shown[-_MAX_LINE // 4 :]}"


def _printable(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def raised_at(error: BaseException, file: str = "") -> str:
    """Returns where code that was called raised an error, as "path/to/scores.py:12"; "" if unknown.

    Args:
      error: the error, caught by the caller of this code.
      file: file whose innermost line is meant; "", or a file that has no part in it, takes the
        innermost line of all, without those of Python's import.
    """
    # The first frame is the caller's own.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if not frame.filename.startswith("<") and frame.filename != importlib.__file__
    ]
    own = [frame for frame in frames if frame.filename == file] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
