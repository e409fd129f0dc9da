"""A SentencePiece vocabulary: given, or trained on the texts of the study's datasets.

Files:
  tokenizer.model: pieces, as SentencePiece stores them
"""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

from flows.steps.kind import Kind, StepContext
from flows.steps.kinds.files import check_input_files
from infra.progress import Progress
from infra.store.digest import NOT_IDENTITY
from model import files


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """SentencePiece vocabulary, without the 1024 location and 128 segmentation tokens.

    Attributes:
      path: tokenizer file to use; None trains a tokenizer on the study's texts.
      vocab_size: number of pieces of a tokenizer that is trained here [tokens].
    """

    path: str | None = dataclasses.field(default=None, metadata=NOT_IDENTITY)
    vocab_size: int = 256_000


def make(work: StepContext) -> Iterator[Progress]:
    """Copies the file at `work.location`, or trains one by `TokenizerConfig`."""
    from model.text.tokenizer import train_tokenizer
    from pipelines.records.dataset import Dataset

    target = work.out / files.TOKENIZER
    if work.location:
        copy = work.out / Path(work.location).name
        shutil.copyfile(work.location, copy)
        # Checked under its own name, which is the one that the study noted.
        check_input_files(work.out, work.inputs["given"])
        copy.rename(target)
    else:
        texts = (
            text
            for role in sorted(work.places)
            for record in Dataset(work.places[role]).records()
            for texts in (*(record.prefixes or [(record.prefix,)]), record.suffixes, *record.turns)
            for text in texts
        )
        train_tokenizer(texts, str(target), work.config.vocab_size)
    yield Progress(done=1, total=1)


TOKENIZER = Kind(
    name="tokenizer",
    make=make,
    spec=TokenizerConfig,
    libraries=("sentencepiece",),
    holds="files",
    sample="with its words in the tokenizer",
)
