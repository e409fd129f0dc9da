"""Formats errors for people, in one line; and the error of a wrong request."""

import importlib
import traceback


class ConfigError(ValueError):
    """The user's request is wrong; the message is one line that names the field and the cure."""


def one_line_message(error: BaseException) -> str:
    """Returns an error's message in one line, or the name of its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


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
