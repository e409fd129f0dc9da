"""A conversion from start to end; `parcel model convert` checks its result afterwards."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from model.checkpoint.array_files import BFLOAT16
from model.checkpoint.exporter import export_checkpoint
from model.checkpoint.importer import SourceCheckpoint, import_checkpoint, open_source
from model.checkpoint.stage0 import open_towers
from model.checkpoint.target import RequestError
from model.config import ModelConfig, Projector
from model.files import CONFIG, TOKENIZER

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": BFLOAT16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionRequest:
    """A requested conversion.

    Attributes:
      paths: source and target, or the target alone with `vision` and `text`.
      vision, text: tower and decoder for Stage 0, instead of a source.
      projector: layers between them, "linear" or "mlp"; "" is linear.
      tokenizer: file of the tokenizer for the new checkpoint.
      config: Hugging Face's `config.json`; None takes the one beside the source.
      dtype: type of exported tensors; "" takes the type before the import, or float32 without one.
      seed: seed of what Stage 0 adds: token rows, and a projector's first of two layers.
      check: `.npz` of reference inputs and outputs, for `decode.reference_check.check_file`.
    """

    paths: tuple[Path, ...]
    vision: Path | None = None
    text: Path | None = None
    projector: str = ""
    tokenizer: Path | None = None
    config: Path | None = None
    dtype: str = ""
    seed: int = 0
    check: Path | None = None

    def __post_init__(self) -> None:
        # Two forms, and nothing between them:
        #
        #     SRC DST                            either direction; our checkpoints have a model.json
        #     --vision PATH --text PATH DST      Stage 0
        towers = self.vision is not None and self.text is not None
        if (self.vision is None) != (self.text is None):
            raise RequestError("--vision and --text must be given together.")
        required = "DST alone, with --vision and --text" if towers else "SRC and DST"
        if len(self.paths) != (1 if towers else 2):
            raise RequestError(f"arguments must be {required}, got {[str(p) for p in self.paths]}.")
        if self.dtype not in ("", *_DTYPES):
            raise RequestError(f"--dtype must be float32 or bfloat16, got {self.dtype!r}.")
        if self.projector not in ("", *typing.get_args(Projector)):
            raise RequestError(f"--projector must be linear or mlp, got {self.projector!r}.")
        if self.projector and not towers:
            raise RequestError("--projector is for --vision and --text; SRC has its own.")
        if self.config is not None and towers:
            raise RequestError("--config is for SRC; --vision and --text have theirs beside them.")
        if self.check is not None and not self.check.is_file():
            raise RequestError(f"--check must be an .npz file, got {self.check}.")
        # An option without effect is refused. An export takes tokenizer and config from our folder,
        # and an import's parameters are always float32.
        unused = {"--tokenizer": self.tokenizer, "--config": self.config}
        superfluous = [name for name, value in unused.items() if value is not None]
        if self.outward and superfluous:
            raise RequestError(f"{', '.join(superfluous)} is for imports; {self.paths[0]} is ours.")
        if not self.outward and self.dtype:
            raise RequestError("--dtype is for exports; our checkpoints are float32.")

    @property
    def outward(self) -> bool:
        """Whether the source is one of our checkpoints, so that this is an export."""
        return len(self.paths) == 2 and (self.paths[0] / CONFIG).is_file()


def convert_checkpoint(request: ConversionRequest) -> Iterator[str]:
    """Converts a checkpoint; yields a line of text for each finished part.

    Raises:
      RequestError: if the request is wrong.
      ValueError: if the source is incomplete.
    """
    target = request.paths[-1]
    if request.outward:
        export_checkpoint(request.paths[0], target, _DTYPES.get(request.dtype))
        yield f"{target}: written from {request.paths[0]}"
    else:
        source = _open_requested_source(request)
        digest = import_checkpoint(source, target, request.tokenizer)
        num = _count_hugging_face_parameters(source.model)
        yield f"{target}: {num:,} parameters, digest {digest[:12]}"
        if request.tokenizer is None and source.tokenizer is None:
            yield f"no {TOKENIZER}: `parcel model predict` needs one; copy it into the folder"


def _open_requested_source(request: ConversionRequest) -> SourceCheckpoint:
    if request.vision is None or request.text is None:
        return open_source(request.paths[0], request.config, request.tokenizer)
    return open_towers(
        request.vision,
        request.text,
        tokenizer=request.tokenizer,
        projector="mlp" if request.projector == "mlp" else "linear",
        seed=request.seed,
    )


def _count_hugging_face_parameters(model: ModelConfig) -> int:
    from model.checkpoint.translate import hugging_face_shapes

    return sum(math.prod(shape) for shape in hugging_face_shapes(model).values())
