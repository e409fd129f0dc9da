"""Conversion of a SentencePiece vocabulary to Hugging Face's `tokenizer.json`.

A SentencePiece file does not list its byte-pair merges. They are recovered from its pieces: two
pieces merge if together they spell a third one, and its score ranks the merge.
Source: transformers `convert_slow_tokenizer.py`, GemmaConverter.
"""

import dataclasses
import json
import struct
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.text.tokenizer import PAD_ID, UNK_ID, Tokenizer
from pipelines.records.codes import EXTRA_TOKENS

IMAGE_TOKEN = "<image>"
"""Placeholder of a soft token; its id is the first after those of the vocabulary."""

_PROBE = "  a  B\tﬁ "
"""Text that a normalizing tokenizer would change: extra spaces, a tab, a ligature."""

_NORMAL, _USER_DEFINED, _BYTE, _BPE = 1, 4, 6, 2
"""Types of pieces, and the type of a byte-pair model. Source: `sentencepiece_model.proto`."""


class _Piece(typing.NamedTuple):
    text: str
    score: float
    type: int


@dataclasses.dataclass(frozen=True)
class FastTokenizer:
    """A tokenizer in Hugging Face's form.

    Attributes:
      files: name -> text of `tokenizer.json` and `tokenizer_config.json`.
      image_token_id: id of `IMAGE_TOKEN`.
      separator_id: id of the token between prefix and suffix.
      bos_id: id of the token that begins a row.
      eos_id: id of the token that ends an answer.
    """

    files: dict[str, str]
    image_token_id: int
    separator_id: int
    bos_id: int
    eos_id: int


def fast_tokenizer(path: Path) -> FastTokenizer:
    """Returns a SentencePiece file in Hugging Face's form, which gives the same ids as `Tokenizer`.

    Raises:
      ValueError: if it is not byte-pair encoding without normalization and with byte fallback.
    """
    import sentencepiece

    sentencepiece_ = Tokenizer(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    model_type, pieces = _read_pieces(processor.serialized_model_proto())
    if model_type != _BPE or processor.normalize(_PROBE) != _PROBE.replace(" ", "▁"):
        raise ValueError(
            f"tokenizer {path.name} must be byte-pair encoding without normalization, as Gemma's "
            "and PARCEL's own are; another kind has no fast form."
        )
    if not any(piece.type == _BYTE for piece in pieces):
        raise ValueError(f"tokenizer {path.name} must have a piece for each byte (byte_fallback).")
    names = [piece.text for piece in pieces]
    # Matched as a whole before any merging: pieces that the vocabulary's maker defined, such as
    # "\n", and our location and mask tokens.
    added = {piece.text: i for i, piece in enumerate(pieces) if piece.type == _USER_DEFINED}
    added |= {token: sentencepiece_.encode(token)[0] for token in EXTRA_TOKENS}
    special = {names[i]: i for i in (PAD_ID, sentencepiece_.eos_id, sentencepiece_.bos_id, UNK_ID)}
    # The placeholder of soft tokens comes after the vocabulary: the embedding has no row for it.
    special[IMAGE_TOKEN] = sentencepiece_.vocab_size
    described = {
        "version": "1.0",
        "added_tokens": [
            _added(name, i, special=name in special)
            for name, i in sorted((special | added).items(), key=lambda entry: entry[1])
        ],
        # SentencePiece's pieces have "▁" where the text has a space.
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": names[UNK_ID],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": _merges({p.text: p.score for p in pieces if p.type == _NORMAL}),
        },
    }
    # Prompts are padded on the left, so that all answers of a batch begin at one place.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names[sentencepiece_.bos_id],
        "eos_token": names[sentencepiece_.eos_id],
        "pad_token": names[PAD_ID],
        "unk_token": names[UNK_ID],
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    return FastTokenizer(
        files={
            "tokenizer.json": json.dumps(described, ensure_ascii=False),
            "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        },
        image_token_id=sentencepiece_.vocab_size,
        separator_id=sentencepiece_.newline_id,
        bos_id=sentencepiece_.bos_id,
        eos_id=sentencepiece_.eos_id,
    )


def _added(name: str, i: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": name, **flags, "special": special}


def _merges(scores: dict[str, float]) -> list[list[str]]:
    """Returns the pairs of pieces that merge, by descending priority."""
    ranked_pairs = []
    # "ab" and "c" merge to "abc", and so do "a" and "bc", if these are pieces. Every way to cut a
    # piece in two is a merge, with the rank of the whole.
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                ranked_pairs.append((-score, left, right))
    ranked_pairs.sort(key=lambda pair: pair[0])
    return [[left, right] for _, left, right in ranked_pairs]


def _read_pieces(model: bytes) -> tuple[int, list[_Piece]]:
    """Returns the type of a SentencePiece model, and its pieces.

    The file is parsed by hand, because `sentencepiece_model_pb2` needs another build of protobuf
    than the pipelines.
    """
    model_type, pieces = 1, []
    # Field 1 is a piece (text, score, type); field 2 has the trainer's settings, where field 3 is
    # the type of the model.
    for field, value in _fields(model):
        if field == 1:
            fields = {1: b"", 2: b"\0\0\0\0", 3: _NORMAL, **dict(_fields(value))}
            (score,) = struct.unpack("<f", fields[2])
            pieces.append(_Piece(fields[1].decode(), score, fields[3]))
        elif field == 2:
            model_type = dict(_fields(value)).get(3, model_type)
    return model_type, pieces


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields (number, value) of a message's fields. Source: protobuf.dev, "Encoding"."""
    # A message is a row of fields, each a key (number * 8 + wire type) and a value:
    #
    #     08 05         field 1, wire type 0: the number 5
    #     12 02 68 69   field 2, wire type 2: 2 bytes, "hi"
    #
    # A number has 7 bits per byte, the lowest first; the top bit says that more follow. So ac 02 is
    # 44 + 2 * 128 = 300.
    offset = 0

    def varint() -> int:
        nonlocal offset
        value = shift = 0
        while True:
            byte, offset = message[offset], offset + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while offset < len(message):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
            continue
        # Wire type 2 states its length; types 1 and 5 are numbers of 8 and 4 bytes, as a score is.
        length = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        yield field, message[offset : offset + length]
        offset += length
