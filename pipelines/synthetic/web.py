"""Writes the web set: captioned pictures in tars, in img2dataset's layout."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from pipelines.records.rle import encode_mask
from pipelines.synthetic.captions import (
    LANGUAGES,
    describe_chart,
    describe_page,
    describe_scene,
)
from pipelines.synthetic.chart_drawing import draw_chart
from pipelines.synthetic.charts import augmented_questions, human_questions, make_chart
from pipelines.synthetic.config import CorpusConfig, rng_for
from pipelines.synthetic.drawing import font, paper
from pipelines.synthetic.encode import jpeg_bytes, write_tar
from pipelines.synthetic.scenes import make_scene, scene_questions

# fmt: off
WORDS = (
    "open", "door", "stop", "north", "sale", "fresh", "bread", "coffee", "music", "hotel",
    "river", "garden", "light", "paper", "school", "train", "silver", "summer", "market",
    "island", "winter", "radio", "museum", "bridge",
)
# fmt: on
# Kind of a picture, by its number, so that the shares of kinds hold at any corpus size.
_CYCLE = ("scene", "chart", "scene", "chart", "page")
_MAX_QUESTIONS = 3
_MAX_WORDS = 3
_INK = (24, 24, 30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A picture, its captions by language, and its other annotations."""

    image: np.ndarray
    captions: dict[str, str]
    notes: dict[str, list]


def write_web(config: CorpusConfig, root: Path, on_item: Callable[[], None]) -> None:
    """Writes `00000.tar`, ... under `root`; the last pairs of the last tar are the defects."""
    root.mkdir(parents=True)
    healthy = config.num_web
    total = healthy + config.count_defects(0)
    starts = range(0, healthy, config.shard_size)
    for shard, start in enumerate(starts):
        last = start == starts[-1]
        stop = total if last else start + config.shard_size
        members = _web_shard_members(config, shard, range(start, stop), on_item)
        write_tar(root / f"{shard:05d}.tar", members)


def make_pair(config: CorpusConfig, index: int) -> Pair:
    """Returns picture number `index` of the web set: a scene, a chart or a page of words."""
    rng = rng_for(config.seed, "web", index)
    other_langs = LANGUAGES[1:]
    langs = (
        "en",
        other_langs[index % len(other_langs)],
        other_langs[(index + 1 + index // 4) % len(other_langs)],
    )
    langs = tuple(dict.fromkeys(langs))
    kind = _CYCLE[index % len(_CYCLE)]
    if kind == "scene":
        return _scene_pair(config, rng, langs)
    if kind == "chart":
        return _chart_pair(rng, langs)
    return _page_pair(config, rng, langs)


def _web_shard_members(
    config: CorpusConfig, shard: int, indices: range, on_item: Callable[[], None]
) -> Iterator[tuple[str, bytes]]:
    # Indices past `num_web` are the defects: the same pair, but with a JPEG cut off after a third.
    for number, index in enumerate(indices):
        key = f"{shard:05d}{number:04d}"
        pair = make_pair(config, index)
        image = jpeg_bytes(pair.image)
        row = _pair_metadata(key, pair, image)
        if index >= config.num_web:
            image = image[: len(image) // 3]
        else:
            on_item()
        yield f"{key}.jpg", image
        yield f"{key}.json", json.dumps(row, ensure_ascii=False).encode()
        yield f"{key}.txt", row["caption"].encode()


def _pair_metadata(key: str, pair: Pair, image: bytes) -> dict:
    # The fields that img2dataset writes, then ours: captions in more languages and annotations. The
    # digest is that of the whole picture, also for a defect, which is cut off later.
    height, width = pair.image.shape[:2]
    return {
        "key": key,
        "url": f"https://pictures.example/{key}.jpg",
        "caption": pair.captions["en"],
        "status": "success",
        "error_message": None,
        "width": width,
        "height": height,
        "original_width": width,
        "original_height": height,
        "exif": "{}",
        "sha256": hashlib.sha256(image).hexdigest(),
        "captions": pair.captions,
        **pair.notes,
    }


def _scene_pair(config: CorpusConfig, rng: np.random.Generator, langs: tuple[str, ...]) -> Pair:
    scene = make_scene(rng, height=config.image_height, width=config.image_width)
    color_shapes = [(item.color, item.shape) for item in scene.items]
    objects = [
        {"label": item.label, "box": item.box, "mask": json.loads(encode_mask(scene.mask(item)))}
        for item in scene.items
    ]
    return Pair(
        image=scene.image,
        captions={lang: describe_scene(color_shapes, lang) for lang in langs},
        notes={"objects": objects, "qa": scene_questions(scene, rng, count=_MAX_QUESTIONS)},
    )


def _chart_pair(rng: np.random.Generator, langs: tuple[str, ...]) -> Pair:
    chart = make_chart(rng)
    question_answers = human_questions(chart, rng) + augmented_questions(chart, rng)
    return Pair(
        image=draw_chart(chart),
        captions={lang: describe_chart(chart.kind, len(chart.values), lang) for lang in langs},
        notes={
            "qa": [
                {"question": question, "answer": answer} for question, answer in question_answers
            ]
        },
    )


def _page_pair(config: CorpusConfig, rng: np.random.Generator, langs: tuple[str, ...]) -> Pair:
    width, height = config.image_width, config.image_height
    count = int(rng.integers(1, _MAX_WORDS + 1))
    words = [str(word) for word in rng.permutation(WORDS)[:count]]
    image = Image.fromarray(paper(rng, height=height, width=width))
    draw = ImageDraw.Draw(image)
    ocr = []
    # Words stand below each other in bands of equal height. The box is where the word was really
    # drawn, which depends on the font.
    for number, word in enumerate(words):
        size = int(min(width, height) * (0.2 if len(word) < 6 else 0.17))
        spot = (width / 2, height * (2 * number + 1) / (2 * count))
        draw.text(spot, word, fill=_INK, font=font(size), anchor="mm")
        box = draw.textbbox(spot, word, font=font(size), anchor="mm")
        ocr.append({"text": word, "box": [round(side) for side in box]})
    text = " ".join(words)
    question_answers = [
        ("what is written on the page?", text),
        ("how many words are there?", str(count)),
    ]
    return Pair(
        image=np.asarray(image),
        captions={lang: describe_page(text, lang) for lang in langs},
        notes={"ocr": ocr, "qa": [{"question": q, "answer": a} for q, a in question_answers]},
    )
