"""The table of sample items on a page of the UI: a small picture, the texts and the answers."""

import base64
import html
import io
import re
from collections.abc import Iterable, Iterator

from PIL import Image

from flows.pages.record_cards import Card
from pipelines.records.boxes import paint_box

_PX = 96
"""Longer side of a picture, which is embedded in the text of a page in the UI [pixels]."""
_QUALITY = 80
_TAG = re.compile(r"<[^>]*>")
"""Matches the tags around a box's number; all other markup in a text is escaped already."""
_SIGNS = 200
"""Largest length of a text [characters]."""


def sample_table(cards: Iterable[Card]) -> Iterator[str]:
    """Yields the lines of an HTML table, one row per item; nothing without items.

    The table is HTML without empty lines, so that Markdown does not interpret the texts in it.
    """
    rows = [*card_rows(cards)]
    if rows:
        yield from ("## A few of it", "", "<table>", *rows, "</table>", "")


def card_rows(cards: Iterable[Card], px: int = _PX) -> Iterator[str]:
    """Yields a row of an HTML table per item, with a picture of at most `px` pixels."""
    # Picture, prompt and answers, then what each column's seeds answered.
    for card in cards:
        yield (
            f"<tr><td>{_sample_picture_html(card, px)}</td>"
            f"<td><b>{_cut_sample_text(card.prefix)}</b><br>"
            f"{_cut_sample_text(', '.join(card.answers[:4]))}</td>"
            + "".join(
                f"<td>{_cut_sample_text(text)}"
                f"{'' if score is None else f' ({100 * score:.0f})'}</td>"
                for *_, answers in card.columns
                for _, text, score in answers
            )
            + "</tr>"
        )


def _sample_picture_html(card: Card, px: int) -> str:
    if card.record is None or not card.record.images:
        return ""
    with Image.open(io.BytesIO(card.record.images[0])) as stored:
        image = stored.convert("RGB")
    # Shrunk first: boxes are in thousandths of the picture, so they fit any size, and a frame that
    # is painted on the small picture stays visible.
    image.thumbnail((px, px))
    paint_boxes(image, card)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" width="{px}" alt="">'


def paint_boxes(image: Image.Image, card: Card) -> None:
    """Paints the boxes of an item's texts on its picture, of any size."""
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


def _cut_sample_text(text: str) -> str:
    """Returns an escaped text without tags, on one line of bounded length, escaped again."""
    plain = html.unescape(_TAG.sub("", " ".join(text.split())))
    return html.escape(plain if len(plain) <= _SIGNS else plain[:_SIGNS] + "…")
