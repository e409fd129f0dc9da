"""Captions of photographs: COCO in Karpathy's splits, and NoCaps.

cococap  dataset_coco.json              images[]: cocoid, filepath, filename, split, sentences[]
         {train2014,val2014}/           in this folder, or in coco/ beside it
nocaps   nocaps_val_4500_captions.json  images[]: id, file_name; annotations[]: image_id, caption
         nocaps_test_image_info.json    images[] only
         Images/{validation,test}/

NoCaps can also be read from the Hub's lmms-lab/NoCaps, which lacks the domain. The COCO captions on
the Hub are all of val2014 or of val2017: none has Karpathy's splits.
"""

from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow, zero_shot
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under, texts_under
from pipelines.sources.reading.row_files import group_rows, load_list, read_file

_COCOCAP_RECIPE = FinetuneRecipe(lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=5)

COCOCAP = Benchmark(
    name="cococap",
    config="cococap",
    prompt="caption en",
    text_len=32,
    metric="cider",
    beams=2,
    tune_split="train[:98%]+restval",
    final_split="train+restval",
    eval_split="val",
    rows=(ResultRow(titles=("COCO-Captions",), split="val", size=5_000),),
    num_train=113_287,
    recipes={224: _COCOCAP_RECIPE, 448: _COCOCAP_RECIPE},
)

NOCAPS = zero_shot(
    COCOCAP,
    name="nocaps",
    eval_split="val",
    rows=(ResultRow(titles=("NoCaps",), split="val", size=4_500),),
)

KARPATHY = ("dataset_coco.json", "../coco/dataset_coco.json", "../cococap/dataset_coco.json")


def _read_coco_captions(corpus: Corpus, split: str, file: Path) -> Listing:
    folders = {name: image_folder(corpus, name, "coco") for name in ("train2014", "val2014")}

    def item_of_row(row: dict) -> Item | None:
        if row["split"] != split:
            return None
        captions = [raw for sentence in row["sentences"] if (raw := sentence["raw"]).strip()]
        if not captions:
            raise BadInput(f"image {row['cocoid']} has no caption")
        media = corpus.media(folders[row["filepath"]] / row["filename"])
        key = int(row["cocoid"])
        return question_item(COCOCAP, split, media, key, "", captions, meta={"image_id": key})

    yield from read_file(corpus, file, f"cococap/{split}", item_of_row, key="images")


def _read_nocaps(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    # The authors' file has two lists, images and captions, which are joined by the image's id. The
    # test split has no captions; a table has them in the image's row.
    folder = image_folder(corpus, "Images/" + {"val": "validation"}.get(split, split), "openimages")
    listed = []
    if split == "val" and not isinstance(file, list):
        listed = load_list(corpus, file, "annotations")
    captions_of = {group[0].get("image_id"): group for group in group_rows(listed, "image_id")}
    pictures = TablePictures(corpus)

    def item_of_row(row: dict) -> Item:
        # From here to the item both layouts differ only in the names of their fields.
        if isinstance(row, TableRow):
            captions = texts_under(row, "annotations_captions") if split == "val" else []
            media = pictures.store(row, text_under(row, "image_file_name"))
            key = row["image_id"]
        else:
            key = row["id"]
            captions = [
                text_under(annotation, "caption") for annotation in captions_of.get(key, ())
            ]
            if split == "val" and not captions:
                raise BadInput(f"image {key} has no caption")
            media = corpus.media(folder / row["file_name"])
        meta = {"image_id": key, "domain": row.get("domain", "")}
        return question_item(NOCAPS, split, media, key, "", captions, meta=meta)

    yield from read_file(corpus, file, f"nocaps/{split}", item_of_row, key="images")


def _nocaps_files(split: str) -> tuple[tuple[str, ...], ...]:
    val, test = "nocaps_val_4500_captions.json", "nocaps_test_image_info.json"
    return ((val if split == "val" else test,),)


SOURCES = (
    published_source(
        COCOCAP,
        splits=("train", "restval", "val", "test"),
        files=lambda split: (KARPATHY,),
        read=_read_coco_captions,
        publisher="cs.stanford.edu/people/karpathy/deepimagesent (caption_datasets.zip)",
    ),
    published_source(
        NOCAPS,
        splits=("val", "test"),
        files=_nocaps_files,
        read=_read_nocaps,
        publisher="nocaps.org/download",
        tables={"val": table_patterns("validation"), "test": table_patterns("test")},
    ),
)
