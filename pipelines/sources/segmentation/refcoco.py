"""RefCOCO, RefCOCO+ and RefCOCOg: an expression refers to one object of a COCO image.

    refcoco/refs(unc).p        pickled list of refs: ref_id, ann_id, image_id, file_name, split,
                               sentences[{sent_id, sent, ...}]
    refcoco/instances.json     COCO: images, annotations with bbox and polygons or run lengths
    images/**/{file_name}      of COCO train2014; or in coco/train2014 beside this folder

"train" joins the three sets, without any image on which one of them evaluates. It has a record per
image, with all its objects and their expressions (big_vision's "refcocox_combined"). "val",
"testA", "testB" and "test" also join the sets, with a record per expression; "refcocoplus_val" is
RefCOCO+'s alone, and so on.

Published by its authors at github.com/lichengunc/refer (Apache-2.0).
"""

import dataclasses
import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import MASK_MARKER, Reject
from pipelines.sources.benchmark_sources import benchmark_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import BOX_MARKER, Item, Listing, Media
from pipelines.sources.reading.layout import image_folder
from pipelines.sources.reading.row_files import index_rows
from pipelines.sources.reading.values import box_of, text_of

_SENTENCES = {
    ("RefCOCO (val)", "refcoco_val"): 10_834,
    ("RefCOCO (testA)", "refcoco_testA"): 5_657,
    ("RefCOCO (testB)", "refcoco_testB"): 5_095,
    ("RefCOCO+ (val)", "refcocoplus_val"): 10_758,
    ("RefCOCO+ (testA)", "refcocoplus_testA"): 5_726,
    ("RefCOCO+ (testB)", "refcocoplus_testB"): 4_889,
    ("RefCOCO-g (val)", "refcocog_val"): 4_896,
    ("RefCOCO-g (test)", "refcocog_test"): 9_602,
}

REFCOCO = Benchmark(
    name="refcoco",
    config="refcoco_seg",
    prompt="{text}",
    text_len=48,
    metric="miou",
    final_split="train",
    eval_split="val",
    rows=tuple(
        ResultRow(titles=(title,), split=split, suite="main", size=size)
        for (title, split), size in _SENTENCES.items()
    ),
    num_train=24_407,
    recipes={
        224: FinetuneRecipe(lr_pg1=3e-5, lr_pg2=1e-5, epochs=100, label_smoothing=0.3, dropout=0.1),
        448: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=1e-5, epochs=100, label_smoothing=0.3),
    },
)

_SETS = {"refcoco": "refcoco", "refcocoplus": "refcoco+", "refcocog": "refcocog"}
_USED = {"refcoco": "unc", "refcoco+": "unc", "refcocog": "umd"}
"""Folder -> partition that benchmarks use; "google" is another partition of the same refs."""

SPLITS = (
    "train",
    "val",
    "testA",
    "testB",
    "test",
    "refcoco_val",
    "refcoco_testA",
    "refcoco_testB",
    "refcocoplus_val",
    "refcocoplus_testA",
    "refcocoplus_testB",
    "refcocog_val",
    "refcocog_test",
)
_TARGET = f"{BOX_MARKER}{MASK_MARKER}"


# Errors of unpickling damaged bytes, from the pickle module's documentation and from trials.
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
    """Unpickles lists, dicts, texts and numbers; refuses references, which could run code."""

    def find_class(self, module_name: str, global_name: str):
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def refcoco_files(split: str) -> tuple[tuple[str, ...], ...]:
    """Returns the annotation files of a split, each as a tuple of its possible names."""
    name, _, part = split.rpartition("_")
    folders = [_SETS[name]] if part and name else list(_USED)
    return tuple(
        (f"{folder}/{file}",)
        for folder in folders
        for file in (f"refs({_USED[folder]}).p", "instances.json")
    )


def load_refs(corpus: Corpus, path: Path) -> list[dict]:
    """Returns the rows of a refs pickle, which may be Python 2's, without running code from it.

    Raises:
      ValueError: if it is not plain data, naming the file and the class or function it refers to.
    """
    data = corpus.annotation(path).read_bytes()
    try:
        refs = _PlainData(io.BytesIO(data), encoding=_text_encoding(data)).load()
    except _UNREADABLE as error:
        raise ValueError(f"{path} is not a pickle of plain data: {error}.") from error
    if not isinstance(refs, list):
        raise ValueError(f"{path} must hold a list of refs, got {kind_of(refs)}.")
    return refs


def _text_encoding(data: bytes) -> str:
    """Returns the encoding of Python 2's byte strings in a pickle."""
    try:
        _PlainData(io.BytesIO(data), encoding="utf-8").load()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def read_refcoco(corpus: Corpus, split: str) -> Listing:
    """Yields a would-be record per training image, or per sentence of an evaluation split."""
    dataset, _, part = split.rpartition("_")
    # Sets are read one after the other; for "train" an image's objects are collected over all of
    # them and yielded at the end, since several sets annotate the same images.
    paths = _ref_files(corpus, _SETS[dataset] if dataset else "*")
    refs = {path: load_refs(corpus, path) for path in paths}
    # An image on which one set evaluates is left out of every set's training.
    held_out = _evaluated_images(refs.values()) if split == "train" else set()
    find = _image_finder(corpus)
    pictures: dict[object, list[_ReferredObject]] = {}
    for path, rows in refs.items():
        folder = path.parent
        instances = corpus.load_json(folder / "instances.json")
        if not isinstance(instances, Mapping) or not {"annotations", "images"} <= set(instances):
            raise ValueError(f"{folder / 'instances.json'} lacks annotations and images.")
        annotations = index_rows(folder / "instances.json", instances["annotations"], "id")
        images = index_rows(folder / "instances.json", instances["images"], "id")
        for number, ref in enumerate(rows):
            try:
                if ref["split"] != part or ref["image_id"] in held_out:
                    continue
                image, annotation = images[ref["image_id"]], annotations[ref["ann_id"]]
                referred = _referred_object(corpus, folder.name, ref, image, annotation, find)
            except (KeyError, TypeError, ValueError) as error:
                yield Reject(
                    id=f"{folder.name}/{split}/{number}",
                    stage="read",
                    reason=f"malformed ref: {reason_of(error, ref)}",
                    source=corpus.relative(path),
                )
                continue
            if split != "train":
                yield from _items_per_sentence(referred)
            elif referred.sentences:
                # An object without a sentence cannot be asked for.
                pictures.setdefault(ref["image_id"], []).append(referred)
    yield from map(_item_per_image, pictures.values())


def _ref_files(corpus: Corpus, folder: str) -> list[Path]:
    """Returns the refs files to read; if a folder has several partitions, the one in `_USED`."""
    paths = sorted(corpus.folder.glob(f"{folder}/refs(*).p"))
    preferred = [p for p in paths if p.name == f"refs({_USED.get(p.parent.name)}).p"]
    folders = {p.parent for p in preferred}
    files = [p for p in paths if p in preferred or p.parent not in folders]
    if not files:
        name = "refcoco" if folder == "*" else folder
        corpus.annotation(corpus.folder / name / f"refs({_USED[name]}).p")
    return files


def _evaluated_images(refs: Iterable[list[dict]]) -> set[object]:
    """Returns the images that have a ref in a split other than "train"."""
    return {
        ref.get("image_id")
        for listed in refs
        for ref in listed
        if isinstance(ref, Mapping) and ref.get("split") != "train"
    }


def _image_finder(corpus: Corpus) -> Callable[[str], Path]:
    """Returns a function from an image's name to its path; a missing image gets its usual path."""
    folder = corpus.folder / "images"
    index = {p.name: p for p in sorted(folder.rglob("*")) if p.is_file()}
    shared = image_folder(corpus, "train2014", "coco")

    def find(name: str) -> Path:
        return index.get(name) or (shared if shared.is_dir() else folder) / name

    return find


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ReferredObject:
    """One object of an image, with the (id, prefix) of each sentence that one set has for it."""

    name: str
    media: Media
    size: tuple[int, int]
    box: tuple[float, float, float, float]
    mask: Mapping
    sentences: list[tuple[str, str]]
    meta: dict[str, object]


def _referred_object(
    corpus: Corpus,
    set_name: str,
    ref: Mapping,
    image: Mapping,
    annotation: Mapping,
    find: Callable[[str], Path],
) -> _ReferredObject:
    # COCO's box is x, y, width, height in pixels. The item's is x0, y0, x1, y1 in pixels, for the
    # tokens; the metric's is ymin, xmin, ymax, xmax in fractions, as predictions are.
    width, height = int(image["width"]), int(image["height"])
    x, y, w, h = box_of(annotation.get("bbox"), "bbox", "x, y, width, height")
    # Polygons are a list; run lengths are an object that states its own size.
    shape = annotation["segmentation"]
    mask = {"size": [height, width], "polygons": shape} if isinstance(shape, list) else shape
    prefix = REFCOCO.prefix
    media = corpus.media(find(str(image["file_name"])))
    ids = {key: ref[key] for key in ("ref_id", "ann_id", "image_id")}
    return _ReferredObject(
        name=f"{set_name}/{ref['split']}/{Path(media.path).stem}#{ref['ref_id']}",
        media=media,
        size=(width, height),
        box=(x, y, x + w, y + h),
        mask=mask,
        sentences=[
            (str(s["sent_id"]), prefix(text_of(s["sent"], "sent"))) for s in ref["sentences"]
        ],
        meta={**ids, "box": [y / height, x / width, (y + h) / height, (x + w) / width]},
    )


def _items_per_sentence(referred: _ReferredObject) -> Iterator[Item]:
    """Yields an item per sentence."""
    for key, prefix in referred.sentences:
        yield Item(
            id=f"{referred.name}-{key}",
            part="refcoco",
            media=(referred.media,),
            prefix=prefix,
            suffixes=(_TARGET,),
            task="refcoco",
            boxes=(referred.box,),
            masks=(json.dumps(referred.mask),),
            annotated_size=referred.size,
            meta=referred.meta,
        )


def _item_per_image(referred: list[_ReferredObject]) -> Item:
    """Returns the item of one image; merges an object that several sets refer to."""
    # Three refs of two objects ─▶ one item: suffixes per object, and the sentences of all sets as
    # the prefixes of each, of which training draws one.
    objects: dict[object, list[_ReferredObject]] = {}
    for ref in referred:
        objects.setdefault(ref.meta["ann_id"], []).append(ref)
    firsts = [refs[0] for refs in objects.values()]
    prefixes = [tuple(p for ref in refs for _, p in ref.sentences) for refs in objects.values()]
    return Item(
        id=f"refcoco/train/{Path(firsts[0].media.path).stem}",
        part="refcoco",
        media=(firsts[0].media,),
        prefix=prefixes[0][0],
        suffixes=(_TARGET,) * len(firsts),
        prefixes=tuple(prefixes),
        task="refcoco",
        boxes=tuple(ref.box for ref in firsts),
        masks=tuple(json.dumps(ref.mask) for ref in firsts),
        annotated_size=firsts[0].size,
        meta=firsts[0].meta,
    )


SOURCES = (
    benchmark_source(
        REFCOCO,
        splits=SPLITS,
        files=refcoco_files,
        read=read_refcoco,
        publisher="github.com/lichengunc/refer",
        containing_split=lambda split: split.rpartition("_")[2],
    ),
)
