"""Computes `references.npz` with transformers; its Python needs torch and numpy alone.

python -m tests.model.families.make_references [OUT.npz]
"""

import sys
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

from tests.model.families import references
from tests.model.families.references import DECODERS, NUM_NEW, TOWERS, WHOLE

_CLIP_MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
_CLIP_STD = np.array([0.26862954, 0.26130258, 0.27577711])


def main() -> None:
    """Writes the arrays of all models."""
    torch.set_grad_enabled(False)
    arrays = {"transformers": np.array(transformers.__version__)}
    for name, config in TOWERS.items():
        arrays[f"{name}/features"] = features(name, config)
    for name, config in DECODERS.items():
        arrays |= {f"{name}/{key}": value for key, value in decoder(name, config).items()}
    for name, (tower, text) in WHOLE.items():
        arrays |= {f"{name}/{key}": value for key, value in whole(name, tower, text).items()}
    np.savez_compressed(sys.argv[1] if len(sys.argv) > 1 else references.FILE, **arrays)


def features(name: str, config: dict[str, Any]) -> np.ndarray:
    """Returns a tower's features, as PaliGemma and LLaVA read them."""
    model = _with_weights(AutoModel.from_config(_config(config)))
    if config["model_type"] == "siglip2_vision_model":
        return _numpy(_naflex_features(model, name, config))
    if config["model_type"] == "clip_vision_model":
        states = model(_pixels(name), output_hidden_states=True).hidden_states
        return _numpy(states[-2][:, 1:])
    return _numpy(model(_pixels(name)).last_hidden_state)


def _naflex_features(model: Any, name: str, config: dict[str, Any]) -> torch.Tensor:
    images, px = references.images(name), config["patch_size"]
    batch, grid = len(images), images.shape[1] // px
    patches = images.reshape(batch, grid, px, grid, px, 3).transpose(0, 1, 3, 2, 4, 5)
    patches = torch.tensor(patches.reshape(batch, grid * grid, px * px * 3))
    out = model(
        pixel_values=patches,
        pixel_attention_mask=torch.ones(batch, grid * grid, dtype=torch.long),
        spatial_shapes=torch.tensor([[grid, grid]] * batch),
    )
    return out.last_hidden_state


def decoder(name: str, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns a decoder's logits of a text, and its greedy tokens after it."""
    model = _with_weights(AutoModelForCausalLM.from_config(_config(config)))
    ids = torch.tensor(references.tokens(name)).long()
    arrays = {"logits": _numpy(model(ids).logits), "greedy": _greedy(model, ids)}
    if name.startswith("gemma3"):
        # All of the text as one prefix. The config then states twice the reach on one side.
        reach = 2 * (config["sliding_window"] - 1)
        both = {**config, "sliding_window": reach, "use_bidirectional_attention": True}
        model = _with_weights(AutoModelForCausalLM.from_config(_config(both)))
        arrays["logits_prefix"] = _numpy(model(ids).logits)
    return arrays


def whole(name: str, tower: str, text: str) -> dict[str, np.ndarray]:
    """Returns a model's logits of a text after an image, all of it causal, and greedy tokens.

    Of PaliGemma also those of a text that begins in the prefix, which is longer than the window.
    """
    kind = name.rpartition("_")[0]
    placeholder = DECODERS[text]["vocab_size"] - 1
    config = AutoConfig.for_model(
        kind,
        vision_config={**TOWERS[tower], "vision_use_head": False}
        if kind == "paligemma"
        else TOWERS[tower],
        text_config=DECODERS[text],
        image_token_index=placeholder,
        image_token_id=placeholder,
        projection_dim=DECODERS[text]["hidden_size"],
        # The container has a field of its own, which would win over the decoder's.
        tie_word_embeddings=DECODERS[text].get("tie_word_embeddings", True),
    )
    config._attn_implementation = "eager"
    model = _with_weights(AutoModelForImageTextToText.from_config(config))
    arrays = _behind(model, tower, text, placeholder, num_before=0)
    # LLaVA's prompts begin with text.
    if kind == "llava":
        between = _behind(model, tower, text, placeholder, num_before=references.NUM_BEFORE)
        arrays |= {f"{key}_between": array for key, array in between.items()}
    else:
        prefix = _behind(model, tower, text, placeholder, num_before=0, prefix=True)
        arrays |= {f"{key}_prefix": array for key, array in prefix.items()}
    return arrays


def _behind(
    model: Any, tower: str, text: str, placeholder: int, num_before: int, prefix: bool = False
) -> dict[str, np.ndarray]:
    """Returns the logits of a text and greedy tokens, the image behind the text's first tokens.

    With `prefix`, the image and `NUM_PREFIX` tokens of the text see each other.
    """
    count = (references.side(tower) // TOWERS[tower]["patch_size"]) ** 2
    ids = torch.tensor(references.tokens(text)).long()
    soft = torch.full((len(ids), count), placeholder)
    before, after = ids[:, :num_before], ids[:, num_before:]
    inputs = {"input_ids": torch.cat([before, soft, after], 1), "pixel_values": _pixels(tower)}
    if prefix:
        places = torch.arange(inputs["input_ids"].shape[1]).expand_as(inputs["input_ids"])
        inputs["token_type_ids"] = (places >= count + references.NUM_PREFIX).long()
    logits = model(**inputs).logits
    logits = torch.cat([logits[:, :num_before], logits[:, num_before + count :]], 1)
    return {"logits": _numpy(logits), "greedy": _greedy(model, **inputs)}


def _config(config: dict[str, Any]) -> Any:
    fields = dict(config)
    made = AutoConfig.for_model(fields.pop("model_type"), **fields)
    made._attn_implementation = "eager"
    return made


def _with_weights(model: Any) -> Any:
    model = model.float().eval()
    for name, value in model.named_parameters():
        value.copy_(torch.tensor(references.weight(name, tuple(value.shape))))
    return model


def _pixels(tower: str) -> torch.Tensor:
    images = references.images(tower)
    if tower.startswith("clip"):
        images = ((images + 1) / 2 - _CLIP_MEAN) / _CLIP_STD
    return torch.tensor(images.transpose(0, 3, 1, 2), dtype=torch.float32)


def _greedy(model: Any, ids: torch.Tensor | None = None, **inputs: torch.Tensor) -> np.ndarray:
    ids = inputs.pop("input_ids") if ids is None else ids
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_NEW,
        min_new_tokens=NUM_NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **inputs,
    )
    return out[:, ids.shape[1] :].numpy().astype(np.int32)


def _numpy(x: torch.Tensor) -> np.ndarray:
    return x.numpy().astype(np.float32)


if __name__ == "__main__":
    main()
