"""Routers on a checkpoint: what they learn from, and whose answers they take."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model import vlm
from model.checkpoint.folder import save_checkpoint
from model.data.pixels import decode_images
from model.data.text import train_row
from model.decode.predict import Predictor
from model.eval.config import EvalConfig
from model.eval.routed import route, train_router
from model.eval.run import evaluate
from model.router.config import RouterConfig
from model.router.head import Head
from model.text.tokenizer import Tokenizer
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_compiler")]

BUDGETS = (16, 64)
DECODE = EvalConfig(metric="exact_match", batch_size=4, text_len=16)


def run(making: Any) -> Any:
    while True:
        try:
            next(making)
        except StopIteration as end:
            return end.value


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("routed")
    model = tiny_model("parcel", (30, 64))
    for name in ("checkpoint", "router", "routed", "16", "64"):
        (root / name).mkdir()
    save_checkpoint(
        root / "checkpoint",
        model=model,
        params=vlm.init_params(model, 0),
        tokenizer=write_tokenizer(root / "tokenizer.model"),
        mask_codec=None,
    )
    every = [color_record(i) for i in range(9)]
    every += [color_record(i, images=2, part="clips") for i in range(5)]
    every = [dataclasses.replace(r, source_sha256=f"{n:064x}") for n, r in enumerate(every)]
    records, clips = every[:9], every[9:]
    data = write_dataset(root / "data", {"color": records, "clips": clips})
    checkpoint = str(root / "checkpoint")
    shared = {"data": data, "decode": DECODE}
    # An epsilon between the items' differences, so that there are items of either label.
    told = run(
        train_router(
            checkpoint,
            budgets=BUDGETS,
            config=RouterConfig(epsilon=0.0),
            out=root / "router",
            **shared,
        )
    )
    out = {budget: str(root / str(budget)) for budget in BUDGETS}
    run(evaluate(checkpoint, data=data, config=DECODE, out=out))
    counts = run(
        route(
            checkpoint,
            router=root / "router",
            out=root / "routed",
            answers={budget: Path(path) for budget, path in out.items()},
            **shared,
        )
    )
    return {
        "root": root,
        "model": model,
        "records": [*records, *clips],
        "told": told,
        "counts": counts,
    }


def lines(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_losses_are_those_of_the_suffix_at_each_budget(made: dict[str, Any]):
    found, model = lines(made["root"] / "router" / "losses.jsonl"), made["model"]
    assert set(found) == {record.id for record in made["records"]}
    tokenizer = Tokenizer(made["root"] / "tokenizer.model")
    params = vlm.init_params(model, 0)
    for record in made["records"][-1:]:
        images = decode_images(record.window(), len(record.window()), 32)
        row = train_row(tokenizer, record.prefix, record.suffixes[0], DECODE.text_len)
        example = vlm.Example(images[None], row.text[None], row.mask_ar[None], row.mask_loss[None])
        for place, budget in enumerate(BUDGETS):
            slots = vlm.Slots(budget, budget)
            look = jax.jit(vlm.token_losses, static_argnums=0)
            losses = look(vlm.structure(model), params, example, slots)
            wanted = float(losses.sum()) / row.mask_loss[1:].sum()
            assert found[record.id]["losses"][place] == pytest.approx(wanted, rel=1e-4)


def test_each_item_has_its_answer_of_the_budget_chosen_for_it(made: dict[str, Any]):
    root = made["root"]
    at = {budget: lines(root / str(budget) / "predictions.jsonl") for budget in BUDGETS}
    needs, taken = lines(root / "routed" / "needs.jsonl"), lines(root / "routed/predictions.jsonl")
    assert set(needs) == set(taken) == set(at[16])
    for id, row in needs.items():
        assert row["budget"] == (64 if row["need"][0] > 0.5 else 16)
        assert taken[id] == at[row["budget"]][id]
        assert row["scores"] == [at[budget][id]["score"] for budget in BUDGETS]
    tokens = np.mean([row["budget"] for row in needs.values()])
    assert made["counts"]["tokens"] == pytest.approx(tokens, abs=1e-3)
    score = json.loads((root / "routed" / "score.json").read_text())
    assert score["num"] == len(needs)


def test_one_question_is_routed_as_in_its_batch(made: dict[str, Any]):
    root, needs = made["root"], lines(made["root"] / "routed" / "needs.jsonl")
    predictor, head = Predictor(root / "checkpoint"), Head.load(root / "router" / "head.npz")
    assert head.budgets == BUDGETS
    for record in (made["records"][0], made["records"][-1]):
        images = decode_images(record.window(), len(record.window()), 32)
        (need,) = needs[record.id]["need"]
        for threshold in (need - 1e-3, need + 1e-3):
            chosen = predictor.choose(images, record.prefix, root / "router", threshold)
            assert chosen == (64 if need > threshold else 16)
