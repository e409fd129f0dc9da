"""Captions in many languages: COCO-35L and XM3600.

    coco35l  coco_mt_{train,dev}.jsonl[.bz2]  image_id "{cocoid}_{n}", caption_tokenized (English),
                                              translation_tokenized, trg_lang
             dataset_coco.json                names the images; COCO 2014 as for cococap
    xm3600   captions.jsonl                   image/key, {lang}: {"caption": [...], ...}
             images/{image/key}.jpg

A record is an image in one language. Each English caption is listed once per target language, so
it is taken only from the rows that translate into German.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.benchmarks.captions import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.captions.coco import KARPATHY
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    image_folder,
    indexed,
    json_lines,
    load_list,
    question,
    read_rows,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

COCO35L = (
    "ar",
    "bn",
    "cs",
    "da",
    "de",
    "el",
    "en",
    "es",
    "fa",
    "fi",
    "fil",
    "fr",
    "he",
    "hi",
    "hr",
    "hu",
    "id",
    "it",
    "ja",
    "ko",
    "mi",
    "nl",
    "no",
    "pl",
    "pt",
    "ro",
    "ru",
    "sv",
    "sw",
    "te",
    "th",
    "tr",
    "uk",
    "vi",
    "zh",
)
XM3600 = tuple(sorted((*COCO35L, "quz")))


def _read_coco35l(corpus: Corpus, split: str, lines: Path, karpathy: Path) -> Found:
    """Sorts the lines into a file per language, so that memory holds one language at a time."""
    part, _, only = split.partition("_")
    wanted = (only,) if only else COCO35L
    folders = {name: image_folder(corpus, name, "coco") for name in ("train2014", "val2014")}
    listed = indexed(karpathy, load_list(corpus, karpathy, "images"), "cocoid")
    images = {key: folders[row["filepath"]] / row["filename"] for key, row in listed.items()}
    with TemporaryDirectory() as folder, ExitStack() as files:
        sorted_lines = {
            lang: files.enter_context((Path(folder) / lang).open("w+", encoding="utf-8"))
            for lang in wanted
        }

        def note(line: Callable[[], Mapping]) -> None:
            row = line()
            image = int(str(row["image_id"]).partition("_")[0])
            captions = {row["trg_lang"]: text_of(row, "translation_tokenized")}
            if row["trg_lang"] == "de":
                captions["en"] = text_of(row, "caption_tokenized")
            for lang, caption in captions.items():
                if lang in sorted_lines:
                    print(json.dumps([image, caption]), file=sorted_lines[lang])

        yield from read_rows(corpus, lines, f"coco35l/{split}", json_lines(lines), note)
        for lang, file in sorted_lines.items():
            file.seek(0)
            captions: dict[int, list[str]] = defaultdict(list)
            for line in file:
                image, caption = json.loads(line)
                captions[image].append(caption)
            yield from _records(corpus, part, lang, lines, captions, images)


def _records(
    corpus: Corpus,
    part: str,
    lang: str,
    file: Path,
    captions: Mapping[int, list[str]],
    images: Mapping[int, Path],
) -> Found:
    def make(image: int) -> Item:
        if image not in images:
            raise BadInput(f"image {image} is not in dataset_coco.json")
        return question(
            BENCHMARKS["coco35l"],
            part,
            corpus.media(images[image]),
            lang,
            "",
            captions[image],
            lang=lang,
            meta={"image_id": image},
        )

    yield from read_rows(corpus, file, f"coco35l/{part}_{lang}", sorted(captions), make)


def _read_xm3600(corpus: Corpus, split: str, file: Path) -> Found:
    def make(line) -> Item | None:
        row = line()
        if split not in row:
            return None
        key = str(row["image/key"])
        media = corpus.media(corpus.folder / "images" / f"{key}.jpg")
        captions = texts_of(row[split], "caption")
        return question(
            BENCHMARKS["xm3600"],
            split,
            media,
            split,
            "",
            captions,
            lang=split,
            meta={"image_id": key},
        )

    yield from read_rows(corpus, file, f"xm3600/{split}", json_lines(file), make)


def _coco35l_files(split: str) -> tuple[tuple[str, ...], ...]:
    name = f"coco_mt_{split.partition('_')[0]}.jsonl"
    return (name, f"{name}.bz2"), KARPATHY


SOURCES = (
    published(
        BENCHMARKS["coco35l"],
        splits=("train", "dev", *(f"{part}_{x}" for part in ("train", "dev") for x in COCO35L)),
        files=_coco35l_files,
        read=_read_coco35l,
        publisher="google.github.io/crossmodal-3600 (COCO-35L)",
        whole=lambda split: split.partition("_")[0],
    ),
    published(
        BENCHMARKS["xm3600"],
        splits=XM3600,
        files=lambda split: (("captions.jsonl",),),
        read=_read_xm3600,
        publisher="google.github.io/crossmodal-3600",
    ),
)
