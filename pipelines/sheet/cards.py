"""The cards of a contact sheet: one per record of a dataset, and the rejects."""

import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from PIL import Image

from infra.typed_json import parse_typed
from pipelines.records.boxes import OBJECT, paint_box, paint_mask, pixel_box
from pipelines.records.dataset import DESCRIPTION, Dataset
from pipelines.records.rle import decode_mask
from pipelines.records.schema import MASK_MARKER, Record, Reject

STILL_PX = 224
FRAME_PX = 112
"""Side of a picture, and of a video's frame, on the sheet [pixels]."""

HYGIENE = "hygiene.json"
_MAX_TEXTS = 3
_MAX_SIGNS = 400
"""Most suffixes of a record, and most characters of each text, that are shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordCard:
    """The card of one record.

    Attributes:
      id, part, lang, source: the record's own.
      pictures: its pictures, with boxes and masks drawn.
      captions: one per picture: its window, if there are several, and times; "" for stills.
      lines: (label, text) of prefix, suffixes and answers; a box reads "[1]", "[1 mask]" with mask.
    """

    id: str
    part: str
    lang: str
    source: str
    pictures: tuple[Image.Image, ...]
    captions: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """Everything on a contact sheet."""

    title: str
    summary: str
    cards: tuple[RecordCard, ...]
    rejects: tuple[Reject, ...]
    num_rejects: int


def make_sheet(place: str, *, limit: int, part: str | None, rejects: int) -> Sheet:
    """Returns the sheet of a prepared dataset.

    Args:
      place: the dataset: a folder, or a place in a bucket.
      limit: most records, spread evenly over the parts and within each.
      part: the only part to show; None shows all.
      rejects: most rejects, spread evenly.

    Raises:
      KeyError: if there is no such part; the error lists the parts there are.
    """
    dataset = Dataset(place)
    if part is not None and part not in dataset.parts:
        raise KeyError(f"part must be one of {', '.join(dataset.parts)}, got {part!r}.")
    parts = {n: p for n, p in sorted(dataset.parts.items()) if len(p) and part in (None, n)}
    cards: list[RecordCard] = []
    # What is left is divided anew at each part, so that a small part's share goes to the later
    # ones.
    for number, (name, records) in enumerate(parts.items()):
        share = (limit - len(cards)) // (len(parts) - number)
        cards += [_make_card(name, record) for record in spread_evenly(records, share)]
    all_rejects = list(dataset.rejects())
    counts = ", ".join(f"{name} {len(records)}" for name, records in dataset.parts.items())
    info = dataset.info
    summary = (
        f"{info.num_inputs} inputs = {info.num_records} records + {info.num_rejected} rejects · "
        f"{info.image_px} px · {counts}"
    )
    if info.num_composed:
        summary += f" · {info.num_composed} over a background"
    # Only datasets that were screened for duplicates have this file.
    hygiene_file = dataset.place.local_folder((DESCRIPTION, HYGIENE)) / HYGIENE
    if hygiene_file.is_file():
        counts_of_hygiene = parse_typed(
            dict[str, int], hygiene_file.read_bytes(), str(hygiene_file)
        )
        summary += " · " + ", ".join(
            f"{name} {value}" for name, value in sorted(counts_of_hygiene.items())
        )
    return Sheet(
        title=info.name,
        summary=summary,
        cards=tuple(cards),
        rejects=tuple(spread_evenly(all_rejects, rejects)),
        num_rejects=len(all_rejects),
    )


T = TypeVar("T")


def spread_evenly(items: Sequence[T], limit: int) -> Iterator[T]:
    """Yields at most `limit` items, at even distances."""
    count = min(limit, len(items))
    return (items[i * len(items) // count] for i in range(count))


def _make_card(part: str, record: Record) -> RecordCard:
    frames = bool(record.frame_requested)
    side = FRAME_PX if frames else STILL_PX
    # Small copies; the sheet holds no picture at full size.
    pictures = []
    for data in record.images:
        with Image.open(io.BytesIO(data)) as image:
            pictures.append(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
    suffixes = record.suffixes[:_MAX_TEXTS]
    # Where each suffix has prefixes of its own, they are shown before it; else one prefix before
    # all.
    prefixes = [" | ".join(match) for match in record.prefixes[:_MAX_TEXTS]] or [record.prefix]
    texts = []
    for prefix, suffix in itertools.zip_longest(prefixes, suffixes):
        texts += [("prefix", prefix)] if prefix is not None else []
        texts += [("suffix", suffix)] if suffix is not None else []
    for read, written in record.turns[:_MAX_TEXTS]:
        texts += [("prefix", read), ("suffix", written)]
    if record.answers and record.answers[:1] != record.suffixes[:1]:
        texts.append(("answers", ", ".join(record.answers)))
    # Only now: which texts are shown decides which boxes and masks are painted.
    boxes = [match for _, text in texts for match in OBJECT.finditer(text)]
    # Suffixes past `_MAX_TEXTS` are not shown, so neither are their masks, which come in order.
    masks = record.masks[: sum(suffix.count(MASK_MARKER) for suffix in suffixes)]
    for picture in pictures:
        _draw_objects(picture, masks, [pixel_box(match[1], picture.size) for match in boxes])
    times = zip(record.frame_requested, record.frame_decoded, strict=True)
    size = len(record.window())
    window = [f"{i // size + 1}: " if record.num_windows > 1 else "" for i in range(len(pictures))]
    return RecordCard(
        id=record.id,
        part=part,
        lang=record.lang,
        source=record.source,
        pictures=tuple(pictures),
        captions=tuple(
            f"{window_label}{requested:.2f} → {decoded:.2f} s"
            for window_label, (requested, decoded) in zip(window, times, strict=True)
        )
        if record.frame_requested
        else ("",) * len(pictures),
        lines=_number_boxes(texts),
    )


def _draw_objects(picture: Image.Image, masks: Sequence[str], boxes: list) -> None:
    """Draws boxes and masks. Masks belong to the last boxes, those of the suffixes."""
    first = max(len(boxes) - len(masks), 0)
    for number, text in enumerate(masks, start=first):
        mask = Image.fromarray(decode_mask(text).astype(np.uint8) * 255)
        paint_mask(picture, mask.resize(picture.size, Image.Resampling.NEAREST), (0, 0), number)
    for number, box in enumerate(boxes):
        paint_box(picture, box, number)


def _number_boxes(texts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Replaces each box in the texts by its number; `html` and `png` color them alike."""
    lines, number = [], 0
    for label, text in texts:
        # "<loc…>x4<mask> circle" ─▶ "[1 mask] circle"; numbers run over all texts of a card.
        parts, end = [], 0
        for match in OBJECT.finditer(text):
            number += 1
            masked = text.startswith(MASK_MARKER, match.end()) or bool(match[2])
            parts += [text[end : match.start()], f"[{number} mask]" if masked else f"[{number}]"]
            end = match.end() + (
                len(MASK_MARKER) if text.startswith(MASK_MARKER, match.end()) else 0
            )
        line = "".join([*parts, text[end:]])
        lines.append((label, line if len(line) <= _MAX_SIGNS else line[:_MAX_SIGNS] + "…"))
    return tuple(lines)
