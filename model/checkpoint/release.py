"""Release of a checkpoint as a folder that transformers loads, with the connector and all budgets.

config.json             settings for `released/configuration_parcel.py`
generation_config.json  defaults of `generate`
model.safetensors       parameters, or several shards of them: the hub's names, `connector.…`
tokenizer.json          the tokenizer, with its tokenizer_config.json
processor_config.json   settings for `released/processing_parcel.py`
*_parcel.py             the model in torch, a verbatim copy
"""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from infra.store.stored_folder import open_stored_folder
from model.checkpoint import translate
from model.checkpoint.array_files import Arrays
from model.checkpoint.config_json import connector_kind
from model.checkpoint.exporter import shards_in, write_tensors
from model.checkpoint.fast_tokenizer import fast_tokenizer
from model.checkpoint.folder import Checkpoint, load_config, params_of, tokenizer_path
from model.checkpoint.target import RequestError
from model.config import ModelConfig
from model.connector import budgets
from model.connector.registry import CONNECTORS, KINDS
from model.files import CONFIG
from model.prompt.registry import PALIGEMMA
from model.text.registry import decoder_facts
from model.vision.registry import tower_facts

CODE = Path(__file__).with_name("released")

_LAYERS = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "up": "fc1",
    "down": "fc2",
}
"""Our name of a connector's linear layer -> its name in the torch classes `Attention` and `Mlp`."""


def write_release(checkpoint: Checkpoint, out: Path, dtype: np.dtype) -> ModelConfig:
    """Writes a checkpoint for transformers into an existing folder, and returns its configuration.

    Args:
      checkpoint: the checkpoint, with a built-in connector; one in a bucket is read in place.
      out: an empty folder.
      dtype: type of the written tensors, float32 or bfloat16.

    Raises:
      RequestError: if there is no torch code for the connector, as for a user's own, or for the
        prompt template.
      ValueError: if the checkpoint is not finished, or its tokenizer has no form for transformers.
    """
    # Checked on the raw JSON: loading the configuration would import a user's own connector class,
    # which may not be installed here.
    kind = connector_kind(open_stored_folder(checkpoint).local_folder((CONFIG,)) / CONFIG)
    if kind not in _torch_kinds():
        raise RequestError(
            f"connector.kind must be one of {', '.join(_torch_kinds())} to be released, got "
            f"{kind!r}: there is no torch code for it."
        )
    cfg = load_config(checkpoint)
    if cfg.prompt != PALIGEMMA:
        raise RequestError(
            f"prompt must be {PALIGEMMA} to be released, got {cfg.prompt}: the torch code has no "
            f"other."
        )
    # Whatever is wrong with the checkpoint, such as a tokenizer without a fast form, shows before
    # the first file is written.
    tokenizer = fast_tokenizer(tokenizer_path(checkpoint))
    params = params_of(checkpoint).arrays
    tokens = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    supported = budgets.supported_budgets(cfg)
    texts = {
        **tokenizer.files,
        "config.json": _json(
            {
                # Which class of the copied code transformers takes for which of its `Auto…`
                # classes.
                "architectures": ["ParcelForConditionalGeneration"],
                "model_type": "parcel",
                "auto_map": {
                    "AutoConfig": "configuration_parcel.ParcelConfig",
                    "AutoModel": "modeling_parcel.ParcelForConditionalGeneration",
                    "AutoModelForCausalLM": "modeling_parcel.ParcelForConditionalGeneration",
                    "AutoModelForImageTextToText": "modeling_parcel.ParcelForConditionalGeneration",
                },
                # All sizes, under our names; `ParcelConfig` repeats those that transformers looks
                # for.
                **_settings(cfg),
                "tie_word_embeddings": cfg.text.tied,
                "budgets": supported,
                "image_token_id": tokenizer.image_token_id,
                **tokens,
                "torch_dtype": dtype.name,
            }
        ),
        # Greedy, as our own evaluations are by default.
        "generation_config.json": _json({**tokens, "do_sample": False, "max_new_tokens": 64}),
        "processor_config.json": _json(
            {
                # The processor is loaded without the model, so it has its own copy of what both
                # need.
                "processor_class": "ParcelProcessor",
                "auto_map": {"AutoProcessor": "processing_parcel.ParcelProcessor"},
                "image_px": cfg.vision.image_px,
                "budgets": supported,
                "image_token_id": tokenizer.image_token_id,
                "separator_id": tokenizer.separator_id,
            }
        ),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    # The folder carries the model's code: who loads it needs no package of ours.
    for file in CODE.glob("*_parcel.py"):
        shutil.copyfile(file, out / file.name)
    # Tower and decoder have the hub's names. Connectors do not exist there; their names are ours,
    # with torch's words for the layers, and torch's layout:
    #
    #     connector/mqt/attn/query/kernel (in, out)  ->  connector.mqt.attn.q_proj.weight (out, in)
    connector = {_hugging_face_name(path): _laid_out(path, params) for path in _connector(params)}
    # Shapes come before tensors, because a shard begins with a header of all its shapes. The
    # towers' tensors are then read and written one at a time.
    shapes = translate.hugging_face_shapes(cfg)
    shapes |= {name: array.shape for name, array in connector.items()}
    tensors = itertools.chain(translate.to_hugging_face(params, cfg), connector.items())
    write_tensors(shards_in(out, shapes, dtype), tensors, dtype, {"format": "pt"})
    return cfg


def _torch_kinds() -> list[str]:
    """Returns the connectors whose class the torch code has, under the same name."""
    code = (CODE / "modeling_parcel.py").read_text(encoding="utf-8")
    return [kind for kind in KINDS if f"\nclass {CONNECTORS[kind].name}(nn.Module)" in code]


def _settings(cfg: ModelConfig) -> dict[str, Any]:
    """Returns our configuration as the torch code reads it."""
    routing = cfg.connector.routing
    return {
        "vision": dataclasses.asdict(cfg.vision),
        "text": dataclasses.asdict(cfg.text),
        "connector": dataclasses.asdict(cfg.connector),
        "routing": {
            "module": CONNECTORS[cfg.connector.kind].name,
            "reads": routing.reads,
            "anchor_counts": routing.anchor_counts(cfg.vision.grid),
        },
        "projector": cfg.projector,
        # Of the families: the torch code knows none by name.
        "facts": {"vision": tower_facts(cfg.vision.family), "text": decoder_facts(cfg.text.family)},
        "attn_softcap": cfg.attn_softcap,
        "final_softcap": cfg.final_softcap,
    }


def _connector(params: Arrays) -> Iterator[str]:
    return (path for path in params if path.startswith("connector/"))


def _hugging_face_name(path: str) -> str:
    """Returns torch's name of a connector's parameter."""
    *above, last = (_LAYERS.get(part, part) for part in path.split("/"))
    return ".".join([*above, {"kernel": "weight", "scale": "weight"}.get(last, last)])


def _laid_out(path: str, params: Arrays) -> np.ndarray:
    array = params[path]
    # torch's linear layers keep their weights as (out, in), ours as (in, out).
    return array.T if path.endswith("/kernel") else array


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
