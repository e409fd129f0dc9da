"""The pages of the documentation, and the commands that they show."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HEREDOC = re.compile(r"<<(\w+)\n.*?^\1$", re.DOTALL | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text."""

    page: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page, in their order."""
    name = str(page.relative_to(ROOT))
    return [Block(name, found[1], found[2]) for found in _FENCE.finditer(page.read_text())]


def commands_of(block: Block) -> Iterator[str]:
    """Yields the command lines of a block, without comments and without what they print."""
    if block.language == "console":
        lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    elif block.language == "sh":
        lines = _HEREDOC.sub("", block.text).replace("\\\n", " ").splitlines()
    else:
        lines = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if words:
            yield shlex.join(words)


def commands() -> dict[str, list[str]]:
    """Returns command line -> the pages that show it."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for block in blocks(page):
            for line in commands_of(block):
                found.setdefault(line, []).append(block.page)
    return found
