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
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow, zero_shot
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.captions.coco import KARPATHY
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under, texts_under
from pipelines.sources.reading.row_files import index_rows, load_list, read_file, read_rows
from pipelines.sources.reading.values import answer_of

_COCO35L_RECIPE = FinetuneRecipe(
    lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=2_832_175 / (113_287 * 35)
)

COCO35L = Benchmark(
    name="coco35l",
    config="coco35l",
    prompt="caption {lang}",
    text_len=32,
    metric="cider",
    final_split="train",
    eval_split="dev_en",
    rows=(ResultRow(titles=("COCO-35L (en)", "COCO-35L"), split="dev_en", size=5_000),),
    num_train=113_287 * 35,
    recipes={224: _COCO35L_RECIPE, 448: _COCO35L_RECIPE},
)

XM3600 = zero_shot(
    COCO35L,
    name="xm3600",
    eval_split="en",
    rows=(ResultRow(titles=("XM3600 (en)", "XM3600"), split="en", size=3_600),),
)

LANGUAGES = (
    "ar", "bn", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fil", "fr",
    "he", "hi", "hr", "hu", "id", "it", "ja", "ko", "mi", "nl", "no", "pl",
    "pt", "ro", "ru", "sv", "sw", "te", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip
_XM3600_LANGUAGES = tuple(sorted((*LANGUAGES, "quz")))


def _read_coco35l(corpus: Corpus, split: str, lines: Path, karpathy: Path) -> Listing:
    """Sorts the lines into a file per language, so that memory holds one language at a time."""
    # "dev_en" is one language of "dev"; "dev" is all of them.
    part, _, language = split.partition("_")
    languages = (language,) if language else LANGUAGES
    folders = {name: image_folder(corpus, name, "coco") for name in ("train2014", "val2014")}
    listed = index_rows(karpathy, load_list(corpus, karpathy, "images"), "cocoid")
    images = {
        key: folders[row["filepath"]] / row["filename"]
        for key, row in listed.items()
        if row.get("filepath") in folders and isinstance(row.get("filename"), str)
    }
    # Lines of all languages are mixed in the file; captions of an image must come together:
    #
    #     lines  1 de, 1 fr, 2 de, 2 fr  ─▶  de: 1 2   fr: 1 2  ─▶  records of de, then of fr
    with TemporaryDirectory() as folder, ExitStack() as files:
        sorted_lines = {
            lang: files.enter_context((Path(folder) / lang).open("w+", encoding="utf-8"))
            for lang in languages
        }

        def sort_line(row: Mapping) -> None:
            image = int(str(row["image_id"]).partition("_")[0])
            captions = {row["trg_lang"]: text_under(row, "translation_tokenized")}
            # The English caption is in every row; rows that translate into German are one of each.
            if row["trg_lang"] == "de":
                captions["en"] = text_under(row, "caption_tokenized")
            for lang, caption in captions.items():
                if lang in sorted_lines:
                    print(json.dumps([image, caption]), file=sorted_lines[lang])

        yield from read_file(corpus, lines, f"coco35l/{split}", sort_line, form="lines")
        for lang, file in sorted_lines.items():
            file.seek(0)
            captions: dict[int, list[str]] = defaultdict(list)
            for line in file:
                image, caption = json.loads(line)
                captions[image].append(caption)
            yield from _coco35l_caption_items(corpus, part, lang, lines, captions, images)


def _coco35l_caption_items(
    corpus: Corpus,
    part: str,
    lang: str,
    file: Path,
    captions: Mapping[int, list[str]],
    images: Mapping[int, Path],
) -> Listing:
    def item_of_row(image: int) -> Item:
        if image not in images:
            raise BadInput(f"image {image} is not in dataset_coco.json")
        # The language is the key: an image has a record in each, and their ids must differ.
        return question_item(
            COCO35L,
            part,
            corpus.media(images[image]),
            lang,
            "",
            captions[image],
            lang=lang,
            meta={"image_id": image},
        )

    yield from read_rows(corpus, file, f"coco35l/{part}_{lang}", sorted(captions), item_of_row)


def _read_xm3600(corpus: Corpus, split: str, file: Path) -> Listing:
    def item_of_row(row: dict) -> Item | None:
        # An image without captions in this language is no input, so it is no reject either.
        if split not in row:
            return None
        key = answer_of(row["image/key"], "image/key")
        media = corpus.media(corpus.folder / "images" / f"{key}.jpg")
        captions = texts_under(row[split], "caption")
        return question_item(
            XM3600,
            split,
            media,
            split,
            "",
            captions,
            lang=split,
            meta={"image_id": key},
        )

    yield from read_file(corpus, file, f"xm3600/{split}", item_of_row, form="lines")


def _coco35l_files(split: str) -> tuple[tuple[str, ...], ...]:
    name = f"coco_mt_{split.partition('_')[0]}.jsonl"
    return (name, f"{name}.bz2"), KARPATHY


SOURCES = (
    published_source(
        COCO35L,
        splits=("train", "dev", *(f"{part}_{x}" for part in ("train", "dev") for x in LANGUAGES)),
        files=_coco35l_files,
        read=_read_coco35l,
        publisher="google.github.io/crossmodal-3600 (COCO-35L)",
        containing_split=lambda split: split.partition("_")[0],
    ),
    published_source(
        XM3600,
        splits=_XM3600_LANGUAGES,
        files=lambda split: (("captions.jsonl",),),
        read=_read_xm3600,
        publisher="google.github.io/crossmodal-3600",
    ),
)
