"""A contact sheet as one self-contained HTML file."""

import base64
import io
import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from pipelines.records.boxes import color_of
from pipelines.sheet.cards import Sheet

_OBJECT = re.compile(r"\[(\d+)( mask)?\]")


def to_html(sheet: Sheet) -> str:
    """Returns the page, pictures and all; everything from the dataset is escaped."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"data_uri": _data_uri, "color_boxes": _color_boxes}
    return templates.get_template("sheet.html").render(sheet=sheet)


def _color_boxes(text: str) -> Markup:
    """Returns the text with each box's number in the color of the box."""

    def colored(marker: re.Match[str]) -> str:
        red, green, blue = color_of(int(marker[1]) - 1)
        return f'<b style="color:rgb({red},{green},{blue})">{marker[0]}</b>'

    return Markup(_OBJECT.sub(colored, str(escape(text))) or "<i>empty</i>")


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
