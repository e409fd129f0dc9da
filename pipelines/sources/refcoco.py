"""RefCOCO, RefCOCO+ and RefCOCOg: an expression refers to one object of a COCO image.

    refcoco/refs(unc).p        pickled list of refs: ref_id, ann_id, image_id, file_name, split,
                               sentences[{sent_id, sent, ...}]
    refcoco/instances.json     COCO: images, annotations with bbox and polygons or run lengths
    images/**/{file_name}      of COCO train2014

Published by its authors at github.com/lichengunc/refer (Apache-2.0).
"""

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipelines.benchmarks.registry import get
from pipelines.records.schema import MASK_MARKER, Reject
from pipelines.sources.item import BOX_MARKER, Corpus, Item

SPLITS = ("train", "val", "testA", "testB", "test")


# What unpickling damaged bytes raises, by the pickle module's own documentation and by trial.
_UNREADABLE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)


class _PlainData(pickle.Unpickler):
    """Reads lists, dicts, texts and numbers; what names a class or function is refused."""

    def find_class(self, module_name: str, global_name: str):
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def load_refs(corpus: Corpus, path: Path) -> list[dict]:
    """Returns the rows of a refs pickle, which may be Python 2's, without running anything in it.

    Raises:
      ValueError: if it is not plain data, naming the file and what it asked for.
    """
    data = corpus.annotation(path).read_bytes()
    try:
        refs = _PlainData(io.BytesIO(data), encoding=_text_encoding(data)).load()
    except _UNREADABLE as error:
        raise ValueError(f"{path} is not a pickle of plain data: {error}.") from error
    if not isinstance(refs, list):
        raise ValueError(f"{path} must hold a list of refs, got a {type(refs).__name__}.")
    return refs


def _text_encoding(data: bytes) -> str:
    """Returns how Python 2's byte strings in a pickle are to be read."""
    try:
        _PlainData(io.BytesIO(data), encoding="utf-8").load()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def read(corpus: Corpus, split: str) -> Iterator[Item | Reject]:
    """Yields a would-be record per sentence of every ref of the split (the "flat" form)."""
    folders = sorted(p.parent for p in corpus.folder.glob("*/refs(*).p"))
    if not folders:
        corpus.annotation(corpus.folder / "refcoco" / "refs(unc).p")
    missing = corpus.folder / "images"
    files = _image_index(missing)
    for folder in folders:
        instances = corpus.load_json(folder / "instances.json")
        if not isinstance(instances, Mapping) or not {"annotations", "images"} <= set(instances):
            raise ValueError(f"{folder / 'instances.json'} lacks annotations and images.")
        annotations = {a["id"]: a for a in instances["annotations"]}
        images = {i["id"]: i for i in instances["images"]}
        for path in sorted(folder.glob("refs(*).p")):
            for number, ref in enumerate(load_refs(corpus, path)):
                try:
                    if ref["split"] != split:
                        continue
                    image = images[ref["image_id"]]
                    annotation = annotations[ref["ann_id"]]
                    file = files.get(str(image["file_name"])) or missing / image["file_name"]
                    yield from _items(corpus, folder.name, ref, image, annotation, file)
                except (KeyError, TypeError, ValueError) as error:
                    yield Reject(
                        id=f"{folder.name}/{split}/{number}",
                        stage="read",
                        reason=f"malformed ref: {type(error).__name__}: {error}",
                        source=corpus.relative(path),
                    )


def _image_index(folder: Path) -> dict[str, Path]:
    return {p.name: p for p in sorted(folder.rglob("*")) if p.is_file()}


def _items(
    corpus: Corpus, name: str, ref: Mapping, image: Mapping, annotation: Mapping, file: Path
) -> Iterator[Item]:
    width, height = int(image["width"]), int(image["height"])
    x, y, w, h = map(float, annotation["bbox"])
    shape = annotation["segmentation"]
    mask = {"size": [height, width], "polygons": shape} if isinstance(shape, list) else shape
    for sentence in ref["sentences"]:
        yield Item(
            id=f"{name}/{ref['split']}/{Path(file).stem}#{ref['ref_id']}-{sentence['sent_id']}",
            part="refcoco",
            media=(corpus.media(file),),
            prefix=get("refcoco").prefix(sentence["sent"]),
            suffixes=(f"{BOX_MARKER}{MASK_MARKER}",),
            task="refcoco",
            boxes=((x, y, x + w, y + h),),
            masks=(json.dumps(mask),),
            annotated_size=(width, height),
            meta={"ref_id": ref["ref_id"], "ann_id": ref["ann_id"], "image_id": ref["image_id"]},
        )
