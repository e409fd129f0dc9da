"""lmms-eval scores releases of pairs that are no PaliGemma, with the class that the page shows."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows.logs.lmms_eval import find_logs, read_log
from model.data.pixels import decode_images
from model.decode.predict import Predictor
from model.text.tokenizer import train_tokenizer
from pipelines.images.square import ImageSpec, prepare_image
from tests.model.checkpoint.releases import CONFIGS, TEXTS, release
from tests.model.text.vocabularies import write_llama
from tests.slices import day_slice
from tests.torch_python import run_torch, torch_python

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "release.md"
RELEASES = [("siglip2+gemma3", 64), ("clip+llama", 16)]
"""Pair, and the budget that it is scored at; the second is asked as LLaVA is."""
QUESTIONS = ["how many cats are there?", "is it red?", "how many boxes?", "which is highest?"]
RIGHT = [1.0, 1.0, 0.0, 0.0]
"""Scores of these questions: the first two have our own answer as their target."""

TASK = """
task: colours
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/items.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function colours.pictures
doc_to_text: question
doc_to_target: answer
generation_kwargs: {{max_new_tokens: 6}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
PICTURES = """
from PIL import Image


def pictures(doc):
    return [Image.open(doc["picture"])]
"""


@pytest.mark.deep
@pytest.mark.parametrize(("name", "budget"), day_slice(RELEASES, RELEASES[-1:]))
def test_it_scores_our_answers(name: str, budget: int, tmp_path: Path):
    torch_python("lmms_eval")
    pieces = tmp_path / "tokenizer.model"
    if "llama" in name:
        write_llama(pieces, TEXTS)
    else:
        train_tokenizer(TEXTS, str(pieces), 330)
    cfg, answers = CONFIGS[name], []
    release(tmp_path, cfg, pieces)
    predictor = Predictor(tmp_path / "checkpoint")
    # Every item has a picture of its own; a wrong target is no text that a model gives.
    with (tmp_path / "items.jsonl").open("w") as file:
        for number, question in enumerate(QUESTIONS):
            pixels = np.random.default_rng(number).integers(0, 256, (45, 61, 3), np.uint8)
            picture = tmp_path / f"{number}.png"
            Image.fromarray(pixels).save(picture)
            # The pixels that a record would hold.
            stored, _ = prepare_image(picture.read_bytes(), ImageSpec(image_px=cfg.vision.image_px))
            pixels = decode_images([stored], 1, cfg.vision.image_px)
            ours = predictor.answer(pixels, f"answer en {question}", budget=budget, max_tokens=6)
            answers.append(ours.text)
            target = answers[-1] if RIGHT[number] else "no answer of anybody"
            item = {"picture": str(picture), "question": question, "answer": target}
            file.write(json.dumps(item) + "\n")
    (code,) = re.findall(r"```python\n(# parcel_lmms.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "parcel_lmms.py").write_text(code)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "colours.yaml").write_text(TASK.format(folder=tmp_path))
    (tmp_path / "tasks" / "colours.py").write_text(PICTURES)

    given = f"pretrained={tmp_path / 'release'},budget={budget}"
    words = ("--model", "parcel", "--model_args", given, "--device", "cpu", "--tasks", "colours")
    places = ("--include_path", "tasks", "--output_path", "logs", "--log_samples")
    run_torch(tmp_path, "parcel_lmms.py", *words, *places)

    (log,) = find_logs(tmp_path / "logs")
    found = read_log(log)
    assert (found.task, found.metric, found.split) == ("colours", "exact_match", "test")
    assert [item.answer for item in found.items] == answers
    assert [item.score for item in found.items] == RIGHT
    assert len(set(answers)) > 1
