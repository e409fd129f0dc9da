"""A few items on a page of the UI: a small picture, the texts, and what was answered."""

import base64
import html
import io
import re
from collections.abc import Iterable, Iterator

from PIL import Image

from flows.commands.boxes import paint_box
from flows.pages.cards import Card

_PX = 96
"""Longer side of a picture; a page holds them within its text [pixels]."""
_QUALITY = 80
_TAG = re.compile(r"<[^>]*>")
"""Of a box's number; all else is escaped."""
_SIGNS = 200
"""Of a text."""


def sample_table(cards: Iterable[Card]) -> Iterator[str]:
    """Yields the lines of an HTML table, a row per item; nothing where there are none.

    HTML within Markdown, and no empty line: nothing in the texts is taken for Markdown.
    """
    rows = [
        f"<tr><td>{_picture(card)}</td><td><b>{_cut(card.prefix)}</b><br>"
        f"{_cut(', '.join(card.answers[:4]))}</td>"
        + "".join(
            f"<td>{_cut(text)} ({100 * score:.0f})</td>"
            for *_, answers in card.told
            for _, text, score in answers
        )
        + "</tr>"
        for card in cards
    ]
    if rows:
        yield from ("## A few of it", "", "<table>", *rows, "</table>", "")


def _picture(card: Card) -> str:
    if card.record is None:
        return ""
    with Image.open(io.BytesIO(card.record.images[0])) as stored:
        image = stored.convert("RGB")
    image.thumbnail((_PX, _PX))
    width, height = (side / 1000 for side in image.size)
    for box in card.boxes:
        corners = (
            box.x * width,
            box.y * height,
            (box.x + box.width) * width,
            (box.y + box.height) * height,
        )
        left, top, right, bottom = map(round, corners)
        paint_box(image, (left, top, right, bottom), box.number - 1)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" width="{_PX}" alt="">'


def _cut(text: str) -> str:
    """Returns a text, escaped already, in one line of bounded length."""
    plain = html.unescape(_TAG.sub("", " ".join(text.split())))
    return html.escape(plain if len(plain) <= _SIGNS else plain[:_SIGNS] + "…")
