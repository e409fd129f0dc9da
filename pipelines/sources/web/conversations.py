"""Conversations about pictures as LLaVA publishes them: its captions, and its instructions.

    llava_pretrain   blip_laion_cc_sbu_558k.json   [{id, image, conversations[{from, value}]}]
    llava_instruct   llava_v1_5_mix665k.json       the same; rows without a medium are text alone

`from` is "human" or "gpt" in turn, and "<image>" in the first human value stands for the picture,
whose path is relative to the folder, or to images/ in it. A row is one record, whatever the number
of its turns. An instruction without a picture is text alone; a caption without one is passed over
and counted.

Others' rows of this form may name a picture or a pair under `image` or `images`, or a clip under
`video` or `videos`, and have no `id`. Any other medium is a reject; other fields are counted.

Source: haotian-liu/LLaVA `docs/Data.md`, `llava/train/train.py` (preprocess_multimodal).
"""

import functools
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from pipelines.records.hashing import stable_hash
from pipelines.records.schema import BadInput
from pipelines.sources.reading.corpus import MAX_REASONS, Corpus
from pipelines.sources.reading.item import Item, Listing, Media, id_of_place
from pipelines.sources.reading.layout import find_annotation, text_under
from pipelines.sources.reading.omissions import data_files, is_media
from pipelines.sources.reading.row_files import load_list, read_rows
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.reading.values import is_absent, text_of

_FILES = {
    "llava_pretrain": "blip_laion_cc_sbu_558k.json",
    "llava_instruct": "llava_v1_5_mix665k.json",
}
_MARK = re.compile(r"<(image|video|audio|speech)>")
_ROLES = ("human", "gpt")
_MEDIA = {"image": 2, "images": 2, "video": 1, "videos": 1}
"""Fields of media, and how many of them a record may have."""
_READ = {"id", "conversations", *_MEDIA}
_OF_TURNS = {"from of a turn", "value of a turn"}
_OTHER_MEDIA = re.compile("image|img|photo|picture|video|audio|sound|speech|media", re.IGNORECASE)
_SOUNDS = (".aac", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav")


def _read_conversations(corpus: Corpus, split: str, *, name: str) -> Listing:
    file = find_annotation(corpus, _FILES[name])
    rows, numbers = load_list(corpus, file), itertools.count()
    stated = {str(row.get("id")) for row in rows if isinstance(row, Mapping)}
    counts = corpus.omission_counts(file)
    counts.clear()  # A part of a split is read twice.

    def item_of_row(row: Mapping) -> Item | None:
        place, turns = next(numbers), _conversation_turns(row)
        row = {field: value for field, value in row.items() if not is_absent(value)}
        identity = row["id"] if "id" in row else id_of_place(place, lambda: stated)
        # Rows of one picture may share an id, so the words tell them apart.
        key = f"{identity}-{stable_hash(json.dumps(turns)):016x}"
        (question, answer), *more = turns
        fields = {"suffixes": (answer,), "turns": tuple(more), "part": name, "task": "conversation"}
        field, paths = _conversation_media_paths(row)
        of_turns = {f"{key} of a turn" for said in row["conversations"] for key in said}
        for other in sorted(row.keys() - _READ | of_turns - _OF_TURNS):
            reason = f"field {other}, which {name} does not read"
            counts.add(reason if len(counts) < MAX_REASONS else "further fields", str(identity))
        if paths:
            media = tuple(_conversation_media(corpus, path, field) for path in paths)
            asked = _without_marks(turns, field, len(paths))
            return Item(id=f"{name}/{split}/{paths[0]}#{key}", media=media, prefix=asked, **fields)
        if name != "llava_instruct":
            counts.add("conversations without a picture", str(identity))
            return None
        if mark := _MARK.search(question):
            raise BadInput(f"{mark[1]} must name the medium of {mark[0]}, got none")
        text_id, text_file = f"{name}/{split}/text/{key}", corpus.relative(file)
        return Item(id=text_id, media=(), text_file=text_file, prefix=question, **fields)

    yield from read_rows(corpus, file, f"{name}/{split}", rows, item_of_row)


def _conversation_media_paths(row: Mapping) -> tuple[str, list[str]]:
    """Returns the field that names a row's media, and their paths; none if it is text alone."""
    listed = {f: row[f] if isinstance(row[f], list) else [row[f]] for f in _MEDIA if f in row}
    fields = [field for field, named in listed.items() if named]
    for other in sorted(row.keys() - _READ):
        # Beside a picture, an address says where it is from; alone, it is what the text is about.
        texts = re.findall(r'"([^"]+)"', json.dumps(value := row[other]).lower())
        is_medium = (value and _OTHER_MEDIA.search(other)) or any(map(is_media, texts))
        if (is_medium and not fields) or any(text.endswith(_SOUNDS) for text in texts):
            raise BadInput(f"{other} is none of the media {', '.join(_MEDIA)}, got {value!r:.60}")
    if not fields:
        return "", []
    field, named = fields[0], listed[fields[0]]
    if len(named) > _MEDIA[field] or any(listed[other] != named for other in fields):
        raise BadInput(f"{' and '.join(fields)} must name one or two pictures, or one clip")
    return field, [text_under({field: path}, field) for path in named]


def _conversation_turns(row: Mapping) -> list[tuple[str, str]]:
    """Returns the questions and answers of a row."""
    said = list(row["conversations"])
    # LLaVA leaves out what is said before the first question.
    if said and said[0]["from"] == _ROLES[1]:
        del said[0]
    roles = [one["from"] for one in said]
    if not said or len(said) % 2 or roles != [*_ROLES] * (len(said) // 2):
        raise BadInput(f"conversations must be of human and gpt in turn, got {roles!r:.80}")
    texts = [text_of(one["value"], "value") for one in said]
    return list(zip(texts[::2], texts[1::2], strict=True))


def _without_marks(turns: list[tuple[str, str]], field: str, count: int) -> str:
    """Returns the first question without the marks of its media, which must be the only ones."""
    question = turns[0][0]
    mark = "<video>" if "video" in field and "<video>" in question else "<image>"
    marks = _MARK.findall("\n".join(sum(turns, ())))
    # A record's pictures come before its text: marks between words, of several, have no place.
    is_block = len(marks) == count and re.search(rf"(?:{mark}\s*){{{count}}}", question)
    if not is_block and (marks or field == "image"):  # Others than LLaVA need no marks.
        often = "once" if count == 1 else f"{count} times, side by side,"
        raise BadInput(f"{mark} must be {often} in a conversation, in its first question ({field})")
    return question.replace(mark, "").strip()


def _conversation_media(corpus: Corpus, name: str, field: str) -> Media:
    home = "videos" if "video" in field else "images"
    path, within = corpus.folder / name, corpus.folder / home / name
    path = within if not corpus.has(path) and corpus.has(within) else path
    return corpus.media(path, video=home == "videos")


def _conversation_omissions(corpus: Corpus, split: str, *, name: str) -> Any:
    files = (path.name for path in sorted(corpus.folder.iterdir()) if path.is_file())
    return data_files(corpus, name, (file for file in files if file != _FILES[name]))


SOURCES = tuple(
    SourceSpec(
        name=name,
        folder=name,
        splits=("train",),
        read=functools.partial(_read_conversations, name=name),
        antialias=True,
        antialias_eval=True,
        files=lambda split, file=file: ((file,),),
        omissions=functools.partial(_conversation_omissions, name=name),
        publisher=publisher,
    )
    for (name, file), publisher in zip(
        _FILES.items(),
        (
            "huggingface.co/datasets/liuhaotian/LLaVA-Pretrain",
            "huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K",
        ),
        strict=True,
    )
)
