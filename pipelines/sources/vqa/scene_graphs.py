"""GQA, and its questions in seven more languages (xGQA).

gqa   {train,val,testdev}_balanced_questions.json    {id: {imageId, question, answer, ...}}
      images/{imageId}.jpg
xgqa  annotations/zero_shot/testdev_balanced_questions_{lang}.json
      {annotations,data}/few_shot/{lang}/{dev,test}.json
      images are GQA's, in this folder or in gqa/; answers are English in every language

GQA can also be read from the Hub's lmms-lab/GQA: {split}_instructions/*.parquet, and the pictures
in {split}_images/*.parquet.

The `lang` of an xGQA record is its question's language, since scores are averaged over languages.
"""

from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow, zero_shot
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import find_tables, published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow, table_rows
from pipelines.sources.reading.item import Item, Listing, Media
from pipelines.sources.reading.layout import image_folder, question_item, text_under
from pipelines.sources.reading.row_files import read_file

XGQA_LANGUAGES = ("bn", "de", "id", "ko", "pt", "ru", "zh")
"""The seven languages of the average; English, the eighth, does not count."""

GQA = Benchmark(
    name="gqa",
    config="gqa",
    prompt="answer en {text}",
    text_len=32,
    metric="vqa",
    zero_shot_metric="gqa_llava",
    tune_split="train_balanced",
    final_split="train_balanced+val_balanced",
    eval_split="testdev_balanced",
    rows=(ResultRow(titles=("GQA",), split="testdev_balanced", suite="main", size=12_578),),
    num_train=1_075_062,
    recipes={
        224: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=3e-6, epochs=1),
        448: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=3e-6, epochs=1, freeze_vision="all"),
    },
)

XGQA = zero_shot(
    GQA,
    name="xgqa",
    eval_split="+".join(XGQA_LANGUAGES),
    rows=(
        ResultRow(
            titles=("xGQA",),
            split=XGQA_LANGUAGES[0],
            averaged=XGQA_LANGUAGES[1:],
            suite="main",
            size=len(XGQA_LANGUAGES) * 12_578,
            resolutions=(),
        ),
    ),
)

LANGUAGES = ("en", *XGQA_LANGUAGES)
_SPLITS = ("train_balanced", "val_balanced", "testdev_balanced")


def _read_gqa(benchmark: Benchmark):
    def read(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
        # xGQA has questions only: its pictures are GQA's.
        folder = image_folder(corpus, "images", "gqa")
        lang = split.rpartition("_")[2] if benchmark is XGQA else "en"
        # The Hub has pictures in tables of their own: all are stored before the first question is
        # read.
        stored = _store_pictures(corpus, split) if isinstance(file, list) else {}

        def item_of_row(entry: tuple[str, dict] | TableRow) -> Item:
            if isinstance(entry, TableRow):
                row, image, key = entry, text_under(entry, "imageId"), text_under(entry, "id")
                if image not in stored:
                    raise BadInput(f"no table of {split}_images has {image}")
                media = stored[image]
            else:
                key, row = entry
                image = text_under(row, "imageId")
                # A name with a folder in it would read any file of the disk.
                if image != Path(image).name:
                    raise BadInput(f"imageId must be a name, got {image!r}")
                media = corpus.media(folder / f"{image}.jpg")
            # From here on both formats are the same: a row has its question and one answer.
            answer, text = text_under(row, "answer"), text_under(row, "question")
            meta = {"question_id": key}
            return question_item(benchmark, split, media, key, text, [answer], lang=lang, meta=meta)

        columns = ("id", "imageId", "question", "answer")
        name = f"{benchmark.name}/{split}"
        yield from read_file(corpus, file, name, item_of_row, form="dict", columns=columns)

    return read


def _store_pictures(corpus: Corpus, split: str) -> dict[str, Media]:
    """Returns image id -> its picture, which the Hub keeps in tables of their own."""
    pictures, stored = TablePictures(corpus), dict[str, Media]()
    for table in find_tables(
        corpus, table_patterns(split.partition("_")[0], folders=[f"{split}_images"])
    ):
        for row in table_rows(corpus, table):
            stored[row["id"]] = pictures.store(row, f"{row['id']}.jpg")
    return stored


def _xgqa_files(split: str) -> tuple[tuple[str, ...], ...]:
    part, _, lang = split.rpartition("_")
    if part:
        name = f"few_shot/{lang}/{part}.json"
    else:
        name = f"zero_shot/testdev_balanced_questions_{lang}.json"
    return ((f"annotations/{name}", f"data/{name}", name),)


SOURCES = (
    published_source(
        GQA,
        splits=_SPLITS,
        files=lambda split: ((f"{split}_questions.json", f"questions/{split}_questions.json"),),
        read=_read_gqa(GQA),
        publisher="cs.stanford.edu/people/dorarad/gqa/download.html",
        tables={
            split: table_patterns(split.partition("_")[0], folders=[f"{split}_instructions"])
            for split in _SPLITS
        },
        per_table=False,
    ),
    published_source(
        XGQA,
        splits=(*LANGUAGES, *(f"{part}_{x}" for part in ("dev", "test") for x in LANGUAGES)),
        files=_xgqa_files,
        read=_read_gqa(XGQA),
        publisher="github.com/adapter-hub/xGQA",
    ),
)
