"""Pictures a second that the loader of training brings, by the number of its threads.

    python -m perf.loader --threads 2 4 8

The dataset is drawn: stored squares of 224 px, JPEG of quality 95 as preparing writes them. Numbers
of threads take turns; the table has the best turn's pace and the processor time of a picture.
"""

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from model.data.config import BatchConfig
from model.data.loader import Loader
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer, train_tokenizer
from perf.timing import table
from pipelines.images.square import encode_image
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.example import encode_example
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard

_PX = 224
_PREFIX = "caption en"
_WORDS = "what is in this picture? a soft shape of some colour, with grain"


def write_squares(folder: Path, num_pictures: int, px: int = _PX) -> str:
    """Writes a dataset of drawn squares with captions; returns its folder."""
    folder.mkdir(parents=True)
    shard = "caption-00000-of-00001.tfrecord"
    write_shard(folder / shard, [encode_example(_record(n, px)) for n in range(num_pictures)])
    info = DatasetInfo(
        name="perf/train",
        parts={"caption": PartInfo(shards=(shard,), num_records=(num_pictures,))},
        num_inputs=num_pictures,
        num_rejected=0,
        image_px=px,
    )
    info.write(folder)
    (folder / "rejects.jsonl").write_text("")
    return str(folder)


def write_tokenizer(path: Path) -> Tokenizer:
    """Returns a small tokenizer that knows the captions."""
    train_tokenizer([_PREFIX, *_WORDS.split()] * 9, str(path), 300)
    return Tokenizer(str(path))


def _record(number: int, px: int) -> Record:
    rng = np.random.default_rng(number)
    shapes = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
    grain = Image.fromarray(rng.integers(0, 256, (px, px, 3), np.uint8))
    square = Image.blend(shapes.resize((px, px), Image.Resampling.BICUBIC), grain, 0.08)
    return Record(
        id=f"perf/{number:06d}",
        images=(encode_image(square, "jpeg"),),
        prefix=_PREFIX,
        suffixes=(_WORDS,),
        task="caption",
        source="drawn",
        source_sha256="0" * 64,
    )


def measure(
    data: str,
    tokenizer: Tokenizer,
    threads: Sequence[int],
    *,
    rounds: int,
    num_batches: int,
    batch_size: int,
    px: int = _PX,
) -> Iterator[str]:
    """Yields the table, a row for each number of threads."""
    config = BatchConfig(batch_size=batch_size, text_len=32)
    costs: dict[int, list[tuple[float, float]]] = {number: [] for number in threads}
    for turn in range(rounds):
        for number in threads:
            with _cores(number):
                loader = Loader(
                    data,
                    config,
                    tokenizer=tokenizer,
                    mask_codec=None,
                    image_px=px,
                    seeds=Seeds.of(0),
                )
            with contextlib.closing(loader):
                wall, cpu = time.perf_counter(), time.process_time()
                start = turn * num_batches
                for batch in loader.batches(start, start + num_batches):
                    assert len(batch["image"]) == batch_size
                costs[number].append((time.perf_counter() - wall, time.process_time() - cpu))
    num_pictures = num_batches * batch_size
    rows = []
    for number, runs in costs.items():
        wall, cpu = (min(values) / num_pictures for values in zip(*runs, strict=True))
        rows.append([number, f"{1 / wall:.0f}", f"{1000 * cpu:.3f}"])
    yield table(["threads", "pictures/s", "processor [ms/picture]"], rows)


@contextlib.contextmanager
def _cores(number: int) -> Iterator[None]:
    """Tells a loader that is made in the block how many cores it has."""
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
        data = write_squares(Path(folder) / "data", options.pictures)
        tokenizer = write_tokenizer(Path(folder) / "tokenizer.model")
        for line in measure(
            data,
            tokenizer,
            options.threads,
            rounds=options.rounds,
            num_batches=options.batches,
            batch_size=options.batch_size,
        ):
            print(line)


if __name__ == "__main__":
    main()
