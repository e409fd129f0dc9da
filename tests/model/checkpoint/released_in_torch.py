"""Loads the releases of a folder with transformers, and writes what they compute of `given.npz`.

Run by another interpreter than the tests' (see `tests.torch_python`).
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

torch.set_grad_enabled(False)
root = Path(sys.argv[1])
given = np.load(root / "given.npz")
images = torch.tensor(given["images"]).permute(0, 1, 4, 2, 3)
text, mask_ar = (torch.tensor(given[name]).long() for name in ("text", "mask_ar"))
lengths, question = given["lengths"], str(given["question"])


def forward(model, budget):
    """Returns the logits of the texts, and the model's inputs beside their types."""
    places = torch.full((2, images.shape[1] * budget), model.config.placeholder_id)
    # Some templates have text before the images.
    has_lead = model.config.facts["prompt"].get("lead") is not None
    num = int(given["num_lead"]) if has_lead else 0

    def joined(of_places, of_text):
        return torch.cat([of_text[:, :num], of_places, of_text[:, num:]], 1)

    is_real = torch.arange(text.shape[1])[None] < torch.tensor(lengths)[:, None]
    ids, valid = joined(places, text), joined(torch.ones_like(places), is_real)
    types = joined(torch.zeros_like(places), mask_ar)
    batch = {"input_ids": ids, "attention_mask": valid, "pixel_values": images}
    logits = model(**batch, token_type_ids=types).logits
    return torch.cat([logits[:, :num], logits[:, num + places.shape[1] :]], 1), (batch, types)


def processed(folder):
    """Returns a release's processor, and what it makes of two questions."""
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    with Image.open(root / "photo.png") as photo, Image.open(root / "ink.png") as ink:
        inputs = processor(images=[photo, [ink]], text=["answer en\n", question])
    return processor, inputs


for folder in sorted(root.glob("*/release")):
    model, told = AutoModelForImageTextToText.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    wrong = {name: value for name, value in told.items() if value}
    assert not wrong, (folder, wrong)
    found = {}
    for budget in set(model.config.budgets) & {16, 64, 256}:
        logits, (batch, types) = forward(model, budget)
        found[f"logits{budget}"] = logits.numpy()
        # Without types, the tokens that have labels are the answer.
        ids, valid = batch["input_ids"], batch["attention_mask"]
        labels = torch.where((types * valid).bool(), ids, -100)
        found[f"loss{budget}"] = model(**batch, labels=labels).loss.numpy()
        found[f"shared{budget}"] = model(**batch, labels=labels, num_items_in_batch=50).loss.numpy()
        # To generate, prompts end together: padding stands on their left.
        width = ids.shape[1]
        rows, real = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, length in enumerate(lengths):
            start = text.shape[1] - int(length)
            rows[row, start:] = ids[row, : width - start]
            real[row, start:] = 1
        made = model.generate(
            input_ids=rows, attention_mask=real, pixel_values=images, max_new_tokens=6
        )
        found[f"greedy{budget}"] = made[:, width:].numpy()
    processor, inputs = processed(folder)
    answers, served = {}, set(processor.budgets) & {16, 64, 256}
    for budget in served if processor.prompt["lead"] is not None else ():
        with Image.open(root / "photo.png") as photo:
            asked = processor(images=photo, text=question, budget=budget)
        made = model.generate(**asked, max_new_tokens=6)[0, asked["input_ids"].shape[1] :]
        answers[budget] = processor.decode(made, skip_special_tokens=True)
    # In half precision, the embedding is converted once, and again after a change.
    half = model.to(torch.bfloat16)
    tables = [half._float_table() for _ in range(2)]
    assert tables[0] is tables[1]
    tied = model.config.text["tied"]
    (half.get_input_embeddings() if tied else half.lm_head).weight.mul_(2)
    assert torch.equal(half._float_table(), 2 * tables[0])
    np.savez(folder.parent / "found.npz", **found)

    texts = json.loads((root / "texts.json").read_text())
    encoded = [processor.tokenizer(one, add_special_tokens=False)["input_ids"] for one in texts]
    decoded = [processor.tokenizer.decode(ids, skip_special_tokens=True) for ids in encoded]
    (folder.parent / "texts_found.json").write_text(
        json.dumps(
            {
                "encoded": encoded,
                "decoded": decoded,
                "answers": answers,
                "input_ids": inputs["input_ids"].tolist(),
                "attention_mask": inputs["attention_mask"].tolist(),
            }
        )
    )
    np.save(folder.parent / "pixels.npy", inputs["pixel_values"].numpy())

# A release of before there were families and templates states none of their facts.
before = shutil.copytree(root / "parcel" / "release", root / "before")
config = json.loads((before / "config.json").read_text())
for name in ("facts", "projector", "tie_word_embeddings"):
    del config[name]
for name in ("family", "rope_scaling", "local_rope_base", "query_scale", "norm_eps", "tied"):
    del config["text"][name]
del config["vision"]["family"]
(before / "config.json").write_text(json.dumps(config))
settings = json.loads((before / "processor_config.json").read_text())
del settings["prompt"]
(before / "processor_config.json").write_text(json.dumps(settings))
model = AutoModelForImageTextToText.from_pretrained(before, trust_remote_code=True)
budget = max(set(model.config.budgets) & {16, 64, 256})
logits, _ = forward(model, budget)
_, inputs = processed(before)
ids = inputs["input_ids"].numpy()
np.savez(root / "before.npz", logits=logits.numpy(), budget=budget, input_ids=ids)
