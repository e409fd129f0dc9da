"""Errors in one line, as a person reads them."""


def reason_of(error: BaseException) -> str:
    """Returns an error's message in one line; its type's name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
