"""Formats errors for people, in one line."""


def reason_of(error: BaseException) -> str:
    """Returns an error's message in one line, or the name of its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
