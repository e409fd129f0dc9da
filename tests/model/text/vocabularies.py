"""Small SentencePiece files with the settings of published ones."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece

_LOSSLESS = {
    "model_type": "bpe",
    "hard_vocab_limit": False,
    "byte_fallback": True,
    "split_digits": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "num_threads": 1,
    "minloglevel": 2,
}


def write_llama(path: Path, texts: Sequence[str]) -> Path:
    """Writes one as Llama 2's: no padding, a space before every text, no piece for a newline."""
    return _write(path, texts, pad_id=-1, unk_id=0, bos_id=1, eos_id=2)


def write_gemma3(path: Path, texts: Sequence[str]) -> Path:
    """Writes one as Gemma 3's: several newlines are a piece, and so are marks of turns."""
    symbols = ["\n", "\n\n", "\n\n\n", "<start_of_turn>", "<b>"]
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    return _write(path, texts, add_dummy_prefix=False, user_defined_symbols=symbols, **ids)


def _write(path: Path, texts: Sequence[str], **settings: Any) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=340, **_LOSSLESS | settings
    )
    path.write_bytes(model.getvalue())
    return path
