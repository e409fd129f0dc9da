"""Writes a report as Markdown: the means over benchmarks, then the tables of each."""

from collections.abc import Callable, Sequence

from flows.report.cells import Cell, Report
from flows.report.layout import ReportBlock, TableField, report_blocks, report_notes

Link = Callable[[str, Cell], str]
"""Function from a field's text and its cell to Markdown: the text, with links to the cell."""


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


def _block_text(block: ReportBlock, link: Link | None) -> str:
    def text_of(field: TableField) -> str:
        return link(field.text, field.cell) if link and field.cell else field.text

    tables = [
        markdown_table(t.head, [[text_of(field) for field in row] for row in t.rows], t.left)
        for t in block.tables
    ]
    lines = "".join(f"- {line}\n" for line in block.lines)
    return f"## {block.title}\n\n" + "\n".join(tables) + lines
