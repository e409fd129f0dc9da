"""Release of a checkpoint as a folder that transformers loads, with the connector and all budgets.

config.json             settings for `released/configuration_parcel.py`
generation_config.json  defaults of `generate`
model.safetensors       parameters, or several shards of them: the hub's names, `connector.…`
tokenizer.json          the tokenizer, with its tokenizer_config.json
processor_config.json   settings for `released/processing_parcel.py`
*_parcel.py             the model in torch, a verbatim copy
own_connector.py        of a connector of one's own: its author's torch class, a verbatim copy
own_model.py            ... and the model that has it
"""

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from infra.store.stored_folder import open_stored_folder
from model.checkpoint import translate
from model.checkpoint.config_json import connector_kind
from model.checkpoint.exporter import shards_in, write_tensors
from model.checkpoint.fast_tokenizer import fast_tokenizer
from model.checkpoint.folder import Checkpoint, load_config, params_of, tokenizer_path
from model.checkpoint.target import RequestError
from model.checkpoint.torch_connector import (
    CODE,
    OWN_FILE,
    TorchClass,
    torch_layout,
    torch_name,
    torch_settings,
)
from model.config import ModelConfig
from model.connector import budgets
from model.connector.registry import CONNECTORS, KINDS
from model.files import CONFIG
from model.prompt.registry import prompt_facts

_OWN_MODEL_FILE = "own_model.py"
_OWN_MODEL = '''\
"""The model of this release: its connector is its author's own."""

from .configuration_parcel import ParcelConfig
from .modeling_parcel import ParcelForConditionalGeneration
from .{module} import {name}


class OwnConnectorConfig(ParcelConfig):
    """Configuration of this model, by whose class transformers finds the model."""

    # Stated, since transformers 5 gives a configuration without it one of its own.
    def __init__(self, **settings):
        super().__init__(**settings)


class OwnConnectorForConditionalGeneration(ParcelForConditionalGeneration):
    """Model that answers prompts about images, with the connector `{name}`."""

    config_class = OwnConnectorConfig
    connector_class = {name}
    _no_split_modules = [*ParcelForConditionalGeneration._no_split_modules, "{name}"]
'''
"""`own_model.py`; `auto_map` names its classes."""


def write_release(
    checkpoint: Checkpoint,
    out: Path,
    dtype: np.dtype,
    author: TorchClass | None = None,
    pictures: Mapping[str, str] = MappingProxyType({}),
) -> ModelConfig:
    """Writes a checkpoint for transformers into an existing folder, and returns its configuration.

    Args:
      checkpoint: the checkpoint; one in a bucket is read in place.
      out: an empty folder.
      dtype: type of the written tensors, float32 or bfloat16.
      author: the torch class of a connector of one's own, which
        `torch_connector.compare_checkpoint` tries; None for a built-in one.
      pictures: settings of the processor by which pictures become squares, where they are not its
        defaults.

    Raises:
      RequestError: if there is no torch code for the connector, or the prompt template has no
        questions.
      ValueError: if the checkpoint is not finished, or its tokenizer has no form for transformers.
    """
    # Checked on the raw JSON: loading the configuration would import a user's own connector class,
    # which may not be installed here.
    kind = connector_kind(open_stored_folder(checkpoint).local_folder((CONFIG,)) / CONFIG)
    if author is None and kind not in _torch_kinds():
        raise RequestError(
            f"connector.kind must be one of {', '.join(_torch_kinds())} to be released, got "
            f"{kind!r}: there is no torch code for it; --torch file.py:Class names its author's."
        )
    cfg = load_config(checkpoint)
    if not cfg.template.reads_question:
        raise RequestError(
            f"prompt must be a template with questions to be released, got {cfg.prompt}, which "
            f"has none; release a checkpoint of a later stage."
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
    config = "configuration_parcel.ParcelConfig"
    model = "modeling_parcel.ParcelForConditionalGeneration"
    if author is not None:
        own = _OWN_MODEL_FILE.removesuffix(".py")
        config = f"{own}.OwnConnectorConfig"
        model = f"{own}.OwnConnectorForConditionalGeneration"
    supported = budgets.supported_budgets(cfg)
    texts = {
        **tokenizer.files,
        "config.json": _release_json_text(
            {
                # Which class of the copied code transformers takes for which of its `Auto…`
                # classes.
                "architectures": [model.partition(".")[2]],
                "model_type": "parcel",
                "auto_map": {
                    "AutoConfig": config,
                    "AutoModel": model,
                    "AutoModelForCausalLM": model,
                    "AutoModelForImageTextToText": model,
                },
                # All sizes, under our names; `ParcelConfig` repeats those that transformers looks
                # for.
                **torch_settings(cfg),
                "tie_word_embeddings": cfg.text.tied,
                # No `…_token_id`: transformers 5 warns of one that is not in the vocabulary.
                "placeholder_id": tokenizer.image_token_id,
                **tokens,
                "torch_dtype": dtype.name,
            }
        ),
        # Greedy, as our own evaluations are by default.
        "generation_config.json": _release_json_text(
            {**tokens, "do_sample": False, "max_new_tokens": 64}
        ),
        "processor_config.json": _release_json_text(
            {
                # The processor is loaded without the model, so it has its own copy of what both
                # need.
                "processor_class": "ParcelProcessor",
                "auto_map": {"AutoProcessor": "processing_parcel.ParcelProcessor"},
                "image_px": cfg.vision.image_px,
                **pictures,
                "budgets": supported,
                "image_token_id": tokenizer.image_token_id,
                "separator_id": tokenizer.separator_id,
                "prompt": prompt_facts(cfg.prompt),
            }
        ),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    # The folder carries the model's code: who loads it needs no package of ours.
    for file in CODE.glob("*_parcel.py"):
        shutil.copyfile(file, out / file.name)
    if author is not None:
        shutil.copyfile(author.file, out / OWN_FILE)
        own_model = _OWN_MODEL.format(module=OWN_FILE.removesuffix(".py"), name=author.name)
        (out / _OWN_MODEL_FILE).write_text(own_model, encoding="utf-8")
    # Tower and decoder have the hub's names. Connectors do not exist there; their names are ours,
    # with torch's words for the layers, and torch's layout:
    #
    #     connector/mqt/attn/query/kernel (in, out)  ->  connector.mqt.attn.q_proj.weight (out, in)
    connector = {
        torch_name(path): torch_layout(path, params[path])
        for path in params
        if path.startswith("connector/")
    }
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


def _release_json_text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
