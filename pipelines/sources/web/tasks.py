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

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self

from pipelines.records.hashing import stable_hash
from pipelines.records.nearest import misspelt
from pipelines.records.reasons import reason_of
from pipelines.records.schema import MASK_MARKER, BadInput, Reject
from pipelines.sources.reading.item import BOX_MARKER, Item, Media
from pipelines.sources.reading.values import (
    answer_of,
    box_of,
    is_absent,
    language_of,
    rows_under,
    text_of,
    value_under,
)

STAGE = "read"
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors that malformed annotations cause below; OverflowError comes from JSON's Infinity."""

SEPARATOR = " ; "

CAPTIONS = ("caption", "text", "TEXT", "txt")
"""Fields of a row, or of a JSON member, that may hold the caption; the first that does counts."""

ANNOTATIONS = ("captions", "ocr", "objects", "qa")

_READ = frozenset((*CAPTIONS, *ANNOTATIONS, "LANGUAGE", "width", "height"))
"""Fields that make the items of an image, or are compared with it."""

_OF_DOWNLOAD = frozenset(
    {
        *("error_message", "exif", "key", "original_height", "original_width", "status", "url"),
        *("md5", "sha256", "sha512"),
    }
)
"""What img2dataset notes of a download beside the caption."""

_DATA_JUICER_TOKEN = re.compile(r"<\|?__dj__\w+\|?>")
"""Placeholders that data-juicer puts in captions (`<__dj__image>`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebImage:
    """One web image: a reference to its pixels, its captions and its metadata.

    Attributes:
      id: the part before "#" of its records' ids.
      media: reference to its pixels.
      captions: its captions in the language `LANGUAGE` of its metadata, as they were found.
      metadata: its annotations; absent values are left out (`values.without_absent`).
    """

    id: str
    media: Media
    captions: tuple[Any, ...] = ()
    metadata: Mapping

    @classmethod
    def from_fields(cls, identity: str, media: Media, fields: Mapping, caption: str = "") -> Self:
        """Returns the image of a table's row or of an archive's JSON member, which are read alike.

        Args:
          identity: its id.
          media: reference to its pixels.
          fields: the row or the member, without absent values.
          caption: caption from elsewhere, which counts instead of one in `fields`.
        """
        captions = [caption] if caption.strip() else []
        for field in () if captions else CAPTIONS:
            if captions := list(filter(_is_caption, _values_of_field(fields.get(field)))):
                break
        return cls(id=identity, media=media, captions=_without_tokens(captions), metadata=fields)

    def unread_fields(self, others_read: Collection[str]) -> Iterator[str]:
        """Yields what of its fields is in no item, each as the reason of an omission.

        Args:
          others_read: fields that are read for other reasons, such as those of pictures.
        """
        for field in self.metadata:
            if not any(field in fields for fields in (_READ, _OF_DOWNLOAD, others_read)):
                yield f"field {field}, which web does not read"
        # Of two captions in one language one counts; the other is named. What cannot even be
        # compared is a reject where it is read.
        with contextlib.suppress(*_MALFORMED):
            chosen = _words_of(self.captions)
            for field in CAPTIONS:
                texts = list(filter(_is_caption, _values_of_field(self.metadata.get(field))))
                if texts and _words_of(_without_tokens(texts)) != chosen:
                    yield f"field {field}: another caption than the one that is read"
            language = language_of(self.metadata.get("LANGUAGE"), "LANGUAGE")
            listed = _values_of_field(_captions_by_language(self, language).get(language))
            if listed and chosen and _words_of(listed) != chosen:
                yield "a caption beside another one of its language in captions, which is read"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _QuestionPair:
    question: str
    answers: tuple[str, ...]
    lang: str


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
        yield from (item for item in items if isinstance(item, Reject))
        good = [item for item in items if isinstance(item, Item)]
        yield from sorted(good, key=lambda item: stable_hash(item.id))[:per_task]
    if not is_annotated:
        names = misspelt(sample.metadata, (*CAPTIONS, *ANNOTATIONS))
        reason = f"no caption or annotation{'; ' * bool(names)}{names}"
        yield _reject_task(sample, next(iter(tasks), "caption"), reason)


def _reject_task(sample: WebImage, task: str, reason: str) -> Reject:
    return Reject(id=f"{sample.id}#{task}", stage=STAGE, reason=reason, source=sample.media.source)


def _task_item(
    sample: WebImage, task: str, name: str, prefix: str, *suffixes: str, **fields: Any
) -> Item:
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
        suffixes=suffixes,
        task=task,
        annotated_size=size,
        **fields,
    )


def _web_caption_items(sample: WebImage) -> Iterator[Item | Reject]:
    language = language_of(sample.metadata.get("LANGUAGE"), "LANGUAGE")
    # The sample's own captions are one more language, unless `captions` has that language already.
    captions = {language: sample.captions, **_captions_by_language(sample, language)}
    for lang, listed in sorted(captions.items()):
        try:
            language_of(lang, "captions")
            texts = [_one_line(text, f"caption {lang}") for text in _values_of_field(listed)]
            if texts := [text for text in texts if text]:
                yield _task_item(sample, "caption", lang, f"caption {lang}", *texts, lang=lang)
        except BadInput as error:  # The other languages are good.
            yield _reject_task(sample, f"caption.{lang}", str(error))


def _captions_by_language(sample: WebImage, language: str) -> dict[str, Any]:
    captions = sample.metadata.get("captions") or {}
    # A map of Arrow comes as a list of pairs, with null where a language has no caption. What else
    # is no map is one caption or several, of which each must be a text.
    is_map = isinstance(captions, Mapping) or (
        isinstance(captions, list)
        and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in captions)
    )
    if not is_map:
        return {language: captions}
    by_language = {}
    for lang, text in dict(captions).items():
        try:
            name = language_of(lang, "captions")
        except BadInput:  # Refused where its caption is read: the other languages are good.
            name = str(lang)
        by_language[name] = text
    return {lang: text for lang, text in by_language.items() if not is_absent(text)}


def _without_tokens(captions: Iterable[Any]) -> tuple[Any, ...]:
    """Returns captions without the placeholders that data-juicer puts in them."""
    return tuple(
        _DATA_JUICER_TOKEN.sub(" ", text) if isinstance(text, str) else text for text in captions
    )


def _words_of(captions: Iterable[Any]) -> list[list[str]]:
    """Returns the words of captions, by which they are compared."""
    return [str(caption).split() for caption in captions]


def _is_caption(value: object) -> bool:
    return not isinstance(value, str) or bool(value.strip())


def _values_of_field(value: Any) -> list[Any] | tuple[Any, ...]:
    """Returns the values under a field that holds one or several."""
    if is_absent(value):
        return []
    return value if isinstance(value, list | tuple) else [value]


def _grounded_caption_items(sample: WebImage) -> Iterator[Item]:
    for i, annotated in enumerate(_read_objects(sample)):
        prefix = f"caption {BOX_MARKER}"
        yield _task_item(
            sample, "grounded_caption", str(i), prefix, annotated.label, boxes=(annotated.box,)
        )


def _ocr_items(sample: WebImage) -> Iterator[Item]:
    words = [
        (
            _one_line(value_under(w, "text", "ocr"), "text"),
            box_of(value_under(w, "box", "ocr"), "box"),
        )
        for w in rows_under(sample.metadata, "ocr")
    ]
    text = " ".join(_raster_order([w for w in words if w[0]]))
    if text:
        yield _task_item(sample, "ocr", "", "ocr", text)


def _vqa_items(sample: WebImage) -> Iterator[Item | Reject]:
    for name, pair in _question_pairs(sample, "vqa"):
        if isinstance(pair, Reject):
            yield pair
            continue
        prefix = f"answer {pair.lang} {pair.question}"
        answers = pair.answers
        yield _task_item(sample, "vqa", name, prefix, *answers, lang=pair.lang, answers=answers)


def _question_items(sample: WebImage) -> Iterator[Item | Reject]:
    for name, pair in _question_pairs(sample, "question"):
        if isinstance(pair, Reject):
            yield pair
            continue
        prefix = f"question {pair.lang} {pair.answers[0]}"
        yield _task_item(sample, "question", name, prefix, pair.question, lang=pair.lang)


def _question_pairs(sample: WebImage, task: str) -> Iterator[tuple[str, _QuestionPair | Reject]]:
    """Yields the number of every pair, and the pair or its reject; the others are good."""
    for number, raw in enumerate(rows_under(sample.metadata, "qa")):
        name = str(number)
        try:
            yield name, _question_pair(raw)
        except BadInput as error:
            yield name, _reject_task(sample, f"{task}.{name}", str(error))


def _question_pair(raw: Any) -> _QuestionPair:
    if not isinstance(raw, Mapping):
        raise BadInput(f"qa must list objects with question and answer, got {raw!r}"[:120])
    for field in ("question", "answer"):
        if is_absent(raw.get(field)) or raw[field] == []:
            raise BadInput(f"qa has no {field}: it is absent, null or NaN in {raw!r}"[:160])
    # Several people may have answered.
    texts = (
        _one_line(answer_of(answer, "answer"), "answer")
        for answer in _values_of_field(raw["answer"])
    )
    answers = [text for text in texts if text]
    question = _one_line(raw["question"], "question")
    for field, text in (("question", question), ("answer", "".join(answers))):
        if not text:
            raise BadInput(f"qa has no {field}: it is empty in {raw!r}"[:160])
    return _QuestionPair(
        question=question,
        answers=tuple(answers),
        lang=language_of(raw.get("lang"), "lang"),
    )


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


TASKS: dict[str, Callable[[WebImage], Iterator[Item | Reject]]] = {
    "caption": _web_caption_items,
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
            label=_one_line(value_under(raw, "label", "objects"), "label"),
            box=box_of(value_under(raw, "box", "objects"), "box"),
            mask=_mask_text(raw["mask"]) if raw.get("mask") else None,
        )
        for raw in rows_under(sample.metadata, "objects")
    ]
    return sorted((t for t in objects if t.label), key=lambda t: (t.box[1], t.box[0], t.label))


def _mask_text(mask: object) -> str:
    # Tables hold run lengths as bytes, as pycocotools makes them.
    return json.dumps(mask, default=lambda value: text_of(value, "mask"))


def _raster_order(words: list[tuple[str, tuple[float, float, float, float]]]) -> list[str]:
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


def _one_line(text: object, field: str) -> str:
    """Returns the text on one line: a newline separates prefix from suffix in the model's input.

    Raises:
      BadInput: if it is none, naming the field and the value.
    """
    return " ".join(text_of(text, field).split())
