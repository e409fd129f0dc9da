"""Text ⇄ token ids: pieces of a vocabulary, then 1024 location and 128 segmentation tokens."""

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from model.text.pieces import read_pieces
from pipelines.records.codes import EXTRA_TOKENS, TOKEN
from pipelines.records.schema import MASK_MARKER

PAD_ID, EOS_ID, BOS_ID, UNK_ID = 0, 1, 2, 3
"""What `train_tokenizer` writes, as Gemma's file has it; other files have others."""

SEPARATOR = "\n"
"""Text between prefix and suffix, tokenised on its own."""

_EXTRA = re.compile(f"({TOKEN})")
_MARKERS = re.compile(f"{TOKEN}|{re.escape(MASK_MARKER)}")
_MAX_SENTENCES = 200_000


def train_tokenizer(texts: Iterable[str], out_path: str, vocab_size: int) -> None:
    r"""Writes a SentencePiece model file trained on texts; the same texts give the same bytes.

    Any text survives encode and decode: bytes without a piece have their own tokens, spaces are
    kept, and "\n" is one piece.

    Args:
      texts: prefixes and suffixes of records; `<locNNNN>`, `<segNNN>` and `<mask>` are left out.
      out_path: file to write [path].
      vocab_size: at most this many pieces, without the 1152 extra tokens.

    Raises:
      ValueError: if `vocab_size` has no room for the 256 bytes and the specials.
    """
    import sentencepiece

    if vocab_size < 300:
        raise ValueError(f"vocab_size must be at least 300 (256 are bytes), got {vocab_size}.")
    model = io.BytesIO()
    # Settings of three kinds. Lossless: bytes for what has no piece, no normalization, spaces kept
    # as they are. Reproducible: one thread, no shuffling.
    # As Gemma's: digits apart, and the ids of the specials.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_tokenizer_training_lines(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=0.9995,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=[SEPARATOR],
        pad_id=PAD_ID,
        eos_id=EOS_ID,
        bos_id=BOS_ID,
        unk_id=UNK_ID,
        num_threads=1,
        shuffle_input_sentence=False,
        input_sentence_size=_MAX_SENTENCES,
        minloglevel=2,
    )
    Path(out_path).write_bytes(model.getvalue())


def _tokenizer_training_lines(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        for line in _MARKERS.sub("", text).splitlines():
            if line.strip():
                yield line


class Tokenizer:
    """A tokenizer's file: `train_tokenizer`'s, Gemma's, Llama's, or PaliGemma's.

    PaliGemma's has the location and segmentation tokens inside; they follow the pieces of others.

    Attributes:
      num_pieces: number of pieces in the file.
      vocab_size: number of tokens.
      pad_id, eos_id, bos_id, newline_id: see `pieces.Pieces`.

    Raises:
      ValueError: if it is none.
      OSError: if there is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        self._pieces = pieces = read_pieces(path)
        self.num_pieces = pieces.size
        inside = pieces.id_of(EXTRA_TOKENS[0])
        first = self.num_pieces if inside is None else inside
        self._extra_ids = {token: first + i for i, token in enumerate(EXTRA_TOKENS)}
        self._extra_texts = {i: token for token, i in self._extra_ids.items()}
        self.vocab_size = max(self.num_pieces, first + len(EXTRA_TOKENS))
        self.pad_id, self.newline_id = pieces.pad_id, pieces.newline_id
        self.eos_id, self.bos_id = pieces.eos_id, pieces.bos_id

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without BOS or EOS; `<loc…>` and `<seg…>` are one id each."""
        ids: list[int] = []
        for part in _EXTRA.split(text):
            if part in self._extra_ids:
                ids.append(self._extra_ids[part])
            elif part:
                ids.extend(self._pieces.encode(part, first=not ids))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids up to the first EOS; PAD and BOS are dropped."""
        # Pieces are decoded in runs: a character without a piece is several byte tokens in a row.
        texts: list[str] = []
        run: list[int] = []

        def text_of_run() -> str:
            return self._pieces.decode(run, first=not texts)

        for token in ids:
            if token == self.eos_id:
                break
            if token in self._extra_texts:
                texts += [text_of_run(), self._extra_texts[token]]
                run = []
            elif token not in (self.pad_id, self.bos_id) and token < self.num_pieces:
                run.append(int(token))
        return "".join([*texts, text_of_run()])
