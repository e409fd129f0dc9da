"""Photographs with public annotations, from which the same task kinds are made as from web images.

    coco_objects   annotations/instances_{train,val}2017.json  images[], annotations[], categories[]
                   {train,val}2017/{file_name}
    textocr        TextOCR_0.1_{train,val}.json   imgs{id: width, height}, anns{image_id, bbox,
                   train_images/{id}.jpg          utf8_string}; in textvqa/, as it uses its pictures
    visual_genome  question_answers.json          [{id, qas[{question, answer}]}]
                   region_descriptions.json       [{id, regions[{x, y, width, height, phrase}]}]
                   VG_100K/, VG_100K_2/           {id}.jpg

COCO's crowds are left out, and words that TextOCR marks with "." (not legible). The phrase of a
Visual Genome region becomes its grounded caption.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.records.schema import Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item, Listing, Media
from pipelines.sources.layout import find_annotation, image_folder
from pipelines.sources.row_files import load_dict, load_list, read_rows
from pipelines.sources.spec import SourceSpec
from pipelines.sources.web.tasks import WebImage, web_image_items

_GENOME = ("question_answers.json", "region_descriptions.json")
_ILLEGIBLE = "."


def _coco_names(split: str) -> tuple[str, ...]:
    name = f"instances_{split}2017.json"
    return f"annotations/{name}", name


def _read_coco(corpus: Corpus, split: str) -> Listing:
    file = find_annotation(corpus, *_coco_names(split))
    raw: Any = load_dict(corpus, file)
    labels = {annotation["id"]: annotation["name"] for annotation in raw["categories"]}
    # Annotations are in any order, so they are sorted by image first; crowds are left out.
    objects: dict[int, list[dict]] = defaultdict(list)
    for annotation in raw["annotations"]:
        if not annotation.get("iscrowd"):
            objects[annotation["image_id"]].append(annotation)
    folder = image_folder(corpus, f"{split}2017", "coco")

    def items_of_row(row: dict) -> Iterator[Item | Reject]:
        size = [int(row["height"]), int(row["width"])]
        annotated = []
        # `pop`, so that memory shrinks as images are listed.
        for annotation in objects.pop(row["id"], ()):
            x, y, w, h = map(float, annotation["bbox"])
            mask = {"size": size, "polygons": annotation["segmentation"]}
            label = labels[annotation["category_id"]]
            annotated.append({"label": label, "box": [x, y, x + w, y + h], "mask": mask})
        # An image without annotations is no input, so it is no reject either.
        if not annotated:
            return iter(())
        metadata = {"width": size[1], "height": size[0], "objects": annotated}
        media = corpus.media(folder / row["file_name"])
        return _web_items(corpus, f"coco_objects/{split}/{row['file_name']}", media, metadata)

    yield from read_rows(corpus, file, f"coco_objects/{split}", raw["images"], items_of_row)


def _textocr_names(split: str) -> tuple[str, ...]:
    return (f"TextOCR_0.1_{split}.json",)


def _read_textocr(corpus: Corpus, split: str) -> Listing:
    file = find_annotation(corpus, *_textocr_names(split))
    raw: Any = load_dict(corpus, file)
    # As for COCO: words by image first, without the illegible ones.
    words: dict[str, list[dict]] = defaultdict(list)
    for annotation in raw["anns"].values():
        if annotation["utf8_string"] != _ILLEGIBLE:
            x, y, w, h = map(float, annotation["bbox"])
            word = {"text": annotation["utf8_string"], "box": [x, y, x + w, y + h]}
            words[annotation["image_id"]].append(word)
    folder = image_folder(corpus, "train_images", "textvqa")

    def items_of_row(row: tuple[str, dict]) -> Iterator[Item | Reject]:
        key, image = row
        if not (read := words.pop(key, [])):
            return iter(())
        metadata = {"width": int(image["width"]), "height": int(image["height"]), "ocr": read}
        return _web_items(
            corpus, f"textocr/{split}/{key}", corpus.media(folder / f"{key}.jpg"), metadata
        )

    yield from read_rows(corpus, file, f"textocr/{split}", raw["imgs"].items(), items_of_row)


def _read_genome(corpus: Corpus, split: str) -> Listing:
    questions, descriptions = (find_annotation(corpus, name) for name in _GENOME)
    regions = {row["id"]: row["regions"] for row in load_list(corpus, descriptions)}
    folders = [image_folder(corpus, name, "visual_genome") for name in ("VG_100K", "VG_100K_2")]
    # Pictures lie in two folders; one listing of the first tells which.
    first = {path.name for path in folders[0].iterdir()} if folders[0].is_dir() else set()

    def items_of_row(row: dict) -> Iterator[Item | Reject]:
        name = f"{int(row['id'])}.jpg"
        pairs = [{"question": qa["question"], "answer": qa["answer"]} for qa in row["qas"]]
        objects = [
            {"label": region["phrase"], "box": _region_box(region)}
            for region in regions.pop(row["id"], ())
        ]
        if not pairs and not objects:
            return iter(())
        media = corpus.media(folders[name not in first] / name)
        metadata = {"qa": pairs, "objects": objects}
        items = _web_items(corpus, f"visual_genome/{split}/{name}", media, metadata)
        # Region phrases are not names of objects, so detection items are dropped.
        return (item for item in items if not (isinstance(item, Item) and item.task == "detect"))

    rows = load_list(corpus, questions)
    yield from read_rows(corpus, questions, f"visual_genome/{split}", rows, items_of_row)


def _region_box(region: Mapping[str, Any]) -> list[float]:
    x, y = float(region["x"]), float(region["y"])
    return [x, y, x + float(region["width"]), y + float(region["height"])]


def _web_items(
    corpus: Corpus, identity: str, media: Media, metadata: Mapping[str, Any]
) -> Iterator[Item | Reject]:
    sample = WebImage(id=identity, media=media, metadata=metadata)
    return web_image_items(sample, per_task=corpus.per_task, tasks=corpus.tasks)


SOURCES = tuple(
    SourceSpec(
        name=name,
        folder=folder,
        splits=splits,
        read=read,
        antialias=True,
        antialias_eval=True,
        files=files,
        publisher=publisher,
    )
    for name, folder, splits, read, files, publisher in (
        (
            "coco_objects",
            "coco",
            ("train", "val"),
            _read_coco,
            lambda split: (_coco_names(split),),
            "cocodataset.org/#download",
        ),
        (
            "textocr",
            "textvqa",
            ("train", "val"),
            _read_textocr,
            lambda split: (_textocr_names(split),),
            "textvqa.org/textocr/dataset",
        ),
        (
            "visual_genome",
            "visual_genome",
            ("train",),
            _read_genome,
            lambda split: tuple((name,) for name in _GENOME),
            "homes.cs.washington.edu/~ranjay/visualgenome",
        ),
    )
)
