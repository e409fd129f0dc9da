"""Vocabularies of published tokenizers: a text ⇄ ids of its pieces.

file               kind                          of
tokenizer.model    SentencePiece                 Gemma, PaliGemma, Llama 2, `train_tokenizer`
tokenizer.json     byte-level pairs (BPE)        Llama 3; needs the library tokenizers
"""

import typing
from collections.abc import Sequence
from pathlib import Path

_BEGIN = ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|endoftext|>")
_END = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")
"""Names of the tokens that begin and end a text, of which `tokenizer.json` does not say which they
are. Source: `tokenizer_config.json` of Llama 3, GPT-2, Llama 2 and Gemma."""

_NEWLINE = "\n"
_PROBE = "  a\n\n B\té 日 <s>"


class Pieces(typing.Protocol):
    r"""A vocabulary.

    Attributes:
      size: number of pieces.
      newline_id: id of "\n".
      pad_id: id of what fills rows up, behind their masks.
      eos_id: id of the token that ends an answer.
      bos_id: id of the token that begins a row.
      unk_id: id of the token for what has no piece; None if every text has pieces.
    """

    size: int
    newline_id: int
    pad_id: int
    eos_id: int
    bos_id: int
    unk_id: int | None

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece, None if there is none."""
        ...

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Returns the ids of a text; `first` says that no text comes before it."""
        ...

    def decode(self, ids: Sequence[int], *, first: bool) -> str:
        """Returns the text of ids; `first` as in `encode`."""
        ...


def read_pieces(path: str | Path) -> Pieces:
    """Returns the vocabulary in a tokenizer's file, of either kind.

    Raises:
      ValueError: if it is none, or its library is not installed.
      OSError: if there is no such file.
    """
    # Told apart by their first byte, as a checkpoint keeps either under one name.
    with Path(path).open("rb") as file:
        is_json = file.read(64).lstrip()[:1] == b"{"
    return _ByteLevelPieces(path) if is_json else _SentencePieces(path)


class _SentencePieces:
    def __init__(self, path: str | Path) -> None:
        import sentencepiece

        # Its parser takes some damaged files, and then fails at their pieces.
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
            # Llama's puts a space before every text, which is no part of it. Its newline is a byte.
            self._has_dummy = self._model.normalize("x") != "x"
            (self.newline_id,) = self._model.encode(_NEWLINE)[int(self._has_dummy) :]
        except (RuntimeError, UnicodeDecodeError, ValueError, IndexError):
            raise ValueError(f"{path} must be a SentencePiece model with newlines.") from None
        self.size = self._model.get_piece_size()
        # Llama's file has no padding; rows are filled up with the unknown token, which is 0.
        self.pad_id = max(self._model.pad_id(), 0)
        self.eos_id, self.bos_id = self._model.eos_id(), self._model.bos_id()
        self.unk_id: int | None = self._model.unk_id()

    def id_of(self, piece: str) -> int | None:
        found = self._model.piece_to_id(piece)
        return None if found == self.unk_id else found

    def encode(self, text: str, *, first: bool) -> list[int]:
        # Behind other text there is no space to add. With a newline before it, the space goes
        # before that, and both are cut off:
        #
        #     "cat"  ->  ▁cat               first
        #     "cat"  ->  ▁ <0x0A> c at      behind other text, without the first two
        if self._has_dummy and not first:
            return self._model.encode(_NEWLINE + text)[2:]
        return self._model.encode(text)

    def decode(self, ids: Sequence[int], *, first: bool) -> str:
        if self._has_dummy and not first:
            return self._model.decode([self.newline_id, *ids])[1:]
        return self._model.decode([*ids])


class _ByteLevelPieces:
    def __init__(self, path: str | Path) -> None:
        try:
            import tokenizers  # pyright: ignore[reportMissingImports]  # Only these files need it.
        except ModuleNotFoundError:
            raise ValueError(
                f"{path} is a tokenizer.json, which the library tokenizers reads: "
                "pip install tokenizers, or give a SentencePiece file."
            ) from None
        try:
            self._model = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # The library raises no narrower class.
            raise ValueError(f"{path} must be a tokenizer.json: {error}"[:300]) from None
        # Names of special tokens in a text are text.
        self._model.encode_special_tokens = True
        newline = self.encode(_NEWLINE, first=True)
        if len(newline) != 1 or self.decode(self.encode(_PROBE, first=True), first=True) != _PROBE:
            raise ValueError(
                f"{path} must give every text back and have a piece for a newline, as byte-level "
                "tokenizers do; of Llama 2 and Gemma give the SentencePiece file, tokenizer.model."
            )
        (self.newline_id,) = newline
        self.size = self._model.get_vocab_size()
        self.eos_id, self.bos_id = (self._special_token_id(path, names) for names in (_END, _BEGIN))
        # It has no padding: rows are filled up with what ends them.
        self.pad_id = self.eos_id
        self.unk_id: int | None = None

    def _special_token_id(self, path: str | Path, names: Sequence[str]) -> int:
        for name in names:
            if (found := self.id_of(name)) is not None:
                return found
        raise ValueError(f"{path} must have one of the tokens {', '.join(names)}.")

    def id_of(self, piece: str) -> int | None:
        return self._model.token_to_id(piece)

    def encode(self, text: str, *, first: bool) -> list[int]:
        return self._model.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, first: bool) -> str:
        return self._model.decode([*ids], skip_special_tokens=False)
