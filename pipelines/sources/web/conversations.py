"""Conversations about pictures as LLaVA publishes them: its captions, and its instructions.

    llava_pretrain   blip_laion_cc_sbu_558k.json   [{id, image, conversations[{from, value}]}]
    llava_instruct   llava_v1_5_mix665k.json       the same; rows without an image are text alone

`from` is "human" or "gpt" in turn, and "<image>" in the first human value stands for the picture,
whose path is relative to the folder, or to images/ in it. A row is one record, whatever the number
of its turns. An instruction without a picture is text alone; a caption without one is passed over
and counted.

Source: haotian-liu/LLaVA `docs/Data.md`, `llava/train/train.py` (preprocess_multimodal).
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.records.hashing import stable_hash
from pipelines.records.schema import BadInput
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import find_annotation, text_under
from pipelines.sources.reading.omissions import data_files
from pipelines.sources.reading.row_files import load_list, read_rows
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.reading.values import is_absent, text_of

_FILES = {
    "llava_pretrain": "blip_laion_cc_sbu_558k.json",
    "llava_instruct": "llava_v1_5_mix665k.json",
}
_IMAGE = "<image>"
_ROLES = ("human", "gpt")


def _read(corpus: Corpus, split: str, *, name: str) -> Listing:
    file = find_annotation(corpus, _FILES[name])
    counts = corpus.omission_counts(file)
    counts.clear()  # A part of a split is read twice.

    def item_of_row(row: Mapping) -> Item | None:
        turns = _turns(row)
        # Rows of one picture may share an id, so the words tell them apart.
        key = f"{row['id']}-{stable_hash(json.dumps(turns)):016x}"
        (question, answer), *more = turns
        said = {"suffixes": (answer,), "turns": tuple(more), "part": name, "task": "conversation"}
        if not is_absent(row.get("image")):
            image = text_under(row, "image")
            media = (corpus.media(_path(corpus, image)),)
            asked = _without_mark(question, more)
            return Item(id=f"{name}/{split}/{image}#{key}", media=media, prefix=asked, **said)
        if name != "llava_instruct":
            counts.add("conversations without a picture", str(row.get("id", "")))
            return None
        if _IMAGE in question:
            raise BadInput(f"image must name the picture of {_IMAGE}, got none")
        identity, text_file = f"{name}/{split}/text/{key}", corpus.relative(file)
        return Item(id=identity, media=(), text_file=text_file, prefix=question, **said)

    yield from read_rows(corpus, file, f"{name}/{split}", load_list(corpus, file), item_of_row)


def _turns(row: Mapping) -> list[tuple[str, str]]:
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


def _without_mark(question: str, more: list[tuple[str, str]]) -> str:
    """Returns the first question without the mark of its picture, which must be the only one."""
    if question.count(_IMAGE) != 1 or any(_IMAGE in text for turn in more for text in turn):
        raise BadInput(f"{_IMAGE} must be once in a conversation, in its first question")
    return question.replace(_IMAGE, "").strip()


def _path(corpus: Corpus, image: str) -> Path:
    path = corpus.folder / image
    within = corpus.folder / "images" / image
    return within if not corpus.has(path) and corpus.has(within) else path


def _omissions(corpus: Corpus, split: str, *, name: str) -> Any:
    files = (path.name for path in sorted(corpus.folder.iterdir()) if path.is_file())
    return data_files(corpus, name, (file for file in files if file != _FILES[name]))


SOURCES = tuple(
    SourceSpec(
        name=name,
        folder=name,
        splits=("train",),
        read=functools.partial(_read, name=name),
        antialias=True,
        antialias_eval=True,
        files=lambda split, file=file: ((file,),),
        omissions=functools.partial(_omissions, name=name),
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
