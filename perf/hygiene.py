"""How many planted duplicates hygiene finds, and how often it takes other pictures for duplicates.

    python -m perf.hygiene FOLDER [FOLDER ...] [--pairs FOLDER]

A folder holds pictures of one kind (photographs, charts, ...), a subfolder those of one source.

Recall: some pictures of every folder are changed in one way and searched for among all pictures.
False alarms are counted twice: every picture is searched for among all earlier ones (a corpus
against itself), and the pictures of half of the sources among those of the other half (a corpus
against an evaluation set). Real duplicates between sources count as false alarms here; `--pairs`
writes all pairs, to be judged by eye. Intervals are exact 95 % intervals.
"""

import argparse
import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance
from scipy import stats

from perf.timing import aligned_table
from pipelines.hygiene.fingerprint import fingerprint
from pipelines.hygiene.index import MIN_LIKENESS, PictureIndex, SimilarPicture
from pipelines.images.square import ImageSpec, decode_image, encode_image, square_image
from pipelines.records.schema import BadInput

MIN_SIDE = 64
"""Least side of a picture; smaller ones are icons, and left out [pixels]."""

Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def reencode(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns the picture after JPEG of quality 30 to 75."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(rng.integers(30, 76)))
    return Image.open(buffer).convert("RGB")


def resize(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns the picture at 30 to 70 % of its size, each side off by up to 10 %, by any filter."""
    scale = rng.uniform(0.3, 0.7)
    width, height = (max(64, round(s * scale * rng.uniform(0.9, 1.1))) for s in image.size)
    return image.resize((width, height), Image.Resampling(int(rng.integers(0, 4))))


def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns a crop of 90 % of each side, at a random place."""
    width, height = (round(side * 0.9) for side in image.size)
    left = int(rng.integers(0, image.width - width + 1))
    top = int(rng.integers(0, image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def recolour(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns the picture with random hue, and changed saturation, brightness and contrast."""
    hsv = np.array(image.convert("HSV"))
    hsv[..., 0] += np.uint8(rng.integers(0, 256))
    image = Image.fromarray(hsv, "HSV").convert("RGB")
    image = ImageEnhance.Color(image).enhance(rng.uniform(0, 2))
    image = ImageEnhance.Brightness(image).enhance(rng.uniform(0.7, 1.3))
    return ImageEnhance.Contrast(image).enhance(rng.uniform(0.7, 1.3))


def grey(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns the picture without colours."""
    del rng
    return image.convert("L").convert("RGB")


def everything(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Returns the picture resized, cropped, recoloured and re-encoded."""
    for change in (resize, crop, recolour, reencode):
        image = change(image, rng)
    return image


CHANGES: dict[str, Change] = {
    change.__name__: change for change in (reencode, resize, crop, recolour, grey, everything)
}


def stored(image: Image.Image) -> bytes:
    """Returns a picture as datasets keep it: a square JPEG."""
    return encode_image(square_image(image, ImageSpec()), "jpeg")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture; its name is the path below its folder, and begins with the source."""

    folder: Path
    name: str
    data: bytes
    print: np.ndarray

    @property
    def source(self) -> str:
        """Names of its folder and subfolder."""
        return f"{self.folder.name}/{self.name.partition('/')[0]}"

    def open(self) -> Image.Image:
        """Returns the picture with at most 1000 pixels a side."""
        image = decode(self.folder / self.name)
        image.thumbnail((1000, 1000))
        return image


def decode(path: Path) -> Image.Image:
    """Returns a picture as the pipeline reads it; raises `BadInput` if the pipeline rejects it."""
    return decode_image(path.read_bytes(), min_side=MIN_SIDE, max_pixels=64_000_000)


def read_folder(folder: Path, limit: int) -> list[Picture]:
    """Returns up to `limit` pictures below a folder in random order, without blanks and copies."""
    found: list[Picture] = []
    known: set[bytes] = set()
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for number in np.random.default_rng(0).permutation(len(files)):
        path = files[number]
        digest = hashlib.sha256(path.read_bytes()).digest()
        try:
            data = b"" if digest in known else stored(decode(path))
        except BadInput:
            continue
        made = fingerprint(data) if data else None
        known.add(digest)
        if made is not None:
            name = str(path.relative_to(folder))
            found.append(Picture(folder=folder, name=name, data=data, print=made))
        if len(found) == limit:
            break
    return found


def recall(
    pictures: Sequence[Picture], index: PictureIndex, planted: Sequence[int]
) -> dict[str, int]:
    """Returns, by change, how many planted pictures (rows of the index) are found after it."""
    rng = np.random.default_rng(1)
    own = search(index, [pictures[row] for row in planted])
    # Unchanged pictures may already look like others, such as frames of one scene: each is a hit.
    same = [{row} | {one.row for one in found} for row, found in zip(planted, own, strict=True)]
    hits = dict.fromkeys(CHANGES, 0)
    for name, change in CHANGES.items():
        changed = {}
        for number, row in enumerate(planted):
            data = stored(change(pictures[row].open(), rng))
            if (made := fingerprint(data)) is not None:
                changed[number] = dataclasses.replace(pictures[row], data=data, print=made)
        found = search(index, list(changed.values()))
        for number, alike in zip(changed, found, strict=True):
            hits[name] += not same[number].isdisjoint(one.row for one in alike)
    return hits


def index_of(pictures: Sequence[Picture]) -> PictureIndex:
    """Returns an index of pictures, a row each."""
    return PictureIndex([p.print for p in pictures], lambda row: pictures[row].data)


def search(
    index: PictureIndex, pictures: Sequence[Picture], row_limits: list[int] | None = None
) -> list[list[SimilarPicture]]:
    """Returns, for each picture, the indexed pictures that it looks like."""
    prints = [p.print for p in pictures]
    return index.search(prints, lambda number: pictures[number].data, row_limits=row_limits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarms:
    """Results of a search for pictures that look like another one.

    Attributes:
      asked: rows of the pictures searched for.
      found: pictures that each of them looks like, the most alike first.
      pictures: pictures that were searched.
    """

    asked: list[int]
    found: list[list[SimilarPicture]]
    pictures: Sequence[Picture]

    def pairs(self) -> Iterator[tuple[float, int, Picture]]:
        """Yields the likeness, the row asked, and the picture that it is taken for."""
        for row, found in zip(self.asked, self.found, strict=True):
            if found:
                yield found[0].likeness, row, self.pictures[found[0].row]


def with_itself(pictures: Sequence[Picture], index: PictureIndex) -> Alarms:
    """Searches for every picture among the earlier ones."""
    rows = list(range(len(pictures)))
    found = search(index, pictures, row_limits=rows)
    return Alarms(asked=rows, found=found, pictures=pictures)


def with_half_the_sources(pictures: Sequence[Picture]) -> Alarms:
    """Searches for the pictures of every other source among those of the remaining sources."""
    sources = sorted({p.source for p in pictures})
    held_out = [p for p in pictures if p.source in sources[1::2]]
    rows = [row for row, p in enumerate(pictures) if p.source in sources[::2]]
    found = search(index_of(held_out), [pictures[row] for row in rows])
    return Alarms(asked=rows, found=found, pictures=held_out)


def rate(hits: int, total: int) -> str:
    """Returns hits, their share, and the exact 95 % interval of the rate."""
    if not total:
        return "-"
    low, high = stats.binomtest(hits, total).proportion_ci(0.95, "exact")
    return f"{hits}/{total} {hits / total:.2%} ({low:.2%}-{high:.2%})"


def write_pairs(folder: Path, name: str, pictures: Sequence[Picture], alarms: Alarms) -> None:
    """Writes the alike pairs as JSON lines, and as contact sheets of 100 pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = sorted(alarms.pairs(), key=lambda pair: (-pair[0], pair[1]))
    with (folder / f"{name}.jsonl").open("w") as file:
        for likeness, row, other in pairs:
            names = [f"{p.folder.name}/{p.name}" for p in (pictures[row], other)]
            print(json.dumps([round(likeness, 3), *names]), file=file)
    for start in range(0, len(pairs), 100):
        sheet = Image.new("RGB", (1700, 1000), "white")
        pen = ImageDraw.Draw(sheet)
        for place, (likeness, row, other) in enumerate(pairs[start : start + 100]):
            x, y = place % 10 * 170, place // 10 * 100
            for left, picture in ((0, pictures[row]), (82, other)):
                sheet.paste(picture.open().resize((80, 80)), (x + left, y + 14))
            pen.text((x, y), f"{start + place} {likeness:.2f}", fill="black")
        sheet.save(folder / f"{name}-{start}.png")


def main(words: Sequence[str] | None = None) -> None:
    """Prints a table of recalls, one of false alarms, and the time per picture."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=10_000, help="pictures per folder")
    parser.add_argument("--planted", type=int, default=200, help="of them planted again")
    parser.add_argument("--pairs", type=Path, help="folder for the alike pairs and their sheets")
    options = parser.parse_args(words)
    started = time.process_time()
    kinds = {folder: read_folder(folder, options.limit) for folder in options.folders}
    pictures = [picture for kind in kinds.values() for picture in kind]
    read = (time.process_time() - started) / max(1, len(pictures))
    index = index_of(pictures)
    # How many changed copies are found again, of the first pictures of each folder.
    hits, first = {}, 0
    for folder, kind in kinds.items():
        planted = range(first, first + min(options.planted, len(kind)))
        hits[folder] = recall(pictures, index, planted), len(planted)
        first += len(kind)
    names = [folder.name for folder in kinds]
    rows = [[name, *(rate(found[name], n) for found, n in hits.values())] for name in CHANGES]
    print(aligned_table([f"recall at {MIN_LIKENESS}", *names], rows), end="\n\n")
    # How many pictures are taken for another: for one of the same set, then with half the sources
    # searched for in the other half, since pictures of one source may truly be alike.
    rows, started = [], time.process_time()
    for name, alarms in {
        "itself": with_itself(pictures, index),
        "half the sources": with_half_the_sources(pictures),
    }.items():
        row, alike = [name], list(alarms.pairs())
        for folder in kinds:
            asked = sum(pictures[i].folder == folder for i in alarms.asked)
            row.append(rate(sum(pictures[i].folder == folder for _, i, _ in alike), asked))
        rows.append(row)
        if options.pairs:
            write_pairs(options.pairs, name.replace(" ", "-"), pictures, alarms)
    print(aligned_table(["taken for another", *names], rows), end="\n\n")
    took = (time.process_time() - started) / max(1, len(pictures))
    print(f"{len(pictures)} pictures: {read * 1e3:.1f} ms to read each, {took * 1e3:.1f} to search")


if __name__ == "__main__":
    main()
