"""Tests of the cost of a prompt, for each row of the results."""

import pytest

from flows.graph.costs import costs_of
from flows.study.load import load
from model.analysis.flops import Modality, kv_cache_bytes, prefill_flops


def test_a_prompt_has_the_frames_and_the_text_of_its_benchmark():
    study = load(overrides=["transfers.nlvr={}", "transfers.msvd_qa.transfer=true"])
    found = {(row, c.method, c.budget): c for c in costs_of(study.views[0]) for row in c.benchmarks}
    assert {row for row, _, _ in found} == set(study.views[0].rows)
    assert {budget for _, method, budget in found if method == "vanilla"} == {256}
    images = {row: c.num_images for (row, *_), c in found.items()}
    assert [images[row] for row in ("chartqa", "msvd_qa", "nlvr")] == [1, 16, 2]
    transfer = study.transfers["msvd_qa"]
    text_len = transfer.eval_text_len or transfer.train.text_len
    prompt = Modality(name="video", num_images=16, text_tokens=text_len)
    model = study.model_of("parcel", transfer=True)
    cost = found["msvd_qa", "parcel", 64]
    assert cost.tokens == 1024
    assert cost.tflops == pytest.approx(prefill_flops(model, 64, prompt).total / 1e12)
    assert cost.kv_mb == pytest.approx(kv_cache_bytes(model, 64, prompt) / 2**20)
