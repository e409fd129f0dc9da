"""A contact sheet as one picture."""

import functools
import re
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from infra.plotting import import_matplotlib
from pipelines.records.boxes import color_of
from pipelines.sheet.cards import RecordCard, Sheet

_WIDTH = 1616
_MARGIN, _GAP, _PAD = 24, 16, 12
_INK, _PALE, _PAPER, _LINE = (32, 36, 40), (90, 96, 104), (244, 245, 246), (221, 224, 227)
_TEXT, _SMALL, _TITLE = 14, 11, 22
_WIDE = 472
"""Inner width of a card with several pictures [pixels]."""

_OBJECT = re.compile(r"(\[\d+(?: mask)?\])")


def to_png(sheet: Sheet) -> Image.Image:
    """Returns the sheet; cards stand in rows, each row as high as its highest card."""
    cards = [_draw_card(card) for card in sheet.cards]
    # Cards are drawn first, since a card's height is known only then; rows are filled greedily.
    rows: list[list[Image.Image]] = [[]]
    for card in cards:
        used_width = sum(c.width + _GAP for c in rows[-1])
        if rows[-1] and used_width + card.width > _WIDTH - 2 * _MARGIN:
            rows.append([])
        rows[-1].append(card)
    head = [(sheet.title, _TITLE, _INK), (sheet.summary, _TEXT, _PALE)]
    tail: list[tuple[str, int, tuple[int, int, int]]] = []
    if sheet.rejects:
        tail.append((f"Rejects: {len(sheet.rejects)} of {sheet.num_rejects}", 18, _INK))
        tail += [(f"{r.stage}: {r.reason} · {r.id}", _TEXT, _INK) for r in sheet.rejects]
    # Text blocks are drawn before the page, too: the page is as high as all of them together.
    head_block = _draw_text(head)
    tail_block = _draw_text(tail) if tail else None
    heights = [max((card.height for card in row), default=0) + _GAP for row in rows]
    height = (
        2 * _MARGIN + head_block.height + sum(heights) + (tail_block.height if tail_block else 0)
    )
    page = Image.new("RGB", (_WIDTH, height), _PAPER)
    page.paste(head_block, (_MARGIN, _MARGIN))
    y = _MARGIN + head_block.height
    for row, step in zip(rows, heights, strict=True):
        x = _MARGIN
        for card in row:
            page.paste(card, (x, y))
            x += card.width + _GAP
        y += step
    if tail_block:
        page.paste(tail_block, (_MARGIN, y))
    return page


def _draw_card(card: RecordCard) -> Image.Image:
    single = len(card.pictures) == 1 and not any(card.captions)
    width = card.pictures[0].width if single else _WIDE
    strip = _draw_strip(card, width)
    texts = [(f"{label}: {text or '(empty)'}", _TEXT, _INK) for label, text in card.lines]
    texts += [(f"{card.part} · {card.lang}", _SMALL, _PALE), (card.id, _SMALL, _PALE)]
    below = _draw_text(texts, width=width, paper=(255, 255, 255))
    page = Image.new(
        "RGB", (width + 2 * _PAD, strip.height + below.height + 2 * _PAD), (255, 255, 255)
    )
    page.paste(strip, (_PAD, _PAD))
    page.paste(below, (_PAD, _PAD + strip.height))
    edge = (0, 0, page.width - 1, page.height - 1)
    ImageDraw.Draw(page).rectangle(edge, outline=_LINE)
    return page


def _draw_strip(card: RecordCard, width: int) -> Image.Image:
    """Returns the pictures with their captions, side by side, in as many rows as needed."""
    side = card.pictures[0].width if card.pictures else width
    across = max((width + 8) // (side + 8), 1)
    captioned = 16 if any(card.captions) else 0
    rows = -(-len(card.pictures) // across)
    strip = Image.new("RGB", (width, rows * (side + captioned + 8)), (255, 255, 255))
    pen = ImageDraw.Draw(strip)
    for i, (picture, caption) in enumerate(zip(card.pictures, card.captions, strict=True)):
        x, y = i % across * (side + 8), i // across * (side + captioned + 8)
        strip.paste(picture, (x, y))
        pen.text(
            (x + side / 2, y + side + 2), caption, fill=_PALE, font=_sheet_font(10), anchor="ma"
        )
    return strip


def _draw_text(
    texts: list[tuple[str, int, tuple[int, int, int]]],
    *,
    width: int = _WIDTH - 2 * _MARGIN,
    paper: tuple[int, int, int] = _PAPER,
) -> Image.Image:
    """Returns wrapped lines of text, one paragraph each, with the boxes' numbers colored."""
    # Wrapped first: how many lines there are decides the height of the block.
    lines = [
        (line, size, ink) for text, size, ink in texts for line in _wrap_text(text, size, width)
    ]
    block = Image.new("RGB", (width, sum(size + 5 for _, size, _ in lines) + 8), paper)
    pen, y = ImageDraw.Draw(block), 0
    for line, size, ink in lines:
        x = 0.0
        # The pattern's group keeps the boxes' numbers as pieces between the others: "see [1] here"
        # is "see ", "[1]", " here".
        for piece in _OBJECT.split(line):
            number = re.match(r"\[(\d+)", piece) if _OBJECT.fullmatch(piece) else None
            pen.text(
                (x, y),
                piece,
                fill=color_of(int(number[1]) - 1) if number else ink,
                font=_sheet_font(size),
            )
            x += _sheet_font(size).getlength(piece)
        y += size + 5
    return block


def _wrap_text(text: str, size: int, width: int) -> list[str]:
    """Returns lines that fit the width; a word that is wider than a line is cut anywhere."""
    lines, line = [], ""
    for word in re.findall(r"\S+\s*|\s+", text.replace("\n", " ")):
        # A word goes on the line if it fits, on the next line if it fits there, and is cut
        # otherwise.
        while word:
            if _sheet_font(size).getlength(line + word.rstrip()) <= width:
                line, word = line + word, ""
            elif line and _sheet_font(size).getlength(word.rstrip()) <= width:
                lines, line = [*lines, line], ""
            else:
                fits = len(line + word)
                while _sheet_font(size).getlength((line + word)[:fits]) > width and fits > 1:
                    fits -= 1
                joined_line = line + word
                lines, line, word = [*lines, joined_line[:fits]], "", joined_line[fits:]
    return [*lines, line] if line or not lines else lines


@functools.cache
def _sheet_font(size: int) -> ImageFont.FreeTypeFont:
    """Returns the font that comes with Matplotlib; it covers most scripts but East Asian ones."""
    path = Path(import_matplotlib().get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)
