"""Formats errors for people, in one line; and the error of a wrong request."""

import difflib
import errno
import importlib
import traceback
from collections.abc import Iterable

MAKE_ROOM = "; make room, then give the same command again: what is made already is reused"
"""What to do about a full disk."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that say so."""

_MAX_LINE = 1000
"""Longest line shown [characters]: a value that somebody's file has may be of any length."""
_MAX_READ = 10_000
"""Most of the beginning and of the end of a text that are looked at for a line [characters]."""


class ConfigError(ValueError):
    """The user's request is wrong; the message is one line that names the field and the cure."""


def one_line_message(error: BaseException) -> str:
    """Returns an error's message in one line, or the name of its type if it has no message.

    That of a full disk ends with what to do about it.
    """
    cure = MAKE_ROOM if isinstance(error, OSError) and error.errno in DISK_FULL else ""
    return one_line(f"{error}{cure}") or type(error).__name__


def one_line(text: str) -> str:
    """Returns a text in one line of printable characters, without credentials.

    Of a long one the middle is left out.
    """
    from infra.credentials import redact_text  # Its patterns take a moment; --help needs none.

    # What comes from outside may be as long as a request: the middle is left out here, too.
    if len(text) > 2 * _MAX_READ:
        text = f"{text[:_MAX_READ]} … {text[-_MAX_READ:]}"
    # Before lines become one: a credential may be a value on lines of its own.
    shown = printable(" ".join(redact_text(text).split()))
    if len(shown) <= _MAX_LINE:
        return shown
    # The beginning names the field, and the end the cure.
    return f"{shown[: _MAX_LINE // 2]} … {shown[-_MAX_LINE // 4 :]}"


def traceback_text(error: BaseException) -> str:
    """Returns an error with its traceback, as Python prints it, without credentials."""
    from infra.credentials import redact_text

    return redact_text("".join(traceback.format_exception(error)))


def redact_error(error: BaseException) -> None:
    """Redacts credentials in the message of an error that a library will log or send."""
    from infra.credentials import redact_text

    error.args = tuple(redact_text(a) if isinstance(a, str) else a for a in error.args)


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns a hint, as "; did you mean parcel?", for a misspelt name; "" if none is near.

    Args:
      word: the name that was given.
      names: the accepted names.
      cutoff: least share of letters that two near names have in common.
    """
    close = difflib.get_close_matches(word, [*names], n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def printable(text: str) -> str:
    """Returns a text of a stranger with its control characters, and those of direction, escaped.

    A value from a file or a server may hold anything, such as what a terminal takes for a command.
    """
    if text.isprintable():  # Most are, and a page has dozens.
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


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
