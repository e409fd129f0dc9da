"""`parcel predict`: finds the checkpoint and the router that a person names, and answers."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.config.own_checkpoint import config_of
from flows.lineage.runs import folder_of
from infra.reason import ConfigError
from infra.store.store import Store
from model.checkpoint.folder import stated_digest
from model.data.pixels import decode_images
from model.decode.config import Decoding
from model.decode.draw import draw_objects
from model.decode.predict import Predictor
from model.files import CONFIG, DIGEST
from model.router.config import check_threshold
from model.router.files import ROUTER
from pipelines.images.square import ImageSpec, decode_image
from pipelines.video.image_files import prepare_image_files


def find_checkpoint(name: str, store: str) -> Path:
    """Returns the folder of a checkpoint: `name` itself, or an artifact of the store.

    Raises:
      ConfigError: if it is neither, or its connector is the user's own and is not found.
    """
    folder = folder_of("checkpoint", name, store)
    if not folder.is_dir():
        raise ConfigError(
            f"checkpoint must be a folder, or an artifact of the store, got {name}: no such folder,"
            f" and no store at {store}."
        )
    missing = [file for file in (CONFIG, DIGEST) if not (folder / file).is_file()]
    if missing:
        raise ConfigError(
            f"checkpoint must be a finished one, got {name} without {', '.join(missing)}; "
            f"`parcel convert` makes one of published weights."
        )
    config_of(folder, name, store)
    return folder


def find_router(checkpoint: Path, store: str, router: str | None) -> Path:
    """Returns the folder of a checkpoint's router: the given one, or the newest of the store.

    Raises:
      ConfigError: if there is no router, or it belongs to another checkpoint.
    """
    own = stated_digest(checkpoint)
    if router is not None:
        folder = folder_of("--router", router, store)
        if not (folder / ROUTER).is_file():
            raise ConfigError(f"--router must be a router's folder or artifact, got {router}.")
        if json.loads((folder / ROUTER).read_text())["checkpoint"] != own:
            raise ConfigError(
                f"--router must be the router of this checkpoint, got {router}, another one's."
            )
        return folder
    there = "://" in store or Path(store).expanduser().is_dir()
    known = sorted(
        Store(store).artifacts("router") if there else (),
        key=lambda artifact: artifact.manifest.started,
        reverse=True,
    )
    for artifact in known:
        if artifact.manifest.inputs["checkpoint"].content == own:
            return artifact.path
    raise ConfigError(
        f"--budget auto needs the checkpoint's router, and {store} has none; give one (--router), "
        f"or run a study with auto among its budgets."
    )


def read_pixels(
    paths: Sequence[str],
    image_px: int,
    *,
    source: str | None = None,
    frames: int | None = None,
    stride: int | None = None,
) -> np.ndarray:
    """Returns the pixels of images, or of the frames of a video: uint8 (I, H, W, 3).

    Args:
      paths: image files, or one video.
      image_px: side of the square [pixels].
      source: see `prepare_image_files`.
      frames: see `prepare_image_files`.
      stride: see `prepare_image_files`.

    Raises:
      ConfigError: if a file is missing or unreadable, or a video is one of several files.
    """
    images = prepare_image_files(paths, image_px, source=source, frames=frames, stride=stride)
    return decode_images(images, len(images), image_px)


def predict(
    checkpoint: str,
    paths: Sequence[str],
    prompt: str,
    *,
    budget: int | None,
    max_tokens: int,
    decoding: dict[str, Any],
    store: str,
    tokenizer: str | None = None,
    router: str | None = None,
    threshold: float | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Returns the answer, its tokens, budget, bucket and timings, as plain values.

    Args:
      checkpoint: see `find_checkpoint`.
      paths: see `read_pixels`.
      prompt: see `Predictor.answer`.
      budget: see `Predictor.answer`; None lets a router choose.
      max_tokens: see `Predictor.answer`.
      decoding: fields of `Decoding`.
      store: see `find_checkpoint`.
      tokenizer: see `Predictor`.
      router: see `find_router`.
      threshold: see `RouterConfig`; None takes the router's own.
      reading: options of `read_pixels`.

    Raises:
      ConfigError: if an argument is wrong; in one line.
    """
    started = time.monotonic()
    folder = find_checkpoint(checkpoint, store)
    if budget is not None and (router is not None or threshold is not None):
        raise ConfigError(f"--router and --threshold go with --budget auto, got {budget}.")
    chosen_by = find_router(folder, store, router) if budget is None else None
    try:
        if threshold is not None:
            check_threshold(threshold)
        how = Decoding(**decoding)
        predictor = Predictor(folder, tokenizer=tokenizer)
        loaded = time.monotonic()
        images = read_pixels(paths, predictor.model.vision.image_px, **reading)
        read = time.monotonic()
        if chosen_by is not None:
            own = json.loads((chosen_by / ROUTER).read_text())["threshold"]
            at = own if threshold is None else threshold
            images = predictor.see(images)
            budget = predictor.choose(images, prompt, chosen_by, at)
        chosen = time.monotonic()
        assert budget is not None
        found = predictor.answer(images, prompt, budget=budget, max_tokens=max_tokens, decoding=how)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    seconds = {"load": loaded - started, "read": read - loaded, **found.seconds}
    if chosen_by is not None:
        seconds["choose"] = chosen - read
    return {
        "answer": found.text,
        "tokens": list(found.tokens),
        "budget": found.budget,
        "bucket": found.bucket,
        "images": len(images),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }


def draw_answer(paths: Sequence[str], answer: str, checkpoint: Path, out: str) -> int:
    """Writes the image with the answer's boxes and masks; returns the answer's number of objects.

    Args:
      paths: path of the one image that the answer is about; the image keeps its size.
      answer: see `draw_objects`.
      checkpoint: see `draw_objects`.
      out: PNG to write [path].

    Raises:
      ConfigError: if there are several images, or `out` cannot be written.
    """
    if len(paths) != 1:
        raise ConfigError(f"draw needs one image, got {len(paths)}.")
    bounds = ImageSpec()
    try:
        data = Path(paths[0]).read_bytes()
        image = decode_image(data, min_side=bounds.min_side, max_pixels=bounds.max_pixels)
    except ValueError as error:
        raise ConfigError(f"draw needs an image, got {paths[0]}: {error}.") from None
    found = draw_objects(image, answer, checkpoint)
    try:
        image.save(out, "PNG")
    except OSError as error:
        raise ConfigError(f"draw must be a file to write, got {out}: {error.strerror}.") from None
    return found
