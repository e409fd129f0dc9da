"""Tiny models of random weights, and their releases."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.release import write_release
from model.checkpoint.torch_connector import TorchClass
from model.config import ModelConfig
from model.connector.registry import KINDS
from model.text.config import RopeScaling
from tests.model.checkpoint.prefix_in_torch import PREFIX
from tests.model.tiny_models import tiny_config

TEXTS = ["how many red boxes are there?", "answer en 12 cats, é and more\n", "  two  spaces"] * 9


def _configs() -> Mapping[str, ModelConfig]:
    """Every connector, every switch of one, and what towers and prompts can differ in."""
    made = {kind: tiny_config(kind) for kind in KINDS}
    made["own"] = tiny_config("tests.model.connector.own_connectors:Prefix")
    mqt, parcel = made["mqt"], made["parcel"]
    content = dataclasses.replace(mqt.connector, mqt_keys="content", mlp_dim=9)
    made["mqt-content"] = dataclasses.replace(mqt, connector=content)
    keyed = dataclasses.replace(parcel.connector, parcel_key_positions=True, mlp_dim=9)
    made["parcel-keyed"] = dataclasses.replace(parcel, connector=keyed)
    made["uncapped"] = dataclasses.replace(parcel, attn_softcap=0.0, final_softcap=0.0)
    # Low enough that a missing cap is seen, and not so low that logits saturate and tie.
    made["capped"] = dataclasses.replace(parcel, attn_softcap=0.3, final_softcap=5.0)
    local = dataclasses.replace(parcel.text, sliding_window=5, rope_base=100.0, query_scale=14.0)
    made["local"] = dataclasses.replace(parcel, text=local)
    uncapped = {"attn_softcap": 0.0, "final_softcap": 0.0}
    text = dataclasses.replace(parcel.text, depth=7, sliding_window=5, query_scale=14.0)
    gemma3 = dataclasses.replace(
        text,
        family="gemma3",
        rope_base=1000.0,
        rope_scaling=RopeScaling(kind="linear", factor=8.0),
        local_rope_base=100.0,
    )
    siglip2 = dataclasses.replace(parcel.vision, family="siglip2")
    made["siglip2+gemma3"] = dataclasses.replace(parcel, vision=siglip2, text=gemma3, **uncapped)
    stretched = RopeScaling(kind="llama3", factor=4.0, high_freq_factor=3.0, original_length=24)
    llama = dataclasses.replace(
        parcel.text, family="llama", tied=False, norm_eps=1e-5, rope_scaling=stretched
    )
    clip = dataclasses.replace(parcel.vision, family="clip")
    made["clip+llama"] = dataclasses.replace(
        parcel, vision=clip, text=llama, projector="mlp", prompt="llava", **uncapped
    )
    near = dataclasses.replace(parcel.text, sliding_window=5)
    made["own-llava"] = dataclasses.replace(made["own"], text=near, prompt="llava")
    return {
        name: dataclasses.replace(cfg, text=dataclasses.replace(cfg.text, vocab_size=1500))
        for name, cfg in made.items()
    }


CONFIGS = _configs()
PAIRS = ["siglip2+gemma3", "clip+llama"]
"""Of the families that a PaliGemma has not."""


def random_params(cfg: ModelConfig) -> vlm.Params:
    """Random everywhere: fresh biases are 0 and fresh norms 1, which would hide a mistake."""
    rng = np.random.default_rng(3)
    # Of seven blocks with norms of heads, whose scale is stored minus 1, larger ones would make
    # rounding grow beyond what is compared.
    middle = 0.0 if cfg.text.family == "gemma3" else 1.0
    # Features of a trained tower look alike; a choice among them must be the same then, too.
    alike = 3.0 * (cfg.connector.kind == "id_selection")
    return unflatten_params(
        {
            path: np.asarray(
                0.2 * rng.normal(size=leaf.shape)
                + path.endswith("scale") * (middle if path.startswith("text/") else 1.0)
                + (path == "vision/norm/bias") * alike,
                np.float32,
            )
            for path, leaf in flatten_params(vlm.abstract_params(cfg))
        }
    )


def release(root: Path, cfg: ModelConfig, pieces: Path, dtype: object = np.float32) -> vlm.Params:
    """Writes `root/checkpoint` and `root/release`, and returns the parameters."""
    params = random_params(cfg)
    for name in ("checkpoint", "release"):
        (root / name).mkdir(parents=True)
    save_checkpoint(
        root / "checkpoint", model=cfg, params=params, tokenizer=pieces, mask_codec=None
    )
    author = None
    if cfg.connector.kind not in KINDS:
        (root / "prefix.py").write_text(PREFIX)
        author = TorchClass(file=root / "prefix.py", name="Prefix")
    write_release(root / "checkpoint", root / "release", np.dtype(dtype), author)
    return params
