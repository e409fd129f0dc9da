"""A contact sheet as one self-contained HTML file."""

import base64
import html
import io
import re

from PIL import Image

from pipelines.records.boxes import color_of
from pipelines.sheet.cards import RecordCard, Sheet

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; color: #202428; background: #f4f5f6 }
h1 { font-size: 22px; margin: 0 } .summary { color: #5a6068; margin: 4px 0 20px }
.cards { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start }
.card { background: #fff; border: 1px solid #dde0e3; border-radius: 6px; padding: 12px;
        max-width: 476px; min-width: 224px }
.card.still { width: 224px } .card.pair { width: 456px }
.pictures { display: flex; flex-wrap: wrap; gap: 8px }
figure { margin: 0 } figcaption { font-size: 11px; color: #5a6068; text-align: center }
img { display: block } .id { font-size: 11px; color: #5a6068; overflow-wrap: anywhere }
.tag { background: #e8ebee; border-radius: 3px; padding: 1px 6px; font-size: 12px }
dl { margin: 8px 0 } dt { font-size: 11px; color: #5a6068 } dd { margin: 0 0 4px;
     overflow-wrap: anywhere } dd b { font-weight: 600 }
table { border-collapse: collapse; background: #fff; margin-top: 8px }
td, th { border: 1px solid #dde0e3; padding: 4px 8px; text-align: left; vertical-align: top;
         overflow-wrap: anywhere; font-size: 13px }
"""

_OBJECT = re.compile(r"\[(\d+)( mask)?\]")


def to_html(sheet: Sheet) -> str:
    """Returns the page; everything from the dataset is escaped."""
    cards = "\n".join(_card_html(card) for card in sheet.cards) or "<p>No records.</p>"
    title = html.escape(sheet.title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>
<body><h1>{title}</h1><p class="summary">{html.escape(sheet.summary)}</p>
<div class="cards">
{cards}
</div>
{_rejects_html(sheet)}
</body></html>
"""


def _card_html(card: RecordCard) -> str:
    # Pictures are inside the page, so it is one file that can be sent.
    figures = "".join(
        f'<figure><img src="{_data_uri(picture)}" width="{picture.width}" '
        f'height="{picture.height}" alt="">'
        + (f"<figcaption>{html.escape(caption)}</figcaption>" if caption else "")
        + "</figure>"
        for picture, caption in zip(card.pictures, card.captions, strict=True)
    )
    lines = "".join(f"<dt>{label}</dt><dd>{_text_html(text)}</dd>" for label, text in card.lines)
    # Frames have captions (their times), stills have none; a still alone or a pair sets the width.
    kind = "frames" if any(card.captions) else "still" if len(card.pictures) == 1 else "pair"
    return (
        f'<div class="card {kind}"><div class="pictures">{figures}</div><dl>{lines}</dl>'
        f'<span class="tag">{html.escape(card.part)}</span> '
        f'<span class="tag">{html.escape(card.lang)}</span>'
        f'<div class="id">{html.escape(card.id)}<br>{html.escape(card.source)}</div></div>'
    )


def _text_html(text: str) -> str:
    """Returns the text with each box's number in the color of the box."""

    def colored(marker: re.Match[str]) -> str:
        red, green, blue = color_of(int(marker[1]) - 1)
        return f'<b style="color:rgb({red},{green},{blue})">{marker[0]}</b>'

    return _OBJECT.sub(colored, html.escape(text)) or "<i>empty</i>"


def _rejects_html(sheet: Sheet) -> str:
    if not sheet.rejects:
        return ""
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td>{html.escape(v)}</td>" for v in (r.stage, r.reason, r.id, r.source))
        + "</tr>"
        for r in sheet.rejects
    )
    return (
        f"<h2>Rejects: {len(sheet.rejects)} of {sheet.num_rejects}</h2>\n<table><tr><th>stage</th>"
        f"<th>reason</th><th>id</th><th>source</th></tr>\n{rows}</table>"
    )


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
