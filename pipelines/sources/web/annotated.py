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

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from pipelines.records.schema import BadInput, Reject
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing, Media
from pipelines.sources.reading.layout import find_annotation, image_folder
from pipelines.sources.reading.row_files import (
    index_rows,
    load_dict,
    load_list,
    read_rows,
    value_under_key,
)
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.reading.values import box_of
from pipelines.sources.web.tasks import WebImage, web_image_items

_GENOME = ("question_answers.json", "region_descriptions.json")
_ILLEGIBLE = "."
_COCO_BOX = "x, y, width, height"


def _coco_names(split: str) -> tuple[str, ...]:
    name = f"instances_{split}2017.json"
    return f"annotations/{name}", name


def _read_coco_objects(corpus: Corpus, split: str) -> Listing:
    file = find_annotation(corpus, *_coco_names(split))
    raw: Any = load_dict(corpus, file)
    categories, annotations, images = (
        value_under_key(file, raw, key, list) for key in ("categories", "annotations", "images")
    )
    labels = index_rows(file, categories, "id")
    shared_images, shared_categories = _shared_ids(images), _shared_ids(categories)
    # Annotations are in any order, so they are sorted by image first; crowds are left out.
    objects: dict[object, list[dict]] = defaultdict(list)
    loose = []
    for annotation in annotations:
        if not isinstance(annotation, Mapping) or not isinstance(
            annotation.get("image_id"), int | str
        ):
            loose.append(annotation)
        elif annotation.get("iscrowd") != 1:
            objects[annotation["image_id"]].append(dict(annotation))
    folder = image_folder(corpus, f"{split}2017", "coco")

    def items_of_row(row: dict) -> Iterator[Item | Reject]:
        if row["id"] in shared_images:
            raise BadInput(f"image id {row['id']!r:.40} is that of several images")
        size = [int(row["height"]), int(row["width"])]
        annotated = []
        # `pop`, so that memory shrinks as images are listed.
        for annotation in objects.pop(row["id"], ()):
            x, y, w, h = box_of(annotation.get("bbox"), "bbox", _COCO_BOX)
            category = annotation["category_id"]
            if category not in labels or category in shared_categories:
                raise BadInput(f"category_id {category!r:.40} is not one of the file's categories")
            if (crowd := annotation.get("iscrowd")) not in (None, 0):
                raise BadInput(f"iscrowd must be 0 or 1, got {crowd!r:.40}")
            annotated.append(
                {
                    "label": labels[category]["name"],
                    "box": [x, y, x + w, y + h],
                    "mask": _coco_mask(annotation.get("segmentation"), size),
                }
            )
        # An image without annotations is no input, so it is no reject either.
        if not annotated:
            return iter(())
        metadata = {"width": size[1], "height": size[0], "objects": annotated}
        media = corpus.media(folder / row["file_name"])
        return _web_items(corpus, f"coco_objects/{split}/{row['file_name']}", media, metadata)

    _note_orphans(corpus, file, objects, (_annotation_row_key(row, "id") for row in images))
    yield from read_rows(corpus, file, f"coco_objects/{split}", images, items_of_row)
    yield from _of_no_image(corpus, file, f"coco_objects/{split}", loose)


def _shared_ids(rows: list[Any]) -> set[object]:
    counts = Counter(_annotation_row_key(row, "id") for row in rows)
    return {key for key, num in counts.items() if num > 1}


def _coco_mask(shape: Any, size: list[int]) -> Mapping[str, Any] | None:
    """Returns the mask of an annotation; None if it has a box alone.

    Polygons are a list; run lengths, also those that are not of crowds, are an object that states
    its own size.
    """
    if not shape:
        return None
    return {"size": size, "polygons": shape} if isinstance(shape, list) else shape


def _of_no_image(
    corpus: Corpus, file: Path, name: str, annotations: list[Any]
) -> Iterator[Item | Reject]:
    """Yields a reject for each annotation that names no image."""

    def refuse(annotation: object) -> None:
        raise BadInput(f"annotation names no image (image_id): {annotation!r:.100}")

    yield from read_rows(corpus, file, f"{name}/annotations", annotations, refuse)


def _note_orphans(
    corpus: Corpus, file: Path, annotations: Mapping[Any, Sized], images: Iterable[object]
) -> None:
    """Counts the annotations of a file whose image is in no list.

    Args:
      corpus: the corpus.
      file: the file of the annotations.
      annotations: key of an image -> its annotations.
      images: keys of the images that are listed.
    """
    counts, listed = corpus.omission_counts(file), set(images)
    counts.clear()  # A part of a split is read twice.
    for key, of_image in annotations.items():
        if key not in listed and len(of_image):
            counts.add("annotations of images that no list has", str(key), len(of_image))


def _annotation_row_key(row: object, field: str) -> object:
    key = row.get(field) if isinstance(row, Mapping) else None
    return key if isinstance(key, int | str) else None


def _textocr_names(split: str) -> tuple[str, ...]:
    return (f"TextOCR_0.1_{split}.json",)


def _read_textocr(corpus: Corpus, split: str) -> Listing:
    file = find_annotation(corpus, *_textocr_names(split))
    raw: Any = load_dict(corpus, file)
    # As for COCO: words by image first, without the illegible ones.
    words: dict[object, list[Mapping]] = defaultdict(list)
    loose = []
    annotations, images = (value_under_key(file, raw, key, dict) for key in ("anns", "imgs"))
    for annotation in annotations.values():
        if not isinstance(annotation, Mapping) or not isinstance(
            annotation.get("image_id"), int | str
        ):
            loose.append(annotation)
        elif annotation.get("utf8_string") != _ILLEGIBLE:
            words[annotation["image_id"]].append(annotation)
    folder = image_folder(corpus, "train_images", "textvqa")

    def items_of_row(row: tuple[str, dict]) -> Iterator[Item | Reject]:
        key, image = row
        read = []
        for annotation in words.pop(key, ()):
            x, y, w, h = box_of(annotation.get("bbox"), "bbox", _COCO_BOX)
            read.append({"text": annotation["utf8_string"], "box": [x, y, x + w, y + h]})
        if not read:
            return iter(())
        metadata = {"width": int(image["width"]), "height": int(image["height"]), "ocr": read}
        return _web_items(
            corpus, f"textocr/{split}/{key}", corpus.media(folder / f"{key}.jpg"), metadata
        )

    _note_orphans(corpus, file, words, images)
    yield from read_rows(corpus, file, f"textocr/{split}", images.items(), items_of_row)
    yield from _of_no_image(corpus, file, f"textocr/{split}", loose)


def _read_genome(corpus: Corpus, split: str) -> Listing:
    questions, descriptions = (find_annotation(corpus, name) for name in _GENOME)
    regions = index_rows(descriptions, load_list(corpus, descriptions), "id")
    folders = [image_folder(corpus, name, "visual_genome") for name in ("VG_100K", "VG_100K_2")]
    # Pictures lie in two folders; one listing of the first tells which.
    first = {path.name for path in folders[0].iterdir()} if folders[0].is_dir() else set()

    def items_of_row(row: dict) -> Iterator[Item | Reject]:
        name = f"{int(row['id'])}.jpg"
        pairs = [{"question": qa["question"], "answer": qa["answer"]} for qa in row["qas"]]
        objects = [
            {"label": region["phrase"], "box": _region_box(region)}
            for region in regions.pop(row["id"], {"regions": ()})["regions"]
        ]
        if not pairs and not objects:
            return iter(())
        media = corpus.media(folders[name not in first] / name)
        metadata = {"qa": pairs, "objects": objects}
        items = _web_items(corpus, f"visual_genome/{split}/{name}", media, metadata)
        # Region phrases are not names of objects, so detection items are dropped.
        return (item for item in items if not (isinstance(item, Item) and item.task == "detect"))

    rows = load_list(corpus, questions)
    described = {
        key: row["regions"] for key, row in regions.items() if isinstance(row.get("regions"), list)
    }
    _note_orphans(corpus, descriptions, described, (_annotation_row_key(row, "id") for row in rows))
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
        has_clips=False,
        files=files,
        publisher=publisher,
    )
    for name, folder, splits, read, files, publisher in (
        (
            "coco_objects",
            "coco",
            ("train", "val"),
            _read_coco_objects,
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
