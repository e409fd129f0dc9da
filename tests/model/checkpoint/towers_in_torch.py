"""Writes tiny towers and decoders with transformers; prints folders that go together, and families.

Run by another interpreter than the tests' (see `tests.torch_python`), in an empty folder.
"""

import transformers as hub

_SIZES = {
    "hidden_size": 12,
    "intermediate_size": 7,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}
_VISION = {**_SIZES, "image_size": 15, "patch_size": 5}
_TEXT = {
    **_SIZES,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 50,
}
_SIGLIP = {"model_type": "siglip_vision_model", **_VISION}

hub.SiglipVisionModel(hub.SiglipVisionConfig(**_VISION)).save_pretrained("siglip")
naflex = hub.Siglip2VisionConfig(**_SIZES, patch_size=5, num_patches=9)
hub.Siglip2VisionModel(naflex).save_pretrained("siglip2")
clip = hub.CLIPConfig(vision_config=_VISION, text_config={**_SIZES, "vocab_size": 9})
hub.CLIPModel(clip).save_pretrained("clip")
hub.Gemma2ForCausalLM(hub.Gemma2Config(**_TEXT)).save_pretrained("gemma2")
both = hub.Gemma3Config(vision_config=_SIGLIP, text_config=_TEXT, mm_tokens_per_image=9)
hub.Gemma3ForConditionalGeneration(both).save_pretrained("gemma3")
hub.LlamaForCausalLM(hub.LlamaConfig(**_TEXT)).save_pretrained("llama")
_CLIP = {"model_type": "clip_vision_model", **_VISION}
llava = hub.LlavaConfig(vision_config=_CLIP, text_config={"model_type": "llama", **_TEXT})
llava.image_token_index = 49
hub.LlavaForConditionalGeneration(llava).save_pretrained("llava")
for row in (
    "siglip gemma2 siglip gemma2",
    "siglip2 gemma3 siglip2 gemma3",
    "gemma3 llama siglip llama",
    "clip llama clip llama",
    "llava llava clip llama",
):
    print(row)
