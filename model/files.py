"""Names of the files that `model` writes. Importing them costs nothing: no JAX comes with them.

checkpoint   model.json, params.json, params-…, tokenizer.model, mask_codec.npz, digest.txt,
             metrics.jsonl, watch.jsonl
mask codec   mask_codec.npz, codec.json
predictions  predictions.jsonl, score.json
chance       chance.json
"""

CONFIG, PARAMS, TOKENIZER = "model.json", "params.json", "tokenizer.model"
MASK_CODEC, DIGEST = "mask_codec.npz", "digest.txt"

METRICS = "metrics.jsonl"
"""Beside a trained checkpoint: loss, gradients, speed and lost time by step; see `train.log`."""

WATCH = "watch.jsonl"
"""Beside it, where a stage was watched: losses and scores on what it does not train on, by step."""

PROFILE = "profile"
"""Folder beside it, where some of its steps were traced: what TensorBoard and XProf read."""

CODEC_REPORT = "codec.json"
"""Beside a codec: on how many crops it was tried, and its mean IoU on them."""

PREDICTIONS, SCORE = "predictions.jsonl", "score.json"

CHANCE = "chance.json"
"""Score of a baseline that never looks at an image."""
