"""Hints for misspelt names: the nearest name that is accepted."""

import difflib
from collections.abc import Collection, Iterable


def with_nearest(names: Iterable[object], accepted: Collection[str]) -> str:
    """Returns all names in one text, each that is not accepted with the nearest that is.

    with_nearest(["imge", "text", "zzz"], ("image", "text")) is "imge (image?), text, zzz".
    """
    return ", ".join(_with_hint(str(name), accepted) for name in names)


def misspelt(names: Iterable[object], accepted: Collection[str]) -> str:
    """Returns, as `with_nearest`, only the names that are nearly an accepted one; "" if none is."""
    texts = map(str, names)
    return ", ".join(hint for text in texts if (hint := _with_hint(text, accepted)) != text)


def _with_hint(name: str, accepted: Collection[str]) -> str:
    # Capitals do not count: Image is as near to image as can be.
    by_small = {word.lower(): word for word in accepted}
    near = difflib.get_close_matches(name.lower(), by_small, n=1)
    return f"{name} ({by_small[near[0]]}?)" if near and name not in accepted else name
