"""Makes items of up to seven task kinds from one web image, depending on its annotations.

    caption            caption de                      -> Ein roter Kreis
    grounded_caption   caption <loc><loc><loc><loc>    -> red circle
    ocr                ocr                             -> all text, in raster order
    vqa                answer en How many circles?     -> 2
    question           question en 2                   -> How many circles?
    detect             detect circle ; square          -> <loc>x4 circle ; <loc>x4 square
    segment            segment circle                  -> <loc>x4<mask> circle

Source: PaliGemma, arXiv:2407.07726, section 3.2.5.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping

from pipelines.records.hashing import stable_hash
from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import MASK_MARKER, BadInput, Reject
from pipelines.sources.item import BOX_MARKER, Item, Media

STAGE = "read"
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors that malformed annotations cause below; OverflowError comes from JSON's Infinity."""

SEPARATOR = " ; "


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebImage:
    """One web image: a reference to its pixels, its caption and its metadata."""

    id: str
    media: Media
    text: str
    metadata: Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Object:
    label: str
    box: tuple[float, ...]
    mask: str | None


def web_image_items(
    sample: WebImage, *, per_task: int, tasks: Collection[str] = ()
) -> Iterator[Item | Reject]:
    """Yields a sample's items, at most `per_task` of each kind in `tasks`; empty takes all kinds.

    If there are more languages, objects or questions, the items whose ids have the smallest hashes
    are taken. A malformed annotation is a reject of its task only; a sample without any caption or
    annotation is a reject.
    """
    is_annotated = False
    # Task by task: a malformed box costs the detection, not the caption.
    for task, make_items in TASKS.items():
        if tasks and task not in tasks:
            continue
        try:
            items = list(make_items(sample))
        except _MALFORMED as error:
            reason = f"malformed annotation: {reason_of(error)}"
            items = [_reject_task(sample, task, reason)]
        # Rejects count as found: such a sample has annotations, if bad ones.
        is_annotated |= bool(items)
        yield from sorted(items, key=lambda item: stable_hash(item.id))[:per_task]
    if not is_annotated:
        yield _reject_task(sample, next(iter(tasks), "caption"), "no caption or annotation")


def _reject_task(sample: WebImage, task: str, reason: str) -> Reject:
    return Reject(id=f"{sample.id}#{task}", stage=STAGE, reason=reason, source=sample.media.source)


def _task_item(sample: WebImage, task: str, name: str, prefix: str, suffix: str, **fields) -> Item:
    """Returns an item; its id names the task and, if there may be several, the annotation."""
    meta = sample.metadata
    size = None
    if fields.get("boxes") and "width" in meta and "height" in meta:
        size = (int(meta["width"]), int(meta["height"]))
    return Item(
        id=f"{sample.id}#{task}" + (f".{name}" if name else ""),
        part=task,
        media=(sample.media,),
        prefix=prefix,
        suffixes=(suffix,),
        task=task,
        annotated_size=size,
        **fields,
    )


def _caption_items(sample: WebImage) -> Iterator[Item]:
    captions = dict(sample.metadata.get("captions") or {})
    language = sample.metadata.get("LANGUAGE") or "en"
    # The sample's own text is one more language, unless `captions` has that language already.
    captions.setdefault(language, sample.text)
    for lang, caption in sorted(captions.items()):
        if text := _one_line(caption):
            yield _task_item(sample, "caption", lang, f"caption {lang}", text, lang=lang)


def _grounded_caption_items(sample: WebImage) -> Iterator[Item]:
    for i, annotated in enumerate(_read_objects(sample)):
        prefix = f"caption {BOX_MARKER}"
        yield _task_item(
            sample, "grounded_caption", str(i), prefix, annotated.label, boxes=(annotated.box,)
        )


def _ocr_items(sample: WebImage) -> Iterator[Item]:
    words = [
        (_one_line(w["text"]), tuple(map(float, w["box"])))
        for w in sample.metadata.get("ocr") or ()
    ]
    text = " ".join(_raster_order([w for w in words if w[0]]))
    if text:
        yield _task_item(sample, "ocr", "", "ocr", text)


def _vqa_items(sample: WebImage) -> Iterator[Item]:
    for i, (question, answer, lang) in enumerate(_question_pairs(sample)):
        prefix = f"answer {lang} {question}"
        yield _task_item(sample, "vqa", str(i), prefix, answer, lang=lang, answers=(answer,))


def _question_items(sample: WebImage) -> Iterator[Item]:
    for i, (question, answer, lang) in enumerate(_question_pairs(sample)):
        yield _task_item(
            sample, "question", str(i), f"question {lang} {answer}", question, lang=lang
        )


def _question_pairs(sample: WebImage) -> Iterator[tuple[str, str, str]]:
    """Yields question, answer and language of every pair."""
    for pair in sample.metadata.get("qa") or ():
        yield _one_line(pair["question"]), _one_line(str(pair["answer"])), pair.get("lang") or "en"


def _detect_items(sample: WebImage) -> Iterator[Item]:
    objects = _read_objects(sample)
    if objects:
        labels = sorted({annotated.label for annotated in objects})
        suffix = SEPARATOR.join(f"{BOX_MARKER} {annotated.label}" for annotated in objects)
        prefix = f"detect {SEPARATOR.join(labels)}"
        yield _task_item(sample, "detect", "", prefix, suffix, boxes=tuple(t.box for t in objects))


def _segment_items(sample: WebImage) -> Iterator[Item]:
    objects = _read_objects(sample)
    for label in sorted({annotated.label for annotated in objects}):
        labelled = [annotated for annotated in objects if annotated.label == label]
        masks = tuple(annotated.mask for annotated in labelled if annotated.mask)
        # All or none: a target that names two circles must have two masks.
        if len(masks) == len(labelled):
            suffix = SEPARATOR.join([f"{BOX_MARKER}{MASK_MARKER} {label}"] * len(labelled))
            boxes = tuple(annotated.box for annotated in labelled)
            prefix = f"segment {label}"
            yield _task_item(sample, "segment", label, prefix, suffix, boxes=boxes, masks=masks)


TASKS: dict[str, Callable[[WebImage], Iterator[Item]]] = {
    "caption": _caption_items,
    "grounded_caption": _grounded_caption_items,
    "ocr": _ocr_items,
    "vqa": _vqa_items,
    "question": _question_items,
    "detect": _detect_items,
    "segment": _segment_items,
}


def _read_objects(sample: WebImage) -> list[_Object]:
    """Returns the annotated objects from top to bottom, then left to right."""
    objects = [
        _Object(
            label=_one_line(raw["label"]),
            box=tuple(map(float, raw["box"])),
            mask=json.dumps(raw["mask"]) if raw.get("mask") else None,
        )
        for raw in sample.metadata.get("objects") or ()
    ]
    return sorted((t for t in objects if t.label), key=lambda t: (t.box[1], t.box[0], t.label))


def _raster_order(words: list[tuple[str, tuple[float, ...]]]) -> list[str]:
    """Returns the words line by line; a word is on a line if its top is above the line's middle.

    A line's middle is that of its topmost word.
    """
    lines: list[list[tuple[float, str]]] = []
    middle = float("-inf")
    for text, (x0, y0, _, y1) in sorted(words, key=lambda w: (w[1][1], w[1][0])):
        # Three words with tops 10, 14 and 40, each 20 high: the first line's middle is 20, so 10
        # and 14 are one line, from left to right, and 40 begins the next.
        if y0 >= middle:
            lines.append([])
            middle = (y0 + y1) / 2
        lines[-1].append((x0, text))
    return [text for line in lines for _, text in sorted(line)]


def _one_line(text: str) -> str:
    """Returns the text on one line: a newline separates prefix from suffix in the model's input."""
    if not isinstance(text, str):
        raise BadInput(f"text must be a text, got {kind_of(text)}")
    return " ".join(text.split())
