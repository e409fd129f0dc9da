"""A checkpoint that a study starts from, copied into the store; another codebase's is converted.

Files:
  *: the same files as in a checkpoint
"""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.steps.families import (
    FAMILY_REGISTRIES,
    TEXT,
    VISION,
    conversion_modules,
    family_entries,
)
from flows.steps.kind import Kind, StepContext
from flows.steps.kinds.files import check_input_files
from infra.progress import Progress
from model import files
from model.config import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartSpec:
    """A checkpoint of a tower and a decoder whose families are not those of PaliGemma 2.

    Attributes:
      vision: family of the tower, whose names its conversion reads.
      text: family of the decoder.
    """

    vision: str
    text: str


def start_spec(model: ModelConfig) -> StartSpec | None:
    """Returns the config of a start's step: None for the families of PaliGemma 2.

    Such steps have had no config from when there were no other families.
    """
    families = model.vision.family, model.text.family
    return None if families == (VISION, TEXT) else StartSpec(vision=families[0], text=families[1])


def _start_model_families(spec: Mapping[str, str] | None) -> tuple[str, str]:
    return (spec["vision"], spec["text"]) if spec else (VISION, TEXT)


def make(work: StepContext) -> Iterator[Progress]:
    """Copies or converts the checkpoint at `work.location`; its content digest is of its arrays."""
    # Ours has a digest beside it, and is copied; anything else is another codebase's, and
    # converted.
    place = Path(work.location or "")
    if (place / files.DIGEST).is_file():
        from model.checkpoint.folder import checked_digest

        work.content = checked_digest(place)
        shutil.copytree(place, work.out, dirs_exist_ok=True)
        copied = work.out
    else:
        from model.checkpoint.importer import import_checkpoint, open_source

        # A conversion that was killed left half a folder: it begins anew.
        converted = work.scratch / "imported"
        shutil.rmtree(converted, ignore_errors=True)
        work.content = import_checkpoint(open_source(place), converted, None)
        for file in converted.iterdir():
            shutil.move(file, work.out / file.name)
        copied = place if place.is_dir() else place.parent
    # Checked afterwards: a file that changed while it was copied shows now, and no artifact is
    # committed under the digests of other bytes.
    if "given" in work.inputs:
        check_input_files(copied, work.inputs["given"])
    yield Progress(done=1, total=1)


# A converter only compares shapes with the model's: an edit of `model.vlm` or of a connector, which
# the registry names, changes no byte. The names of parameters are those of the families.
START = Kind(
    name="start",
    make=make,
    spec=StartSpec | None,
    stop=("model.vlm", "model.connector.registry", *FAMILY_REGISTRIES),
    also=lambda spec: conversion_modules(*_start_model_families(spec)),
    entries=lambda spec: family_entries(*_start_model_families(spec)),
    holds="checkpoint",
    content="model.checkpoint.folder:params_digest_of",
)
