"""A tokenizer in Hugging Face's form: a `tokenizer.json` with our tokens of places and masks.

A SentencePiece file does not list its byte-pair merges. They are recovered from its pieces: two
pieces merge if together they spell a third one, and its score ranks the merge.
Source: transformers `convert_slow_tokenizer.py`, GemmaConverter and LlamaConverter.
"""

import dataclasses
import json
import struct
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.text.pieces import read_pieces
from model.text.tokenizer import Tokenizer
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
      pad_id: id of what fills rows up.
    """

    files: dict[str, str]
    image_token_id: int
    separator_id: int
    bos_id: int
    eos_id: int
    pad_id: int


def fast_tokenizer(path: Path) -> FastTokenizer:
    """Returns a tokenizer's file in Hugging Face's form, which gives the same ids as `Tokenizer`.

    With one exception: where SentencePiece puts a space before every text, Hugging Face puts none
    before a text that begins with one.

    Raises:
      ValueError: if it is a SentencePiece file, but not byte-pair encoding without normalization
        and with byte fallback.
    """
    tokenizer, unk_id = Tokenizer(path), read_pieces(path).unk_id
    if unk_id is None:
        described = json.loads(path.read_bytes())
        vocab = described["model"]["vocab"]
        names = {i: name for name, i in vocab.items()}
        names |= {token["id"]: token["content"] for token in described["added_tokens"]}
    else:
        described, names = _of_sentencepiece(path, tokenizer, unk_id)
    known = {token["id"] for token in described["added_tokens"]}
    ids = {token: tokenizer.encode(token)[0] for token in EXTRA_TOKENS}
    # The placeholder of soft tokens comes after the vocabulary: the embedding has no row for it.
    ids[IMAGE_TOKEN] = tokenizer.vocab_size
    described["added_tokens"] += [
        _added_token_entry(name, i, special=name == IMAGE_TOKEN)
        for name, i in ids.items()
        if i not in known
    ]
    described["added_tokens"].sort(key=lambda token: token["id"])
    # Prompts are padded on the left, so that all answers of a batch begin at one place.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names[tokenizer.bos_id],
        "eos_token": names[tokenizer.eos_id],
        "pad_token": names[tokenizer.pad_id],
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    if unk_id is None:  # Names of special tokens in a text are text.
        config["split_special_tokens"] = True
    else:
        config["unk_token"] = names[unk_id]
    return FastTokenizer(
        files={
            "tokenizer.json": json.dumps(described, ensure_ascii=False),
            "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        },
        image_token_id=tokenizer.vocab_size,
        separator_id=tokenizer.newline_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
    )


def _of_sentencepiece(
    path: Path, tokenizer: Tokenizer, unk_id: int
) -> tuple[dict[str, Any], dict[int, str]]:
    """Returns a SentencePiece file as a `tokenizer.json`, and the piece of each id."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    model_type, pieces = _read_sentencepiece_model(processor.serialized_model_proto())
    plain = _PROBE.replace(" ", "▁")
    # Llama's puts a space before every text.
    has_dummy = processor.normalize(_PROBE) == "▁" + plain
    if model_type != _BPE or not (has_dummy or processor.normalize(_PROBE) == plain):
        raise ValueError(
            f"tokenizer {path.name} must be byte-pair encoding without normalization, as Gemma's "
            "and PARCEL's own are; another kind has no fast form."
        )
    if not any(piece.type == _BYTE for piece in pieces):
        raise ValueError(f"tokenizer {path.name} must have a piece for each byte (byte_fallback).")
    names = [piece.text for piece in pieces]
    # Matched as a whole before any merging: pieces that the vocabulary's maker defined, such as
    # "\n", and special ones.
    added = {piece.text: i for i, piece in enumerate(pieces) if piece.type == _USER_DEFINED}
    special_ids = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, unk_id)
    special = {names[i]: i for i in special_ids}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    # SentencePiece's pieces have "▁" where the text has a space.
    if has_dummy:
        spaces = {"replacement": "▁", "prepend_scheme": "first", "split": False}
        replacing = {"pre_tokenizer": {"type": "Metaspace", **spaces}}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    else:
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        replacing = {"normalizer": replace}
    described = {
        "version": "1.0",
        "added_tokens": [
            _added_token_entry(name, i, special=name in special)
            for name, i in (special | added).items()
        ],
        **replacing,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": names[unk_id],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": _byte_pair_merges({p.text: p.score for p in pieces if p.type == _NORMAL}),
        },
    }
    return described, dict(enumerate(names))


def _added_token_entry(name: str, i: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": name, **flags, "special": special}


def _byte_pair_merges(scores: dict[str, float]) -> list[list[str]]:
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


def _read_sentencepiece_model(model: bytes) -> tuple[int, list[_Piece]]:
    """Returns the type of a SentencePiece model, and its pieces.

    The file is parsed by hand, because `sentencepiece_model_pb2` needs another build of protobuf
    than the pipelines.
    """
    model_type, pieces = 1, []
    # Field 1 is a piece (text, score, type); field 2 has the trainer's settings, where field 3 is
    # the type of the model.
    for field, value in _protobuf_fields(model):
        if field == 1:
            fields = {1: b"", 2: b"\0\0\0\0", 3: _NORMAL, **dict(_protobuf_fields(value))}
            (score,) = struct.unpack("<f", fields[2])
            pieces.append(_Piece(fields[1].decode(), score, fields[3]))
        elif field == 2:
            model_type = dict(_protobuf_fields(value)).get(3, model_type)
    return model_type, pieces


def _protobuf_fields(message: bytes) -> Iterator[tuple[int, Any]]:
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
