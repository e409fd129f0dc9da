"""LLaVA's two stages on conversations, then one checkpoint of each method scored zero-shot."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infra.store.manifest import Manifest
from infra.store.store import Store
from tests.e2e.conftest import parcel

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("one_server")]

CONFIG = """
base: {tiny}
name: llava
data_root: data
sources: [{{reader: llava_pretrain}}, {{reader: llava_instruct}}]
mask_codec: null
prepare: {{num_shards: 1, max_reject_rate: 0.1, tasks: [], aspect: pad}}
model:
  vision:
    {{family: clip, image_px: 32, patch_px: 4, width: 16, depth: 2, mlp_dim: 20, num_heads: 2}}
  text:
    {{family: llama, width: 24, depth: 2, mlp_dim: 28, num_heads: 3, num_kv_heads: 3, head_dim: 8}}
  connector: {{num_heads: 4}}
  attn_softcap: 0
  final_softcap: 0
  projector: mlp
  prompt: llava
methods: [vanilla, mqt]
budgets: &table [16, 64]
train_budgets: {{mqt: *table, m3: *table, parcel: *table}}
connectors: {{mqt: {{num_heads: 4, buckets: [16, 64]}}, parcel: {{num_heads: 4, buckets: []}}}}
num_seeds: 1
stage1:
  {{prompt: llava-plain, mixture: [[llava_pretrain, 1]], batch_size: 4, total_steps: 2,
   text_len: 24, freeze_vision: true, freeze_text: true}}
intermediary: null
stages:
  - name: instruct
    after: stage1
    train:
      {{mixture: [[llava_instruct, 1]], batch_size: 8, epochs: 1, text_len: 320, peak_lr: 0.001,
       freeze_vision: true}}
transfers:
  chartqa: null
  refcoco: null
  msvd_qa: null
  gqa:
    zero_shot: true
    prompt: "{{text}}\\nAnswer the question using a single word or phrase."
    eval_text_len: 320
"""
COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, LLaVA's two files and a benchmark, all drawn."""
    folder = tmp_path_factory.mktemp("llava")
    data, draw = folder / "data", np.random.default_rng(0)

    def picture(path: str, n: int) -> None:
        pixels = draw.integers(0, 80, (40, 50, 3), dtype=np.uint8)
        pixels[..., n % 3] += 150
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(data / path)

    captions, instructions, questions = [], [], {}
    for n in range(16):
        picture(f"llava_pretrain/images/0000/{n}.jpg", n)
        captions.append(row(str(n), f"0000/{n}.jpg", "Describe it.\n<image>", COLOURS[n % 3]))
    for n in range(40):
        picture(f"llava_instruct/coco/train2017/{n}.jpg", n)
        said = ["<image>\nWhich colour is it?", COLOURS[n % 3], "And the frame?", "none"]
        instructions.append(row(str(n), f"coco/train2017/{n}.jpg", *said[: 2 + 2 * (n % 2)]))
    for n in range(24):
        instructions.append(row(f"text {n}", None, "What is red?", "a colour", f"And {n}?", "none"))
    for n in range(6):
        picture(f"gqa/images/{n}.jpg", n)
        questions[str(n)] = {
            "imageId": str(n),
            "question": "Which colour is it?",
            "answer": COLOURS[n % 3],
        }
    for name, rows in (
        ("llava_pretrain/blip_laion_cc_sbu_558k.json", captions),
        ("llava_instruct/llava_v1_5_mix665k.json", instructions),
        ("gqa/testdev_balanced_questions.json", questions),
    ):
        (data / name).write_text(json.dumps(rows))
    for path in data.rglob("*"):  # A file of the last two seconds is looked at again.
        os.utime(path, (1_700_000_000, 1_700_000_000))
    tiny = Path(__file__).with_name("tiny.yaml")
    (folder / "study.yaml").write_text(CONFIG.format(tiny=tiny))
    return folder


def row(key: str, image: str | None, *said: str) -> Mapping[str, Any]:
    roles = ("human", "gpt") * len(said)
    words = [{"from": role, "value": text} for role, text in zip(roles, said, strict=False)]
    return {"id": key, **({"image": image} if image else {}), "conversations": words}


def test_a_checkpoint_of_the_instruction_stage_is_scored_as_it_is(folder: Path):
    store = Store(folder / "store")
    done = parcel(folder / "store", "run", "study.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def by_name(kind: str) -> dict[str, Manifest]:
        return {found.manifest.name: found.manifest for found in store.artifacts(kind)}

    datasets, checkpoints = by_name("dataset"), by_name("checkpoint")
    # A conversation is one record, whatever its turns, and with or without a picture.
    counts = datasets["prepare mixture/llava_instruct"].counts
    assert (counts["inputs"], counts["records"], counts["rejected"]) == (64, 64, 0)
    assert "not_read" not in counts
    assert set(checkpoints) == {"stage1 vanilla", "instruct vanilla", "instruct mqt"}
    assert checkpoints["instruct mqt"].counts["steps"] == 8
    assert checkpoints["instruct mqt"].inputs["init"].key == checkpoints["stage1 vanilla"].key
    predictions = by_name("predictions")
    assert len(predictions) == 3  # vanilla at 64, MQT at 16 and 64.
    read = {name.split()[1]: made.inputs["checkpoint"].key for name, made in predictions.items()}
    assert read == {m: checkpoints[f"instruct {m}"].key for m in ("vanilla", "mqt")}
    (first, *_) = (found for found in store.artifacts("predictions"))
    answered = json.loads((first.path / "predictions.jsonl").read_text().splitlines()[0])
    assert answered["prefix"].endswith("it?\nAnswer the question using a single word or phrase.")
    assert "/gqa/" in done.stdout
