"""TextCaps: captions that mention the text in photographs, on TextVQA's images.

TextCaps_0.1_{train,val,test}.json   data[]: image_id, caption_str
{train,test}_images/{image_id}.jpg   val's are in train_images; below this folder, textvqa/ or
                                     textcaps/

The Hub's lmms-lab/TextCaps can be read as well.
"""

from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import (
    question_item,
    scene_text_folder,
    text_under,
    texts_under,
)
from pipelines.sources.reading.row_files import read_file

_TEXTCAPS = FinetuneRecipe(lr_pg1=1e-5, lr_pg2=1e-6, decay=True, epochs=5)

TEXTCAPS = Benchmark(
    name="textcaps",
    config="textcaps",
    prompt="caption en",
    text_len=32,
    metric="cider",
    beams=3,
    lower=True,
    tune_split="train[:98%]",
    final_split="train",
    eval_split="val",
    rows=(ResultRow(titles=("TextCaps",), split="val", suite="main", size=3_166),),
    num_train=21_953,
    recipes={224: _TEXTCAPS, 448: _TEXTCAPS},
)

SPLITS = ("train", "val", "test")


def _read_textcaps(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    folder, pictures = scene_text_folder(corpus, split), TablePictures(corpus)

    def item_of_row(rows: list[dict] | TableRow) -> Item:
        # A table has a row per image, the authors' file a row per caption, which come grouped by
        # image.
        if isinstance(rows, TableRow):
            captions = [] if split == "test" else texts_under(rows, "caption_str")
            image = text_under(rows, "image_id")
            media = pictures.store(rows, f"{rows.get('image_name') or image}.jpg")
        else:
            image = str(rows[0]["image_id"])
            captions = [] if split == "test" else [text_under(row, "caption_str") for row in rows]
            media = corpus.media(folder / f"{rows[0].get('image_name', image)}.jpg")
        return question_item(TEXTCAPS, split, media, image, "", captions, meta={"image_id": image})

    yield from read_file(
        corpus, file, f"textcaps/{split}", item_of_row, key="data", group_by="image_id"
    )


SOURCES = (
    published_source(
        TEXTCAPS,
        splits=SPLITS,
        files=lambda split: ((f"TextCaps_0.1_{split}.json",),),
        read=_read_textcaps,
        publisher="textvqa.org/textcaps/dataset",
        tables={split: table_patterns(split) for split in SPLITS},
    ),
)
