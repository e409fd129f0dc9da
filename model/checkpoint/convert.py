"""One conversion, start to end: what `parcel convert` does."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from model import vlm
from model.checkpoint import array_files
from model.checkpoint.array_files import BFLOAT16
from model.checkpoint.digest import unflatten
from model.checkpoint.exporter import export_checkpoint
from model.checkpoint.folder import load_config
from model.checkpoint.importer import Source, check_tokenizer, import_checkpoint, open_source
from model.checkpoint.stage0 import GEMMA_PIECES, open_towers
from model.checkpoint.target import RequestError
from model.config import ModelConfig
from model.decode.reference_check import Finding, compare, uncompared
from model.files import CONFIG, PARAMS, TOKENIZER
from model.text.tokenizer import Tokenizer
from pipelines.records.codes import EXTRA_TOKENS

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": BFLOAT16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to convert.

    Attributes:
      paths: source and target, or the target alone with `siglip` and `gemma`.
      siglip, gemma: the towers of a Stage 0 instead of a source.
      tokenizer: SentencePiece file for the checkpoint made.
      config: Hugging Face's `config.json` where none lies beside the source.
      dtype: of what is written for other codebases; "" is what it was imported from.
      seed: of the rows that a Stage 0 adds to the embedding.
      check: reference inputs and outputs, an `.npz`.
    """

    paths: tuple[Path, ...]
    siglip: Path | None = None
    gemma: Path | None = None
    tokenizer: Path | None = None
    config: Path | None = None
    dtype: str = ""
    seed: int = 0
    check: Path | None = None

    def __post_init__(self) -> None:
        towers = self.siglip is not None and self.gemma is not None
        if (self.siglip is None) != (self.gemma is None):
            raise RequestError("--siglip and --gemma must be given together.")
        wanted = "DST alone, with --siglip and --gemma" if towers else "SRC and DST"
        if len(self.paths) != (1 if towers else 2):
            raise RequestError(f"arguments must be {wanted}, got {[str(p) for p in self.paths]}.")
        if self.dtype not in ("", *_DTYPES):
            raise RequestError(f"--dtype must be float32 or bfloat16, got {self.dtype!r}.")
        if self.check is not None and not self.check.is_file():
            raise RequestError(f"--check must be an .npz file, got {self.check}.")
        unused = {"--tokenizer": self.tokenizer, "--config": self.config}
        given = [name for name, value in unused.items() if value is not None]
        if self.outward and given:
            raise RequestError(f"{', '.join(given)} is for imports; {self.paths[0]} is ours.")
        if not self.outward and self.dtype:
            raise RequestError("--dtype is for exports; our checkpoints are float32.")

    @property
    def outward(self) -> bool:
        """Whether the source is a checkpoint of ours."""
        return len(self.paths) == 2 and (self.paths[0] / CONFIG).is_file()


def convert(request: Request) -> Iterator[str]:
    """Yields what was done, a line each.

    Raises:
      RequestError: if the request is wrong.
      ValueError: if the source is not whole.
      CheckError: if an output is beyond its tolerance, after all lines.
    """
    target = request.paths[-1]
    if request.outward:
        export_checkpoint(request.paths[0], target, _DTYPES.get(request.dtype))
        yield f"{target}: written from {request.paths[0]}"
    else:
        source = _source(request)
        digest = import_checkpoint(source, target, request.tokenizer)
        yield f"{target}: {_count(source.model):,} parameters, digest {digest[:12]}"
        if request.tokenizer is None and source.tokenizer is None:
            yield f"no {TOKENIZER}: `parcel predict` needs one; copy it into the folder"
    if request.check is not None:
        yield from _check(request, request.check)


class CheckError(ValueError):
    """Outputs differ from the reference."""


def _source(request: Request) -> Source:
    if request.siglip is None or request.gemma is None:
        return open_source(request.paths[0], request.config)
    pieces = GEMMA_PIECES
    if request.tokenizer is not None:
        check_tokenizer(request.tokenizer)
        pieces = Tokenizer(request.tokenizer).vocab_size - len(EXTRA_TOKENS)
    return open_towers(request.siglip, request.gemma, pieces=pieces, seed=request.seed)


def _count(model: ModelConfig) -> int:
    from model.checkpoint.translate import hugging_face_shapes

    return sum(math.prod(shape) for shape in hugging_face_shapes(model).values())


def _check(request: Request, file: Path) -> Iterator[str]:
    with np.load(file) as opened:
        expected = {key: opened[key] for key in opened.files}
    wrong = []
    for finding in compare(*_result(request), expected):
        yield _line(finding)
        wrong += [] if finding.close else [finding.key]
    for key in uncompared(expected):
        yield f"{key:22} not compared: no such output is known"
    if wrong:
        raise CheckError(f"--check: beyond tolerance: {', '.join(wrong)} ({file}).")


def _line(finding: Finding) -> str:
    verdict = "ok" if finding.close else "WRONG"
    if finding.tolerance == 0:
        return f"{finding.key:22} {finding.error:9.1%} of tokens differ, accepted none   {verdict}"
    return (
        f"{finding.key:22} {finding.error:9.2e} largest relative error, accepted "
        f"{finding.tolerance:.0e}   {verdict}"
    )


def _result(request: Request) -> tuple[ModelConfig, vlm.Params]:
    """Returns what was written, read again: the check is of the files."""
    target = request.paths[-1]
    if request.outward:
        made = open_source(target)
        model, arrays = made.model, made.parameters()
    else:
        model, arrays = load_config(target), array_files.read_orbax(target / PARAMS).items()
    return model, unflatten({path: jnp.asarray(array) for path, array in arrays})
