"""Formats errors for people, in one line; and the error of a wrong request."""

_MAX_LINE = 1000
"""Longest line shown [characters]: a value that somebody's file has may be of any length."""


class ConfigError(ValueError):
    """The user's request is wrong; the message is one line that names the field and the cure."""


def one_line_message(error: BaseException) -> str:
    """Returns an error's message in one line, or the name of its type if it has no message."""
    return one_line(str(error)) or type(error).__name__


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
