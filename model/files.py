"""Names of the files that `model` writes. Importing this module is cheap: it does not import JAX.

checkpoint   model.json, params.json, params-…, tokenizer.model, mask_codec.npz, digest.txt,
             metrics.jsonl, watch.jsonl, samples.jsonl
mask codec   mask_codec.npz, codec.json
predictions  predictions.jsonl
scores       score.json, items.parquet
chance       chance.json, predictions.jsonl
"""

CONFIG, PARAMS, TOKENIZER = "model.json", "params.json", "tokenizer.model"
MASK_CODEC, DIGEST = "mask_codec.npz", "digest.txt"

METRICS = "metrics.jsonl"
"""File beside a trained checkpoint: loss, gradients, speed and lost time by step (`train.log`)."""

WATCH = "watch.jsonl"
"""File beside it, if the stage was watched: losses and scores on held-out data, by step."""

SAMPLES = "samples.jsonl"
"""File beside it, if it has `sample_steps`: its answers to a few held-out questions, by step."""

PROFILE = "profile"
"""Folder beside it, if some of its steps were traced: the profile, for TensorBoard and XProf."""

CODEC_REPORT = "codec.json"
"""File beside a codec: the number of crops it was tested on, and its mean IoU on them."""

PREDICTIONS = "predictions.jsonl"
"""Answers of a checkpoint, a row per record, sorted by id; of chance, the score of each guess."""

SCORE, ITEMS = "score.json", "items.parquet"
"""Score of some predictions with its parts, and a row per item: its answer and its score."""

CHANCE = "chance.json"
"""Score of a baseline that never looks at an image."""
