"""Parts whose records have several numbers of images: pictures and clips with captions, say.

    caption      those with the fewest
    caption@16   those with 16

Whoever trains has batches of one number only, so a dataset keeps them apart.
"""

from collections.abc import Iterable

_MARK = "@"
"""In no task's name."""


def shaped(part: str, num_images: int) -> str:
    """Returns the name of a part's records that have so many images."""
    return f"{part}{_MARK}{num_images}"


def plain(part: str) -> str:
    """Returns the name that a part has without its number of images."""
    return part.partition(_MARK)[0]


def part_names(found: Iterable[str]) -> dict[str, str]:
    """Returns the names of parts, of all that are `shaped`: the smallest of a name is plain."""
    names: dict[str, str] = {}
    smallest: set[str] = set()
    for one in sorted(found, key=lambda part: int(part.partition(_MARK)[2])):
        names[one] = one if plain(one) in smallest else plain(one)
        smallest.add(plain(one))
    return names
