"""The train step against the same maths written plainly: time, memory and dispatch.

    python -m perf.plain_step [CONFIG] [--method parcel]

"plain" has attention, gated MLP and the vocabulary's loss as textbooks write them, with JAX's own
derivatives and no recomputation in the backward pass. The rest is the same code. Memory is the
compiler's figure for a step, beside its arguments. Dispatch is the time until a call returns, while
the device still computes: the least of several calls.
"""

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flows.config.load import load
from model import vlm
from model.attention import MASKED
from model.config import ModelConfig
from model.sharding import make_mesh
from model.text.attention import softcap
from model.text.gemma import Gemma
from model.train.config import TrainConfig
from model.train.step import Rates, State, StepPrograms, make_state
from perf.batches import train_batch
from perf.timing import table, take_turns

_HEAD = [
    "step",
    "ms",
    "noise",
    "of plain",
    "CPU of plain",
    "memory [MiB]",
    "of plain",
    "dispatch [ms]",
    "loss",
]


def _attention(queries: Array, keys: Array, values: Array, mask: Array | None, cap: float) -> Array:
    """Computes the same as `model.attention.attention`."""
    logits = jnp.einsum("bnkgh,bskh->bkgns", queries, keys).astype(jnp.float32)
    logits = cap * jnp.tanh(logits / cap) if cap else logits
    if mask is not None:
        logits = jnp.where(mask[:, None, None], logits, MASKED)
    weights = jax.nn.softmax(logits).astype(values.dtype)
    return jnp.einsum("bkgns,bskh->bnkgh", weights, values)


def _gated_product(gate: Array, up: Array, kernel: Array) -> Array:
    """Computes the same as `model.text.gemma._gated_product`."""
    return (jax.nn.gelu(gate, approximate=True) * up) @ kernel


def _loss(
    decoder: Gemma, hidden: Array, targets: Array, weights: Array, label_smoothing: float
) -> Array:
    """Computes the same as `model.text.loss.weighted_loss`."""
    scores = hidden @ decoder.embedding[...].astype(hidden.dtype).T
    scores = softcap(scores.astype(jnp.float32), decoder.model.final_softcap)
    chances = jax.nn.log_softmax(scores)
    own = jnp.take_along_axis(chances, targets[..., None], axis=-1)[..., 0]
    losses = -(1 - label_smoothing) * own - label_smoothing * jnp.mean(chances, axis=-1)
    return jnp.sum(weights * losses)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Replaces the model's attention, gated MLP and loss by the textbook versions meanwhile."""
    with (
        mock.patch("model.text.attention.attention", _attention),
        mock.patch("model.vision.layers.attention", _attention),
        mock.patch("model.text.gemma._gated_product", _gated_product),
        mock.patch("model.vlm.weighted_loss", _loss),
    ):
        yield


class _Step:
    """One way to compute a step, compiled."""

    def __init__(self, model: ModelConfig, train: TrainConfig, budget: int) -> None:
        mesh = make_mesh()
        self._budget, self._batch = budget, train_batch(model, train.batch_size, train.text_len)
        self._state: State = make_state(vlm.init_params(model, 0), train, mesh)
        self._programs = StepPrograms(model, train, mesh)
        self.loss = float(self())
        (compiled,) = self._programs._compiled.values()
        self.memory = compiled.memory_analysis().temp_size_in_bytes / 2**20

    def __call__(self) -> jax.Array:
        rates = Rates(learning=1e-4, decay=0.0)
        self._state, told = self._programs(self._state, self._batch, self._budget, rates)
        return told.loss

    def dispatch(self) -> float:
        """Returns how long a call takes to return [s]."""
        jax.block_until_ready(self._state)
        began = time.perf_counter()
        loss = self()
        took = time.perf_counter() - began
        jax.block_until_ready(loss)
        return took


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("config", nargs="?", default="configs/small.yaml")
    parser.add_argument("--method", default="parcel")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7, help="counted runs of each")
    args = parser.parse_args(words)
    study = load(args.config)
    model = study.model_of(args.method)
    train = dataclasses.replace(study.stage1, budgets=(args.budget,), mixture=())
    with plainly():
        steps = {"0 plain": _Step(dataclasses.replace(model, remat="none"), train, args.budget)}
    for number, remat in enumerate(("none", "minimal", "full"), start=1):
        own = dataclasses.replace(model, remat=remat)
        steps[f"{number} remat {remat}"] = _Step(own, train, args.budget)
    times = take_turns(steps, args.rounds)
    base, plain = times["0 plain"], steps["0 plain"]
    rows = []
    for name, step in steps.items():
        np.testing.assert_allclose(step.loss, plain.loss, rtol=1e-4)
        one = times[name]
        dispatch = min(step.dispatch() for _ in range(5))
        row = [name[2:], f"{1000 * one.wall:.0f}", f"{one.noise:.0%}"]
        row += [f"{one.wall / base.wall:.2f}", f"{one.cpu / base.cpu:.2f}"]
        row += [f"{step.memory:.0f}", f"{step.memory / plain.memory:.2f}"]
        rows.append([*row, f"{1000 * dispatch:.2f}", f"{step.loss:.5f}"])
    print(table(_HEAD, rows))


if __name__ == "__main__":
    main()
