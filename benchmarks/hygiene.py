"""How many planted duplicates hygiene finds, and how often it takes different pictures for one.

    python -m benchmarks.hygiene FOLDER [FOLDER ...] [--limit 300]

Every picture below a folder is planted again, changed in one way at a time, and looked for among
all pictures. False alarms are pictures that look like another one of their folder; real
duplicates in there count as such, so the most alike pairs are listed, to be judged by eye.
"""

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from pipelines.hygiene.fingerprint import fingerprint
from pipelines.hygiene.index import MIN_LIKENESS, Index
from pipelines.sources.item import BadInput
from pipelines.transforms.images import ImageSpec, decode_image, encode_image, squash

Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def reencode(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns what JPEG of quality 30 to 75 leaves."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(rng.integers(30, 76)))
    return Image.open(buffer).convert("RGB")


def resize(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns it at 30 to 70 % of its size, its shape changed by up to 10 %, by any filter."""
    scale = rng.uniform(0.3, 0.7)
    width, height = (max(64, round(s * scale * rng.uniform(0.9, 1.1))) for s in image.size)
    return image.resize((width, height), Image.Resampling(int(rng.integers(0, 4))))


def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns 90 % of each side, anywhere."""
    width, height = (round(side * 0.9) for side in image.size)
    left = int(rng.integers(0, image.width - width + 1))
    top = int(rng.integers(0, image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def recolour(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns it with any other hue, and saturation, brightness and contrast changed."""
    hsv = np.array(image.convert("HSV"))
    hsv[..., 0] += np.uint8(rng.integers(0, 256))
    image = Image.fromarray(hsv, "HSV").convert("RGB")
    image = ImageEnhance.Color(image).enhance(rng.uniform(0, 2))
    image = ImageEnhance.Brightness(image).enhance(rng.uniform(0.7, 1.3))
    return ImageEnhance.Contrast(image).enhance(rng.uniform(0.7, 1.3))


def grey(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns it without colours."""
    del rng
    return image.convert("L").convert("RGB")


def everything(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns it resized, cropped, recoloured and re-encoded."""
    for change in (resize, crop, recolour, reencode):
        image = change(image, rng)
    return image


CHANGES: dict[str, Change] = {
    change.__name__: change for change in (reencode, resize, crop, recolour, grey, everything)
}


def stored(image: Image.Image) -> bytes:
    """Returns a picture as datasets keep it: a square JPEG."""
    return encode_image(squash(image, ImageSpec()), "jpeg")


def read_folder(folder: Path, limit: int) -> dict[str, Image.Image]:
    """Returns up to `limit` different pictures below a folder that are not blank, by name."""
    found: dict[str, Image.Image] = {}
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for number in np.random.default_rng(0).permutation(len(files)):
        path = files[number]
        try:
            image = decode_image(path.read_bytes(), min_side=48, max_pixels=64_000_000)
        except BadInput:
            continue
        image.thumbnail((1000, 1000))
        found[str(path.relative_to(folder))] = image
        if len(found) == limit:
            break
    return found


def measure(pictures: dict[str, Image.Image], index: Index, first: int) -> dict:
    """Returns recall per change, false alarms, and the most alike pairs of one folder."""
    rng = np.random.default_rng(1)
    names, recall = list(pictures), {}
    own = [fingerprint(stored(image)) for image in pictures.values()]
    found = index.search([p for p in own if p is not None], min_likeness=0.5)
    # Of a scene's many frames, any is as good a find as the frame itself.
    same = [
        {first + i} | {one.row for one in row if one.likeness >= MIN_LIKENESS}
        for i, row in enumerate(found)
    ]
    for name, change in CHANGES.items():
        prints = [fingerprint(stored(change(image, rng))) for image in pictures.values()]
        hits = iter(index.search([p for p in prints if p is not None]))
        rows = [set() if p is None else {one.row for one in next(hits)} for p in prints]
        recall[name] = float(np.mean([bool(r & s) for r, s in zip(rows, same, strict=True)]))
    pairs = sorted(
        (
            (round(one.likeness, 3), names[i], one.row)
            for i, row in enumerate(found)
            for one in row
            if one.row != first + i
        ),
        reverse=True,
    )
    alarms = {
        f"{at:.2f}": len({name for likeness, name, _ in pairs if likeness >= at}) / len(names)
        for at in (MIN_LIKENESS, 0.9, 0.97)
    }
    return {"pictures": len(names), "recall": recall, "alarms": alarms, "pairs": pairs[:20]}


def main() -> None:
    """Prints a JSON line per folder."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=300, help="pictures per folder")
    options = parser.parse_args()
    groups: dict[Path, dict[str, Image.Image]] = {}
    prints: list[np.ndarray] = []
    firsts: dict[Path, int] = {}
    for folder in options.folders:
        firsts[folder] = len(prints)
        kept = {}
        for name, image in read_folder(folder, options.limit).items():
            made = fingerprint(stored(image))
            if made is not None:
                kept[name] = image
                prints.append(made)
        groups[folder] = kept
    index = Index(prints)
    owners = [f"{folder.name}/{name}" for folder, kept in groups.items() for name in kept]
    for folder, kept in groups.items():
        result = measure(kept, index, firsts[folder])
        result["pairs"] = [(at, name, owners[row]) for at, name, row in result["pairs"]]
        print(json.dumps({"folder": folder.name, **result}), flush=True)


if __name__ == "__main__":
    main()
