"""Tables and short lists for a terminal."""

from collections.abc import Iterator, Sequence


def align_columns(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, rule: bool = False
) -> Iterator[str]:
    """Yields the lines of aligned columns, the first set to the left, the others to the right.

    Args:
      titles: titles of the columns.
      rows: cells of each row.
      rule: whether a line of dashes separates the titles from the rows.
    """
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    dashes = [["-" * width for width in widths]] if rule else []
    for cells in (titles, *dashes, *rows):
        others = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        yield "  ".join([cells[0].ljust(widths[0]), *others]).rstrip()


def abbreviate_list(names: Sequence[str], most: int) -> str:
    """Returns names as one text, of which only the first `most` are named, and the rest counted."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str) -> str:
    """Returns a number of things, as "1 step" or "2,000 steps"; the noun takes an s."""
    return f"{number:,} {noun}{'s'[: number != 1]}"
