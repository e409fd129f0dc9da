"""Writes referring expressions in the layout of `refer`: refs(unc).p and instances.json."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

from pipelines.records.rle import encode_mask
from pipelines.synthetic.config import CorpusConfig, rng_for, split_items
from pipelines.synthetic.drawing import SHAPES
from pipelines.synthetic.encode import jpeg_bytes
from pipelines.synthetic.scenes import Scene, SceneObject, expressions, make_scene

SPLITS = {"train": 0.6, "val": 0.2, "testA": 0.1, "testB": 0.1}
_PICKLE_PROTOCOL = 2  # the published files were written by Python 2


def write_scenes(config: CorpusConfig, root: Path, on_item: Callable[[], None]) -> None:
    """Writes `refcoco/refs(unc).p`, `refcoco/instances.json` and `images/` under `root`."""
    # One pass writes pictures and collects both tables, which refer to each other by running ids.
    (root / "refcoco").mkdir(parents=True)
    (root / "images").mkdir()
    refs: list[dict] = []
    instances: dict = {
        "info": {"description": "drawn scenes", "version": "1.0"},
        "licenses": [],
        "images": [],
        "annotations": [],
        "categories": [
            {"id": number, "name": shape, "supercategory": "shape"}
            for number, shape in enumerate(SHAPES, start=1)
        ],
    }
    # Ids of sentences run on over all splits, as do those of images, objects and refs.
    num_sentences = 0
    for split, indices in split_items(config.num_scenes, SPLITS).items():
        for index in indices:
            # A generator per scene: with more scenes in a corpus, the earlier ones look the same.
            rng = rng_for(config.seed, "scene", index)
            scene = make_scene(rng, height=config.image_height, width=config.image_width)
            image = _image_row(scene, image_id=index + 1)
            (root / "images" / image["file_name"]).write_bytes(jpeg_bytes(scene.image))
            instances["images"].append(image)
            for item in scene.items:
                annotation = _object_annotation(
                    item, scene, image_id=image["id"], ann_id=len(instances["annotations"]) + 1
                )
                sentences = expressions(item, scene, rng)
                instances["annotations"].append(annotation)
                refs.append(
                    _referring_expression_row(
                        annotation, image, split, sentences, ref_id=len(refs), first=num_sentences
                    )
                )
                num_sentences += len(sentences)
            on_item()
    (root / "refcoco" / "instances.json").write_text(json.dumps(instances), encoding="utf-8")
    (root / "refcoco" / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=_PICKLE_PROTOCOL))


def _image_row(scene: Scene, *, image_id: int) -> dict:
    height, width = scene.image.shape[:2]
    name = f"COCO_train2014_{image_id:012d}.jpg"
    return {"id": image_id, "file_name": name, "height": height, "width": width, "license": 0}


def _object_annotation(item: SceneObject, scene: Scene, *, image_id: int, ann_id: int) -> dict:
    mask = scene.mask(item)
    hollow = item.shape == "ring"
    x0, y0, x1, y1 = item.box
    return {
        "id": ann_id,
        "image_id": image_id,
        "category_id": SHAPES.index(item.shape) + 1,
        "segmentation": json.loads(encode_mask(mask)) if hollow else [item.polygon],
        "area": float(mask.sum()),
        "bbox": [float(x0), float(y0), float(x1 - x0), float(y1 - y0)],
        "iscrowd": 0,
    }


def _referring_expression_row(
    annotation: dict, image: dict, split: str, sentences: list[str], *, ref_id: int, first: int
) -> dict:
    """Returns one row; as in the published files, `file_name` is the image's plus the object id."""
    # Ids of sentences run over the whole file, so the caller says where this row's begin.
    sent_ids = list(range(first, first + len(sentences)))
    stem = image["file_name"].removesuffix(".jpg")
    return {
        "ref_id": ref_id,
        "ann_id": annotation["id"],
        "category_id": annotation["category_id"],
        "image_id": image["id"],
        "file_name": f"{stem}_{annotation['id']}.jpg",
        "split": split,
        "sent_ids": sent_ids,
        "sentences": [
            {"sent_id": sent_id, "sent": sentence, "raw": sentence, "tokens": sentence.split()}
            for sent_id, sentence in zip(sent_ids, sentences, strict=True)
        ],
    }
