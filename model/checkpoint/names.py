"""Parameter names of other codebases, and the layouts of their arrays.

Tables of ours <-> big_vision <-> Hugging Face, one per family. big_vision stacks the layers of a
tower on axis 0, as we do; Hugging Face has a name per layer, `{i}` below, and stores linear weights
transposed.
"""

import re
from collections.abc import Collection, Iterable

from model.config import ModelConfig, Projector
from model.layouts import HF_DECODER, HF_TOWER, Names, linear_names
from model.text.registry import decoder_names
from model.vision.registry import tower_family, tower_names, unused_names

LM_HEAD = "lm_head.weight"
"""Hugging Face's name of the output matrix; of tied decoders, some files have a copy of the
embedding."""
EMBEDDING, HUGGING_FACE_EMBEDDING = "text/embedding", HF_DECODER + "embed_tokens.weight"
"""Our and Hugging Face's name of the embedding, which may have more rows in other codebases."""
HEAD = "text/head"
"""Our name of the output matrix, which tied decoders lack."""
TOKEN_ROWS = (EMBEDDING, HEAD)
"""Our parameters that have a row for each token."""

_PROJECTORS: dict[Projector, Names] = {
    "linear": tuple(linear_names("projector", "multi_modal_projector.linear", "img/head")),
    "mlp": (
        *linear_names("projector/first", "multi_modal_projector.linear_1"),
        *linear_names("projector/second", "multi_modal_projector.linear_2"),
    ),
}


def names_of(cfg: ModelConfig) -> Names:
    """Returns the names of a model's parameters but for its connector's."""
    return table(cfg.vision.family, cfg.text.family, tied=cfg.text.tied, projector=cfg.projector)


def table(vision: str, text: str, *, tied: bool, projector: Projector) -> Names:
    """Returns the names of all parameters of a tower, a decoder and a projector.

    Args:
      vision: family of the tower.
      text: family of the decoder.
      tied: whether the embedding is the output matrix.
      projector: layers between them.
    """
    return (*tower_names(vision), *decoder_table(text, tied=tied), *_PROJECTORS[projector])


def decoder_table(family: str, *, tied: bool) -> Names:
    """Returns the names of a decoder's parameters; see `table`."""
    return tuple(name for name in decoder_names(family) if not (tied and name.ours == HEAD))


PALIGEMMA = table("siglip", "gemma2", tied=True, projector="linear")
"""The names of PaliGemma 2, which are all that big_vision has."""


def is_paligemma(cfg: ModelConfig) -> bool:
    """Returns whether a model but for its connector is a PaliGemma 2, which others have too."""
    return names_of(cfg) == PALIGEMMA and cfg.text.rope_scaling is None


_ALONE = re.compile(
    r"^(?=(?P<decoder>layers\.|embed_tokens\.|norm\.)"
    r"|embeddings\.|encoder\.|pre_layrnorm\.|post_layernorm\.|head\.)"
)
"""The beginning of a name in a tower or a decoder alone, whose names have no prefix."""
_LAYER = re.compile(re.escape(HF_TOWER) + r"encoder\.layers\.(\d+)\.")


def used_names(names: Collection[str], vision: str) -> set[str]:
    """Returns the names that a model reads: without a tower's last blocks, where none are used.

    Args:
      names: names in a Hugging Face checkpoint, as `hugging_face_keys` gives them.
      vision: family of the tower.
    """
    blocks = {name: int(match[1]) for name in names if (match := _LAYER.match(name))}
    num_used = 1 + max(blocks.values(), default=0) - tower_family(vision).unused_blocks
    unused = HF_TOWER + unused_names(vision)
    return {
        name for name in names if blocks.get(name, 0) < num_used and not name.startswith(unused)
    }


class NamesError(ValueError):
    """A file does not hold each parameter once, in its shape."""


def big_vision_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns a dict: key without `params/` -> key.

    If any key begins with `params/`, all others are left out: they belong to the optimizer.
    """
    names = list(keys)
    inside = [key for key in names if key.startswith("params/")]
    return {key.removeprefix("params/"): key for key in inside or names}


def hugging_face_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns a dict: name that the key had on the hub in 2024 -> key. Buffers are left out.

    Later releases of transformers renamed `language_model.model.` to `model.language_model.`, and
    `vision_tower.vision_model.` to `model.vision_tower.`. A tower or a decoder alone has
    `vision_model.` and `model.`, or nothing, where a model of both has these.

    Raises:
      NamesError: if two keys mean the same parameter.
    """
    keys_of_names: dict[str, str] = {}
    for key in keys:
        if re.search(r"(position_ids|inv_freq)$", key):
            continue
        name = key.removeprefix("model.")
        name = re.sub(r"^language_model\.(?:model\.)?", HF_DECODER, name)
        name = re.sub(r"^(?:vision_tower\.(?:vision_model\.)?|vision_model\.)", HF_TOWER, name)
        name = _ALONE.sub(lambda match: HF_DECODER if match["decoder"] else HF_TOWER, name)
        name = LM_HEAD if name.endswith("lm_head.weight") else name
        if name in keys_of_names:
            raise NamesError(
                f"a checkpoint must hold {name} once, got {keys_of_names[name]} and {key}."
            )
        keys_of_names[name] = key
    return keys_of_names
