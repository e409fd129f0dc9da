r"""What reaches a terminal: its control characters are our own alone.

Captions, licences, names and errors are text of strangers, and a terminal takes some characters for
commands: to paint, to move, to set its title, to turn the direction of what follows. So standard
output and standard error escape them, and what we draw ourselves goes past that:

    print, typer.echo     ─▶  PlainStream: "\\u001b[2J"   ─▶  terminal or file
    progress_line, rich   ────────────────────────────────▶  (of rich: `terminal_console`)
"""

import io
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

_COMMANDS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)"  # A carriage return would overwrite the line.
    "|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters but for the ends of lines and tabs; marks of direction; invisible tags."""


def printable_lines(text: str) -> str:
    r"""Returns a text in which all that a terminal would obey is escaped; lines stay lines.

    "\\x1b[2Jred" -> r"\\u001b[2Jred". The escapes are those of JSON, so JSON stays JSON.
    """
    return _COMMANDS.sub(_escape_terminal_command, text)


def _escape_terminal_command(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


class PlainStream:
    """A text stream that escapes what a terminal would obey; all else is the stream's own.

    Args:
      stream: the stream that is written to.

    Attributes:
      rich_proxied_file: the stream itself; rich looks for this name, and draws there.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Writes a text, escaped; returns its length."""
        self.rich_proxied_file.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes texts, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def escape_output() -> None:
    """Has all that this process prints escaped; a notebook's output, which is no file, stays."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, PlainStream(stream))


def drawing_stream(stream: TextIO) -> TextIO:
    """Returns the stream below `escape_output`, for who draws and has escaped the texts."""
    return cast(TextIO, getattr(stream, "rich_proxied_file", stream))


def terminal_console(**options: Any) -> "Console":
    """Returns a console of rich that draws its styles, and escapes the texts in them."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(printable_lines(segment.text), segment.style)

    return PlainConsole(**options)
