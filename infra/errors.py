"""Formats errors for people, in one line; and the error of a wrong request."""


class ConfigError(ValueError):
    """The user's request is wrong; the message is one line that names the field and the cure."""


def one_line_message(error: BaseException) -> str:
    """Returns an error's message in one line, or the name of its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
