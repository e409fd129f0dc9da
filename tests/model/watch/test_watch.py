"""Watching a stage: its losses are the stage's own, its probe scores, and nothing else changes."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from infra.progress import Progress
from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.connector import budgets
from model.data.loader import Loader
from model.eval.config import EvalConfig
from model.files import WATCH
from model.seeds import Seeds
from model.sharding import make_mesh, shard_tree
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from model.train.lora import new_adapters, whole_weights
from model.train.lora_config import LoraConfig
from model.train.step import loss_weights
from model.watch.config import ProbeConfig, WatchConfig
from model.watch.held_out import HeldOut
from model.watch.probe import Probe
from model.watch.watch import Watcher
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model

MODEL = tiny_model("parcel", (30, 64))
TRAIN = TrainConfig(
    batch_size=8,
    total_steps=5,
    text_len=16,
    save_steps=2,
    log_steps=1,
    warmup=0.0,
    peak_lr=3e-3,
    dropout=0.1,
)
LORA = LoraConfig(rank=3, alpha=7.0)
LOOK = WatchConfig(every=2, examples=11, budgets=(16, 30, 64))


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("given")
    parts = {
        "clips": [color_record(i, images=2, part="clips") for i in range(5)],
        "color": [color_record(i) for i in range(13)],
    }
    mixed = {"color": parts["color"], "color@2": [color_record(i, images=2) for i in range(13, 17)]}
    return {
        "data": write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]}),
        "held_out": write_dataset(root / "held_out", parts),
        "mixed": write_dataset(root / "mixed", mixed),
        "tokenizer": write_tokenizer(root / "tokenizer.model"),
    }


def held_out(
    given: dict[str, Any],
    devices: int = 1,
    data: str = "held_out",
    lora: LoraConfig | None = None,
) -> tuple[HeldOut, Any]:
    mesh = make_mesh(jax.devices()[:devices])
    looked = HeldOut(
        (given[data],),
        LOOK,
        model=MODEL,
        train=dataclasses.replace(TRAIN, lora=lora),
        mesh=mesh,
        tokenizer=Tokenizer(given["tokenizer"]),
        mask_codec=None,
    )
    return looked, mesh


def with_adapters(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters by path with adapters whose B is not 0 any more."""
    rng = np.random.default_rng(1)
    adapters = new_adapters(LORA, params, 5)
    for path, value in adapters.items():
        if path.endswith("/b"):
            adapters[path] = rng.normal(size=value.shape, scale=0.1).astype(np.float32)
    return {**params, **adapters}


def losses_written_out(given: dict[str, Any], params: vlm.Params) -> dict[tuple[str, int], float]:
    """The mean over a first batch of each task, at each budget, without a mesh."""
    found = {}
    for task in ("clips", "color"):
        with contextlib.closing(
            Loader(
                (given["held_out"],),
                TRAIN.batches_of(task, 8),
                image_px=MODEL.vision.image_px,
                tokenizer=Tokenizer(given["tokenizer"]),
                mask_codec=None,
                seeds=Seeds.of(0),
            )
        ) as loader:
            batch = loader.batch(0)
        example = vlm.Example(batch["image"], batch["text"], batch["mask_ar"], batch["mask_loss"])
        for budget in LOOK.budgets:
            slots = vlm.Slots(budgets.bucket_of(MODEL, budget).size, budget)
            losses = vlm.token_losses(vlm.structure(MODEL), params, example, slots)
            found[task, budget] = float(
                jnp.sum(losses * loss_weights(jnp.asarray(batch["mask_loss"])[:, 1:]))
            )
    return found


@pytest.mark.slow
def test_pictures_and_clips_of_one_task_are_looked_at_together(given: dict[str, Any]):
    looked, mesh = held_out(given, data="mixed")
    with contextlib.closing(looked):
        rows = list(
            looked.observe(shard_tree(dict(flatten_params(vlm.init_params(MODEL, 3))), mesh))
        )
    assert [(row["task"], row["budget"]) for row in rows] == [("color", b) for b in LOOK.budgets]


@pytest.mark.deep
@pytest.mark.parametrize(("devices", "lora"), [(1, LORA), (4, None)])
def test_the_loss_of_each_task_and_budget_is_the_stages_own(
    given: dict[str, Any], devices: int, lora: LoraConfig | None
):
    params: dict[str, Any] = dict(flatten_params(vlm.init_params(MODEL, 3)))
    if lora is not None:
        params = with_adapters(params)
    looked, mesh = held_out(given, devices, lora=lora)
    with contextlib.closing(looked):
        flat = shard_tree(params, mesh)
        rows = list(looked.observe(flat))
        again = list(looked.observe(flat))
    assert rows == again
    # Of a decoder with whole weights, as evaluations of the stage's checkpoint will read them.
    whole = dict(whole_weights(lora, flat, {}))
    expected = losses_written_out(given, unflatten_params(jax.tree.map(np.asarray, whole)))
    assert {(r["task"], r["budget"]) for r in rows} == set(expected)
    for row in rows:
        assert row["loss"] == pytest.approx(expected[row["task"], row["budget"]], rel=2e-5)
        assert row["examples"] == 8
    by_budget = {r["budget"]: r["loss"] for r in rows if r["task"] == "color"}
    assert len(set(by_budget.values())) == 3


def run(root: Path, given: dict[str, Any], watch: WatchConfig | None = LOOK) -> Iterator[Progress]:
    (root / "out").mkdir(parents=True, exist_ok=True)
    paths = StagePaths(
        data=given["data"],
        tokenizer=given["tokenizer"],
        scratch=str(root / "scratch"),
        out=str(root / "out"),
    )
    if watch is None:
        yield from fit(MODEL, TRAIN, paths, Seeds.of(5))
        return
    probe = (given["data"], given["held_out"])
    with contextlib.closing(
        Watcher(watch, MODEL, TRAIN, paths, held_out=(given["held_out"],), probe=probe)
    ) as watcher:
        yield from fit(MODEL, TRAIN, paths, Seeds.of(5), {WATCH: watcher})


def told(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "out" / WATCH).read_text().splitlines()]


@pytest.mark.deep
def test_watching_changes_no_parameter_and_a_killed_stage_tells_the_same(
    tmp_path: Path, given: dict[str, Any]
):
    decode = EvalConfig(metric="exact_match", batch_size=4, text_len=16)
    few = dataclasses.replace(TRAIN, total_steps=2, batch_size=4, peak_lr=1e-2, budgets=(64,))
    probe = ProbeConfig(model=MODEL, train=few, decode=decode, examples=6)
    watch = dataclasses.replace(LOOK, every=3, budgets=(64,), probe=probe)
    list(run(tmp_path / "plain", given, None))
    list(run(tmp_path / "watched", given, watch))
    for progress in run(tmp_path / "killed", given, watch):
        if progress.done == 4:
            break
    # A line that a kill cut off, of a look that is made again.
    with (tmp_path / "killed/scratch" / WATCH).open("a") as file:
        file.write('{"step": 5, "task": "col')
    list(run(tmp_path / "killed", given, watch))
    digests = {
        (tmp_path / name / "out/digest.txt").read_text() for name in ("plain", "watched", "killed")
    }
    assert len(digests) == 1
    assert not (tmp_path / "plain/out" / WATCH).exists()
    rows = told(tmp_path / "watched")
    assert rows == told(tmp_path / "killed")
    assert [r["step"] for r in rows] == [3] * 3 + [5] * 3
    scored = [r for r in rows if r["task"] == "probe"]
    assert {(r["budget"], r["metric"], r["num"]) for r in scored} == {(64, "exact_match", 6)}
    losses = [r["loss"] for r in rows if r["task"] == "color"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_probe_learns_and_leaves_the_stage_its_parameters(tmp_path: Path, given: dict[str, Any]):
    decode = EvalConfig(metric="exact_match", batch_size=4, text_len=16)
    model = tiny_model()
    many = TrainConfig(batch_size=12, total_steps=60, text_len=16, peak_lr=1e-2, pack=12)
    probe = ProbeConfig(model=model, train=many, decode=decode, examples=11)
    watch = WatchConfig(every=1, examples=1, budgets=(64,), probe=probe)
    paths = StagePaths(
        data=given["data"], tokenizer=given["tokenizer"], scratch=str(tmp_path), out=str(tmp_path)
    )
    params = dict(flatten_params(vlm.init_params(model, 3)))
    flat = shard_tree(params, make_mesh())
    before = jax.tree.map(np.array, flat)
    with contextlib.closing(
        Watcher(watch, model, many, paths, probe=(given["data"], given["data"]))
    ) as watcher:
        (row,) = watcher.observe(flat)
    assert row == {
        "task": "probe",
        "budget": 64,
        "metric": "exact_match",
        "score": 100.0,
        "num": 11,
    }
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, flat))
    assert unflatten_params(flat).keys() == {"projector", "text", "vision"}
    # A stage with adapters hands its probe whole weights.
    adapted = shard_tree(with_adapters(params), make_mesh())
    once = dataclasses.replace(probe, train=dataclasses.replace(many, total_steps=1))
    tuned = []
    for lora, stage in ((LORA, adapted), (None, dict(whole_weights(LORA, adapted, {})))):
        one = Probe(
            once,
            (64,),
            lora=lora,
            data=given["data"],
            held_out=given["data"],
            tokenizer=Tokenizer(given["tokenizer"]),
            mask_codec=None,
        )
        tuned.append(one._tuned(stage))
    jax.tree.map(np.testing.assert_array_equal, *tuned)
    moved = tuned[0]["text"]["blocks"]["gate"] - adapted["text/blocks/gate"]
    assert np.abs(moved).max() > 0.05


def test_budgets_that_the_connector_does_not_serve_are_refused(given: dict[str, Any]):
    looked = dataclasses.replace(LOOK, budgets=(17,))
    with pytest.raises(ValueError, match=r"budget .*got 17"):
        HeldOut(
            (given["held_out"],),
            looked,
            model=MODEL,
            train=TRAIN,
            mesh=make_mesh(),
            tokenizer=Tokenizer(given["tokenizer"]),
            mask_codec=None,
        )


@pytest.mark.parametrize("field", ["every", "examples"])
def test_bad_numbers_are_refused(field: str):
    values: dict[str, Any] = {"every": 1, "examples": 1, "budgets": (16,), field: 0}
    with pytest.raises(ValueError, match=rf"watch\.{field} must be at least 1, got 0"):
        WatchConfig(**values)
