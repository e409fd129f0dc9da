"""Names of parts whose records differ in their number of images, for example pictures and clips.

    caption      records with the fewest images
    caption@16   records with 16 images
    caption@0    records without images, where others of the name have some

A training batch has one number of images per record, so a dataset keeps them in separate parts.
"""

from collections.abc import Iterable

_MARK = "@"
"""Separator that is in no task's name."""


def part_with_images(part: str, num_images: int) -> str:
    """Returns the full name of a part's records with `num_images` images: `caption@16`."""
    return f"{part}{_MARK}{num_images}"


def part_without_images(part: str) -> str:
    """Returns a part's name without its number of images."""
    return part.partition(_MARK)[0]


def part_names(shaped_names: Iterable[str]) -> dict[str, str]:
    """Maps full names of parts to names in a dataset: the one with fewest images becomes plain.

    One without images is plain only where it is the only one of its name.
    """
    names: dict[str, str] = {}
    # caption@16, caption@1, vqa@1: "caption" is those with one image, "caption@16" keeps its
    # number, "vqa" is the only one of its kind.
    smallest: set[str] = set()
    for shaped_name in sorted(shaped_names, key=_fewest_images):
        names[shaped_name] = (
            shaped_name
            if part_without_images(shaped_name) in smallest
            else part_without_images(shaped_name)
        )
        smallest.add(part_without_images(shaped_name))
    return names


def _fewest_images(shaped_name: str) -> tuple[bool, int]:
    num_images = int(shaped_name.partition(_MARK)[2])
    return num_images == 0, num_images
