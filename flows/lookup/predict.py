"""`parcel model predict`: finds the checkpoint that a person names, and answers."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.config.user_checkpoint import checkpoint_config
from flows.lookup.open_store import open_existing_store
from flows.lookup.runs import artifact_place
from flows.lookup.target import checkpoint_of_target, find_target
from infra.errors import ConfigError
from infra.store.stored_folder import open_stored_folder
from model.data.pixels import decode_images
from model.decode.config import Decoding
from model.decode.draw import draw_objects
from model.decode.predict import Predictor
from model.files import CONFIG, DIGEST
from pipelines.images.square import ImageSpec, decode_image, pad_image, square_region
from pipelines.video.image_files import prepare_image_files


def find_checkpoint(name: str, store: str) -> str:
    """Returns the place of a checkpoint: a folder, an artifact, or that of a cell's seed.

    Args:
      name: path of a folder, the beginning of an artifact's key, or RUN/BENCHMARK/METHOD/BUDGET,
        with /SEED where there are several.
      store: the store that holds artifacts [URI].

    Raises:
      ConfigError: if it is neither, or its connector is the user's own and is not found.
    """
    # What looks like a cell is one, unless there is such a folder.
    is_cell = name.count("/") >= 3 and not name.startswith(("/", ".", "~")) and "://" not in name
    if is_cell and not Path(name).is_dir():
        opened = open_existing_store(store)
        name = checkpoint_of_target(opened, find_target(opened, name))
    place = artifact_place("checkpoint", name, store)
    folder = open_stored_folder(place).local_folder((CONFIG, DIGEST))
    if not folder.is_dir():
        raise ConfigError(
            f"checkpoint must be a folder, or an artifact of the store, got {name}: no such folder,"
            f" and no store at {store}."
        )
    # A checkpoint that was never finished has no digest.
    missing = [file for file in (CONFIG, DIGEST) if not (folder / file).is_file()]
    if missing:
        raise ConfigError(
            f"checkpoint must be a finished one, got {name} without {', '.join(missing)}; "
            f"`parcel model convert` makes one of published weights."
        )
    checkpoint_config(folder, name, store)
    return place


def read_pixels(
    paths: Sequence[str],
    image_px: int,
    *,
    source: str | None = None,
    frames: int | None = None,
    stride: int | None = None,
    **shape: Any,
) -> np.ndarray:
    """Returns the pixels of images, or of the frames of a video: uint8 (I, H, W, 3).

    Args:
      paths: image files, or one video.
      image_px: side of the square [pixels].
      source: see `prepare_image_files`.
      frames: see `prepare_image_files`.
      stride: see `prepare_image_files`.
      shape: see `prepare_image_files`.

    Raises:
      ConfigError: if a file is missing or unreadable, or a video is one of several files.
    """
    images = prepare_image_files(
        paths, image_px, source=source, frames=frames, stride=stride, **shape
    )
    return decode_images(images, len(images), image_px)


def predict_answer(
    checkpoint: str,
    paths: Sequence[str],
    prompt: str,
    *,
    budget: int,
    max_tokens: int,
    decoding: dict[str, Any],
    store: str,
    tokenizer: str | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Returns the answer, its tokens, budget, bucket and timings, as plain values.

    Args:
      checkpoint: see `find_checkpoint`.
      paths: see `read_pixels`.
      prompt: see `Predictor.answer`.
      budget: see `Predictor.answer`.
      max_tokens: see `Predictor.answer`.
      decoding: fields of `Decoding`.
      store: see `find_checkpoint`.
      tokenizer: see `Predictor`.
      reading: options of `read_pixels`.

    Raises:
      ConfigError: if an argument is wrong; in one line.
    """
    # Loading, reading and answering are timed apart: only the last depends on the budget.
    started = time.monotonic()
    place = find_checkpoint(checkpoint, store)
    try:
        how = Decoding(**decoding)
        predictor = Predictor(place, tokenizer=tokenizer)
        loaded = time.monotonic()
        images = read_pixels(paths, predictor.model.vision.image_px, **reading)
        read = time.monotonic()
        answer = predictor.answer(
            images, prompt, budget=budget, max_tokens=max_tokens, decoding=how
        )
    # A ConfigError is a ValueError, too, and names its own cure already.
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    seconds = {"load": loaded - started, "read": read - loaded, **answer.seconds}
    return {
        "answer": answer.text,
        "tokens": list(answer.tokens),
        "budget": answer.budget,
        "bucket": answer.bucket,
        "images": len(images),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }


def draw_answer(
    paths: Sequence[str], answer: str, checkpoint: str, out: str, *, aspect: str = "squash"
) -> int:
    """Writes the image with the answer's boxes and masks; returns the answer's number of objects.

    Args:
      paths: path of the one image that the answer is about; the image keeps its size.
      answer: see `draw_objects`.
      checkpoint: see `draw_objects`.
      out: PNG to write [path].
      aspect: how the model saw the image, see `ImageSpec`.

    Raises:
      ConfigError: if there are several images, or `out` cannot be written.
    """
    if len(paths) != 1:
        raise ConfigError(f"draw needs one image, got {len(paths)}.")
    # The same bounds as in preparation, so that a bomb of an image is refused here, too.
    bounds = ImageSpec(aspect=aspect)
    try:
        data = Path(paths[0]).read_bytes()
        image = decode_image(data, min_side=bounds.min_side, max_pixels=bounds.max_pixels)
    except ValueError as error:
        raise ConfigError(f"draw needs an image, got {paths[0]}: {error}.") from None
    # The answer's boxes are of the square that the model saw, of which the image is the middle.
    square = pad_image(image, bounds)
    objects = draw_objects(square, answer, checkpoint)
    left, top, _, _ = square_region(image.size, bounds)
    try:
        square.crop((-left, -top, image.width - left, image.height - top)).save(out, "PNG")
    except OSError as error:
        raise ConfigError(f"draw must be a file to write, got {out}: {error.strerror}.") from None
    return objects
