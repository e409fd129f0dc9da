"""Speed from records to batches: our loader against plain `tf.data`, on the same cores.

    python -m perf.loader

Records are 224 px JPEGs like photos, with a caption. Both read the same TFRecord files, shuffle,
decode with the same DCT, tokenise with the same processor, and keep three batches ready. They
take turns in one process, bound to its cores before either starts a thread.

Only the loader reads from a bucket as well (on the loopback, `--latency-ms` a request); `tf.data`,
which supports no address but Google's, reads the disk. A turn is then a new window of the order,
so that no turn finds records in memory that an earlier one has fetched.
"""

import argparse
import collections
import dataclasses
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from model.data.loader import Loader
from model.data.order import window_len
from model.data.parts import open_parts
from model.data.text import train_row
from model.files import TOKENIZER
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer, train_tokenizer
from model.train.config import TrainConfig
from perf.bucket import bucket, stored
from perf.timing import table, take_turns
from pipelines.images.square import encode_image
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.example import encode
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard

PX = 224
_PREFETCHED = 3
_SHUFFLED = 256
_READ_GB = "0.3"
"""Memory for records, two windows; with the whole dataset in memory, nothing would be fetched."""
_WORDS = (
    "a",
    "the",
    "red",
    "small",
    "old",
    "dog",
    "man",
    "car",
    "house",
    "street",
    "near",
    "under",
)


def photo(rng: np.random.Generator) -> bytes:
    """Returns a JPEG of noise whose spectrum falls with frequency; like a photo, it has 33 kB."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(PX), np.fft.rfftfreq(PX), indexing="ij"))
    frequency **= 1.4
    frequency[0, 0] = np.inf
    grey, *tints = (
        np.fft.irfft2(np.fft.rfft2(rng.normal(size=(PX, PX))) / frequency) for _ in range(4)
    )
    pixels = np.stack([grey + 0.1 * tint for tint in tints], axis=-1)
    pixels = 127 + 55 * (pixels - pixels.mean()) / pixels.std()
    return encode_image(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), "jpeg")


def write_data(
    folder: Path, num_records: int, num_images: int, num_shards: int = 8, num_photos: int = 256
) -> None:
    """Writes a dataset of one part, and a tokenizer beside it."""
    rng = np.random.default_rng(0)
    photos = [photo(rng) for _ in range(num_photos)]
    captions = [" ".join(rng.choice(_WORDS, int(rng.integers(6, 14)))) for _ in range(4000)]

    def record(number: int) -> bytes:
        chosen = rng.choice(num_photos, num_images)
        name = f"photo/{number:07d}"
        return encode(
            Record(
                id=name,
                images=tuple(photos[i] for i in chosen),
                prefix="caption en",
                suffixes=(captions[number % len(captions)],),
                task="caption",
                source=f"{name}.jpg",
                source_sha256="0" * 64,
            )
        )

    folder.mkdir(parents=True)
    names = tuple(f"caption-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards))
    counts = tuple(
        write_shard(folder / name, map(record, range(first, num_records, num_shards)))
        for first, name in enumerate(names)
    )
    parts = {"caption": PartInfo(shards=names, num_records=counts)}
    info = DatasetInfo(
        name="photos", parts=parts, num_inputs=num_records, num_rejected=0, image_px=PX
    )
    info.write(folder)
    train_tokenizer(captions, str(folder / TOKENIZER), 400)


def open_loader(folder: Path, train: TrainConfig, place: str = "") -> Loader:
    """Returns our loader of the dataset in a folder, or of its copy in another place."""
    return Loader(
        place or str(folder),
        train.batches,
        tokenizer=Tokenizer(folder / TOKENIZER),
        mask_codec=None,
        image_px=PX,
        seeds=Seeds.of(0),
    )


def tf_data_batches(folder: Path, train: TrainConfig, num_images: int) -> Any:
    """Returns a `tf.data.Dataset` of `train.total_steps` batches, in an order of its own."""
    import tensorflow as tf

    tokenizer = Tokenizer(folder / TOKENIZER)
    names = ("text", "mask_ar", "mask_loss")

    def tokenize(prefix: bytes, suffix: bytes) -> list[np.ndarray]:
        row = train_row(tokenizer, prefix.decode(), suffix.decode(), train.text_len)
        return [getattr(row, name) for name in names]

    def decode(jpeg):
        return tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE")

    def parse(serialized):
        texts = tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
        one = tf.io.FixedLenFeature([], tf.string)
        features = {"image": texts, "prefix": one, "suffix": texts}
        found = tf.io.parse_single_example(serialized, features)
        suffix = found["suffix"][
            tf.random.uniform([], maxval=tf.size(found["suffix"]), dtype=tf.int32)
        ]
        if num_images == 1:
            pixels = decode(found["image"][0])[None]
        else:
            pixels = tf.map_fn(decode, found["image"], fn_output_signature=tf.uint8)
        rows = tf.numpy_function(tokenize, [found["prefix"], suffix], [tf.int32] * len(names))
        rows = [tf.ensure_shape(row, [train.text_len + 1]) for row in rows]
        pixels = tf.ensure_shape(pixels, [num_images, PX, PX, 3])
        return {"image": pixels, **dict(zip(names, rows, strict=True))}

    tune = tf.data.AUTOTUNE
    shards = tf.data.Dataset.from_tensor_slices(sorted(map(str, folder.glob("*.tfrecord"))))
    records = shards.interleave(
        tf.data.TFRecordDataset, num_parallel_calls=tune, deterministic=False
    )
    shuffled = records.shuffle(_SHUFFLED // num_images).repeat()
    batches = shuffled.map(parse, num_parallel_calls=tune, deterministic=False)
    batches = batches.batch(train.batch_size, drop_remainder=True)
    return batches.take(train.total_steps).prefetch(_PREFETCHED)


def measure(
    folder: Path, train: TrainConfig, num_images: int, cores: int, rounds: int, place: str = ""
) -> list[str]:
    """Returns a row of the first table; a turn reads `train.total_steps` batches from a new start.

    Args:
      folder: folder of the dataset.
      train: batch size, text length and number of steps.
      num_images: images per example.
      cores: number of cores that this process is bound to.
      rounds: counted turns of each.
      place: place in a bucket that the loader reads; "" reads the folder, the same steps each turn.
    """
    loader = open_loader(folder, train, place)
    theirs = tf_data_batches(folder, train, num_images)
    turns = itertools.count() if place else itertools.repeat(0)
    steps = (range(n * train.total_steps, (n + 1) * train.total_steps) for n in turns)

    def ours() -> None:
        turn = next(steps)
        collections.deque(loader.batches(turn.start, turn.stop), maxlen=0)

    programs = {
        "loader": ours,
        "tf.data": lambda: collections.deque(theirs.as_numpy_iterator(), maxlen=0),
    }
    found = take_turns(programs, rounds)
    loader.close()
    records = train.batch_size * train.total_steps
    walls = [records / found[name].wall / cores for name in programs]
    cpus = [records / found[name].cpu for name in programs]
    columns = [
        column
        for ours, theirs in (walls, cpus)
        for column in (f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}")
    ]
    return ["bucket" if place else "disk", str(num_images), str(cores), *columns]


HEADER = [
    "from",
    "frames",
    "cores",
    "loader/s/core",
    "tf.data/s/core",
    "ratio",
    "loader/CPU s",
    "tf.data/CPU s",
    "ratio",
]


def measure_resume(
    folder: Path, train: TrainConfig, steps: Sequence[int], rounds: int
) -> list[list[str]]:
    """Returns the rows of the second table: opening, then the first batch at each step.

    Opening reads the tokenizer and the indexes; its memory is the growth of the process.
    """
    process = psutil.Process()
    open_loader(folder, train).batch(0)
    opening, memory = [], []
    firsts: dict[int, list[float]] = {step: [] for step in steps}
    for turn in range(rounds):
        for step in sorted(steps, reverse=turn % 2 == 1):
            before, started = process.memory_info().rss, time.perf_counter()
            loader = open_loader(folder, train)
            opening.append(time.perf_counter() - started)
            memory.append(process.memory_info().rss - before)
            started = time.perf_counter()
            next(loader.batches(step, step + 1))
            firsts[step].append(time.perf_counter() - started)
            loader.close()
    rows = [["opening", f"{1000 * statistics.median(opening):.1f}"]]
    rows[0].append(f"{statistics.median(memory) / 2**20:.2f}")
    rows += [
        [f"first batch at step {step}", f"{1000 * statistics.median(times):.1f}", ""]
        for step, times in firsts.items()
    ]
    return rows


def bound(cores: int) -> None:
    """Binds this process to its first `cores` cores; TensorFlow then starts as many threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"


def in_process(cores: int, run: Callable[..., list], *args: object) -> list:
    """Returns the result of `run` in a fresh process that is bound to some cores."""
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=bound, initargs=(cores,)
    ) as pool:
        return pool.submit(run, *args).result()


def main(words: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted turns of each")
    parser.add_argument("--batches", type=int, default=48, help="a turn; an eighth of videos")
    parser.add_argument("--records", type=int, default=20_000, help="of the dataset of images")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--latency-ms", type=float, default=20, help="of the bucket's answers")
    args = parser.parse_args(words)
    train = TrainConfig(batch_size=32, text_len=32)
    rows = []
    with tempfile.TemporaryDirectory() as root:
        folders = {1: Path(root, "images"), 8: Path(root, "videos")}
        for num_images, folder in folders.items():
            write_data(folder, args.records // num_images, num_images)
            for cores in args.cores:
                train = dataclasses.replace(train, total_steps=args.batches // num_images)
                given = folder, train, num_images, cores, args.rounds
                rows.append(in_process(cores, measure, *given))
        with bucket(args.latency_ms, Path(root, "reader")):
            place = stored(folders[1], Path(root, "maker"))
            window = window_len(open_parts([place])["caption"].block, 1)
            train = dataclasses.replace(train, total_steps=max(1, window // train.batch_size))
            os.environ["PARCEL_READ_GB"] = _READ_GB
            for cores in args.cores:
                given = folders[1], train, 1, cores, args.rounds, place
                rows.append(in_process(cores, measure, *given))
        print(table(HEADER, rows))
        steps = (0, 1000, 1_000_000)
        resumed = in_process(1, measure_resume, folders[1], train, steps, args.rounds)
        index = sum(p.stat().st_size for p in folders[1].glob("*.idx"))
    print(f"\n{args.records} records, {index / 1024:.0f} KiB of indexes")
    print(table(["", "ms", "MiB"], resumed))


if __name__ == "__main__":
    main()
