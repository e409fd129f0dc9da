"""How many marks a connector's soft tokens keep apart: docs/studies/capacity.md.

    python -m perf.capacity FOLDER   # trains what the folder lacks, then prints tables

A picture is 8 x 8 features, 0 but at its marks; a mark is a random code of its colour plus one of
its shape. No tower runs, since the question is what a connector keeps. Marks of a picture differ in
colour. The question is a colour; the answer is the shape of that mark. A token that pools two marks
holds their colours and shapes, but not which goes with which: its best answer is a guess of two.
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Int32

from flows.report.interval import estimate_interval
from flows.report.paired_scores import SCALE, PairedScores
from flows.report.spread import holm_correction
from model import presets, vlm
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from perf.timing import aligned_table

METHODS, BUDGETS, NUM_MARKS, NUM_SEEDS = ("m3", "mqt", "parcel"), (16, 64), (1, 2, 4, 8, 16), 5
METHOD_PAIRS = ("mqt", "m3"), ("parcel", "m3"), ("parcel", "mqt")
COMPARED = [
    *(((a, *at), (b, *at)) for at in ((16, 4), (16, 16), (64, 16)) for a, b in METHOD_PAIRS),
    *(((method, 16, 16), (method, 64, 16)) for method in METHODS),
]
"""Pairs of (method, budget, number of marks): the differences that the study lists."""
_COLOURS, _SHAPES, _GRID, _WIDTH = 16, 8, 8, 64
_UPDATES, _BATCH, _PEAK_LR, _NUM_PICTURES = 800, 32, 4e-3, 500

Questions = tuple[Float[Array, "*B 1 P C"], Int32[Array, "*B 2"]]
"""Features of pictures, and the tokens of question and answer."""


def model_config(method: str) -> ModelConfig:
    """Returns the demo's model on a grid of 8 x 8 patches, with a decoder of one block."""
    cfg = presets.tiny(ConnectorConfig(kind=method), vocab_size=_COLOURS + _SHAPES)
    vision = dataclasses.replace(cfg.vision, image_px=14 * _GRID)
    return dataclasses.replace(cfg, vision=vision, text=dataclasses.replace(cfg.text, depth=1))


@jax.jit
def draw_questions(key: Array, num_marks: Int[Array, " B"]) -> Questions:
    """Returns a question about one mark of each of some pictures."""
    codes = jax.random.normal(jax.random.key(1234), (_COLOURS + _SHAPES, _WIDTH))

    def draw(key: Array, num: Array) -> Questions:
        keys = jax.random.split(key, 3)
        cells = jax.random.permutation(keys[0], _GRID**2)[:_COLOURS]
        colours = jax.random.permutation(keys[1], _COLOURS)
        shapes = _COLOURS + jax.random.randint(keys[2], (_COLOURS,), 0, _SHAPES)
        is_drawn = (jnp.arange(_COLOURS) < num)[:, None]
        marks = jnp.where(is_drawn, codes[colours] + codes[shapes], 0.0)
        features = jnp.zeros((1, _GRID**2, _WIDTH)).at[0, cells].set(marks)
        return features, jnp.stack([colours[0], shapes[0]])

    return jax.vmap(draw)(jax.random.split(key, len(num_marks)), num_marks)


@functools.cache
def training(method: str) -> Any:
    """Returns a program: (parameters, optimizer state), keys -> those after an update for each."""
    structure, chain = vlm.structure(model_config(method)), optimizer()

    def loss(params: vlm.Params, budget: int, features: Array, text: Array) -> Array:
        images: Any = vlm.EncodedImages(features)
        example = vlm.Example(images, text, jnp.zeros_like(text), jnp.ones_like(text))
        weights = jnp.full((_BATCH, 1), 1 / _BATCH)
        return vlm.loss(structure, params, example, vlm.Slots(budget, budget), weights)

    def update(state: Any, key: Array) -> tuple[Any, None]:
        params, opt_state = state
        for budget, keys in zip(BUDGETS, jax.random.split(key, (len(BUDGETS), 2)), strict=True):
            num_marks = jax.random.choice(keys[0], jnp.array(NUM_MARKS), (_BATCH,))
            grads = jax.grad(loss)(params, budget, *draw_questions(keys[1], num_marks))
            changes, opt_state = chain.update(grads, opt_state, params)
            params = optax.apply_updates(params, changes)
        return (params, opt_state), None

    return jax.jit(lambda state, keys: jax.lax.scan(update, state, keys)[0])


def optimizer() -> optax.GradientTransformation:
    """Returns Adam with clipped gradients, a warm-up and a cosine."""
    rate = optax.warmup_cosine_decay_schedule(0.0, _PEAK_LR, 100, len(BUDGETS) * _UPDATES)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def train(method: str, seed: int) -> vlm.Params:
    """Returns the parameters after training; budgets take turns."""
    params = vlm.init_params(model_config(method), seed)
    keys = jax.random.split(jax.random.key(seed), _UPDATES)
    return training(method)((params, optimizer().init(params)), keys)[0]


def right_answers(method: str, params: vlm.Params) -> Bool[np.ndarray, "N K B"]:
    """Returns, by budget and number of marks, whether each answer is right."""

    @functools.partial(jax.jit, static_argnames="budget")
    def are_right(params: vlm.Params, budget: int, features: Array, text: Array) -> Array:
        prompt = vlm.Prompt(vlm.EncodedImages(features), text[:, :1])
        slots, structure = vlm.Slots(budget, budget), vlm.structure(model_config(method))
        return jnp.argmax(vlm.text_logits(structure, params, prompt, slots)[:, 0], 1) == text[:, 1]

    # Every method and seed is asked the same, which no training draws but by chance.
    asked = [draw_questions(jax.random.key(-k), jnp.full(_NUM_PICTURES, k)) for k in NUM_MARKS]
    return np.array([[are_right(params, budget, *batch) for batch in asked] for budget in BUDGETS])


def compare(right: Mapping[str, Bool[np.ndarray, "S N K B"]]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each of `COMPARED`: mean, 95 % interval, p, and Holm's p."""

    def scores(method: str, budget: int, num_marks: int) -> PairedScores:
        runs = SCALE * right[method][:, BUDGETS.index(budget), NUM_MARKS.index(num_marks)]
        items = [{str(i): (float(x),) for i, x in enumerate(run)} for run in runs]
        return PairedScores.of(runs.mean(axis=1).tolist(), items, method)

    # A seed moves all that is trained from it: it is one draw, as a pretraining is.
    rows = [scores(*cell).minus(scores(*other)) for cell, other in COMPARED]
    found = [estimate_interval([row], range(row.num_seeds)) for row in rows]
    holm = holm_correction({str(i): float(x.p) for i, x in enumerate(found) if x.p is not None})
    for i, (pair, x) in enumerate(zip(COMPARED, found, strict=True)):
        name = " - ".join(f"{method}@{budget}" for method, budget, _ in pair)
        figures = f"{x.mean:+.1f}", f"{x.low:+.1f}", f"{x.high:+.1f}", f"{x.p:.2g}"
        yield f"{name}, {pair[0][2]} marks", *figures, f"{holm[str(i)]:.2g}"


if __name__ == "__main__":
    right: dict[str, Any] = {}
    for seed in range(NUM_SEEDS):
        for method in METHODS:
            path = Path(sys.argv[1], f"{method}_{seed}.npy")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                np.save(path, right_answers(method, train(method, seed)))
            right.setdefault(method, []).append(np.load(path))
    right = {method: np.stack(runs) for method, runs in right.items()}
    means = [
        (m, b, *(SCALE * right[m][:, i].mean((0, 2))).round(1))
        for m in METHODS
        for i, b in enumerate(BUDGETS)
    ]
    print(aligned_table(["method", "tokens", *map(str, NUM_MARKS)], means))
    print(aligned_table(["difference", "mean", "low", "high", "p", "Holm"], [*compare(right)]))
