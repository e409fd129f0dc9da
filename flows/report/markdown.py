"""Writes a report as Markdown: the means over benchmarks, then the tables of each."""

import re
from collections.abc import Callable, Iterable, Sequence

from flows.report.cells import Cell, Report
from flows.report.layout import ReportBlock, TableField, report_blocks, report_notes
from infra.errors import printable

Link = Callable[[str, Cell], str]
"""Function from a field's text and its cell to Markdown: the text, with links to the cell."""


_MARKS = {1: "**", 2: "*"}
"""Place -> what stands around a text: bold for the best, italic for the second best."""


def to_markdown(report: Report, *, link: Link | None = None) -> str:
    """Returns the blocks of a report, then notes that explain its columns.

    Args:
      report: a report of at least one benchmark.
      link: makes the links of the scores, for whoever shows the text beside pages of the cells;
        default no links.
    """
    blocks = [_block_text(block, link) for block in report_blocks(report)]
    return "\n".join([*blocks, *(f"{note}\n" for note in report_notes(report))])


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Returns a Markdown table; `left` holds the numbers of the columns aligned to the left."""
    rule = [":--" if i in left else "--:" for i in range(len(head))]
    rows = [[text.replace("|", "\\|") for text in row] for row in (head, rule, *lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


_MARKUP = re.compile(
    r"[\\`*\[\]<>|~&]|(?<![^\W_])_|_(?![^\W_])"  # An underscore within a word is none.
    r"|:(?=//)|(?<=\w)@|(?<=www)\.|\A#+|\A[-+](?=\s)"
)
"""What Markdown, or the HTML in it, would take for markup; addresses become links by themselves."""


def plain(text: object) -> str:
    """Returns a value as Markdown that shows it as it is, in one line: text of a stranger.

    "a | <b>" -> "a &#124; &#60;b&#62;"; in a fenced block or a code span, it would be wrong.
    """
    shown = printable(" ".join(str(text).split()))
    return _MARKUP.sub(lambda match: "".join(f"&#{ord(each)};" for each in match[0]), shown)


def fenced(language: str, lines: Iterable[str]) -> list[str]:
    """Returns the lines of a block that is shown as it is, whatever is in it."""
    shown = [printable(line) for line in lines]
    ticks = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return [f"{fence}{language}", *shown, fence]


def mermaid_label(text: str) -> str:
    """Returns a text as the label of a box in Mermaid, which takes some signs for its own."""
    return re.sub(r"[^\w .,:/=()+-]", lambda match: f"#{ord(match[0])};", " ".join(text.split()))


def _block_text(block: ReportBlock, link: Link | None) -> str:
    def text_of(field: TableField) -> str:
        text = link(field.text, field.cell) if link and field.cell else field.text
        mark = _MARKS.get(field.place, "")
        return f"{mark}{text}{mark}"

    tables = [
        markdown_table(t.head, [[text_of(field) for field in row] for row in t.rows], t.left)
        for t in block.tables
    ]
    return f"## {block.title}\n\n" + "\n".join(tables)
