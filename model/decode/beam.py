"""Beam search with a key-value cache: the prompt's cache is shared by all beams of a row.

Source of the rule: big_vision `trainers/proj/paligemma/predict_fns.py` (`_beam_decode`).

- The score of a hypothesis is the sum of its tokens' log-probabilities; no length normalization.
- At each step every live hypothesis is also ended with the stop token, and competes with the best
  finished one of its row. Ties go to the older one, then to the hypothesis that ranks first.
- Each live hypothesis is continued by its `num_beams` + 1 likeliest tokens; the `num_beams` best
  continuations without the stop token stay alive. Ties go to the hypothesis that ranks first, then
  to the lower id.
- A row is done once its best finished hypothesis is better than every live one.
"""

import functools
import typing

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from model import vlm
from model.decode.generate import PAD, PromptState, invalid_rows, prefill
from model.text.decoder import KvCache, Rows


class Hypotheses(typing.NamedTuple):
    """The hypotheses of each row so far: `n` live ones, and the best finished one.

    Attributes:
      step: number of tokens in every live hypothesis.
      tokens: tokens of the live ones, best first.
      scores: scores of the live ones.
      best_tokens: tokens of the finished one, with the stop token; then PAD.
      best_score: score of the finished one.
    """

    step: Int32[Array, ""]
    tokens: Int32[Array, "B n M"]
    scores: Float[Array, "B n"]
    best_tokens: Int32[Array, "B M"]
    best_score: Float[Array, " B"]


class _Cache(typing.NamedTuple):
    """Keys and values of the live hypotheses' tokens, in the dtype of the activations."""

    keys: Float[Array, "N B n M K h"]
    values: Float[Array, "N B n M K h"]


@functools.partial(jax.jit, static_argnames=("structure", "max_new_tokens", "num_beams", "stop"))
def beam_search(
    structure: vlm.Structure,
    params: vlm.Params,
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    *,
    max_new_tokens: int,
    num_beams: int,
    stop: int,
) -> Int32[Array, "B M"]:
    """Returns the best continuation of each prompt that ends in `stop`, filled up with PAD.

    One live hypothesis is not greedy decoding: an answer that ended earlier can still be
    preferred. big_vision decodes tasks without beams greedily; so does `decoding.decode`.

    Args:
      structure: the model's structure.
      params: its parameters.
      prompt: prompts to continue; rows that are not real come back as PAD.
      slots: room for soft tokens.
      max_new_tokens: longest answer, M; every answer ends within it.
      num_beams: live hypotheses, at least 1.
      stop: token that ends an answer.

    Raises:
      ValueError: if `num_beams` is out of range.
    """
    model = vlm.merge(structure, params)
    max_beams = model.cfg.text.vocab_size - 1
    if not 1 <= num_beams <= max_beams:
        raise ValueError(
            f"num_beams must be in 1..{max_beams} (text.vocab_size - 1), got {num_beams}."
        )
    start = prefill(model, prompt, slots)
    batch = prompt.text.shape[0]
    # Starts from one empty hypothesis per row, which the prompt's own logits turn into `num_beams`.
    # `num_beams` equal ones would fill the beams with copies of one continuation.
    nothing = Hypotheses(
        step=jnp.int32(0),
        tokens=jnp.full((batch, 1, max_new_tokens), PAD, jnp.int32),
        scores=jnp.zeros((batch, 1)),
        best_tokens=jnp.full((batch, max_new_tokens), PAD, jnp.int32),
        best_score=jnp.full((batch,), -jnp.inf),
    )
    first, _ = grow_hypotheses(nothing, start.logits[:, None], num_beams, stop)
    # Only the answers' tokens have a cache per beam. The prompt's is read by all beams of a row,
    # and neither copied nor reordered.
    layers, _, _, kv_heads, head_dim = start.past.keys.shape
    shape = layers, batch, num_beams, max_new_tokens, kv_heads, head_dim
    empty = jnp.zeros(shape, start.past.keys.dtype)
    filler = invalid_rows(prompt)

    def go_on(state: tuple[Hypotheses, _Cache]) -> Array:
        hypotheses, _ = state
        finished = (jnp.max(hypotheses.scores, axis=1) < hypotheses.best_score) | filler
        return (hypotheses.step < max_new_tokens) & ~jnp.all(finished)

    def body(state: tuple[Hypotheses, _Cache]) -> tuple[Hypotheses, _Cache]:
        hypotheses, cache = state
        logits, cache = _next_logits(model, start, hypotheses, cache)
        hypotheses, parents = grow_hypotheses(hypotheses, logits, num_beams, stop)
        # Reorders the caches: a hypothesis that is continued twice has its cache copied, one that
        # is not continued loses it.
        index = parents[None, :, :, None, None, None]
        return hypotheses, _Cache(*(jnp.take_along_axis(part, index, axis=2) for part in cache))

    hypotheses, _ = jax.lax.while_loop(go_on, body, (first, _Cache(empty, empty)))
    return jnp.where(filler[:, None], PAD, hypotheses.best_tokens)


def grow_hypotheses(
    hypotheses: Hypotheses, logits: Float[Array, "B c V"], num_beams: int, stop: int
) -> tuple[Hypotheses, Int32[Array, "B n"]]:
    """Returns the hypotheses one token longer, and which of the c live ones each continues."""
    batch, live, _ = logits.shape
    logs = jax.nn.log_softmax(logits, axis=-1)
    write = functools.partial(
        jax.lax.dynamic_update_slice_in_dim, start_index=hypotheses.step, axis=2
    )

    # Every live hypothesis is also ended here; the best of these and of the one that had ended
    # before is kept, so a row holds one finished hypothesis:
    #
    #     live      "a red" -1.2   "the" -1.5        finished before: "red." -1.9
    #     ended     "a red." -1.6  "the." -4.0       finished now:    "a red." -1.6
    ended = write(hypotheses.tokens, jnp.full((batch, live, 1), stop, jnp.int32))
    finished = jnp.concatenate([hypotheses.best_tokens[:, None], ended], axis=1)
    ends = jnp.concatenate(
        [hypotheses.best_score[:, None], hypotheses.scores + logs[:, :, stop]], axis=1
    )
    best = jnp.argmax(ends, axis=1)[:, None]  # Takes the first of equals, like `top_k`.

    # One of a hypothesis's likeliest tokens may be the stop token, which is no continuation. With
    # one token more, `num_beams` continuations are left even if all come from one hypothesis.
    steps, tokens = jax.lax.top_k(logs, num_beams + 1)
    sums = hypotheses.scores[:, :, None] + steps
    sums = jnp.where(tokens != stop, sums, jnp.finfo(sums.dtype).min)
    scores, indices = jax.lax.top_k(sums.reshape(batch, -1), num_beams)
    parents = indices // (num_beams + 1)
    token = jnp.take_along_axis(tokens.reshape(batch, -1), indices, axis=1)
    prefixes = jnp.take_along_axis(hypotheses.tokens, parents[:, :, None], axis=1)
    longer = Hypotheses(
        step=hypotheses.step + 1,
        tokens=write(prefixes, token[:, :, None]),
        scores=scores,
        best_tokens=jnp.take_along_axis(finished, best[:, :, None], axis=1)[:, 0],
        best_score=jnp.take_along_axis(ends, best, axis=1)[:, 0],
    )
    return longer, parents


def _next_logits(
    model: vlm.Vlm, start: PromptState, hypotheses: Hypotheses, cache: _Cache
) -> tuple[Float[Array, "B n V"], _Cache]:
    """Reads the last token of every live hypothesis; returns the next logits and the cache.

    The n hypotheses of a row are n rows of one sequence that do not see each other:

        sees     prompt   tokens of 0   tokens of 1   0 1  (itself)
        beam 0   1 1 1 1  1 1 0         0 0 0         1 0
        beam 1   1 1 1 1  0 0 0         1 1 0         0 1
    """
    # The last token was chosen but not read yet: its keys and values are not in the cache.
    batch, num_beams, slots = hypotheses.tokens.shape
    last = hypotheses.step - 1
    token = jax.lax.dynamic_index_in_dim(hypotheses.tokens, last, axis=2, keepdims=False)
    x = model.text.embed(token, dtype=cache.keys.dtype)
    lengths = start.lengths[:, None]
    positions = jnp.broadcast_to(lengths + last, (batch, num_beams))
    # `eye` is the right half of the drawing. Spread over the slots that are already written, it is
    # the middle: the caches of all beams lie side by side, and each sees its own.
    itself = jnp.eye(num_beams, dtype=bool)
    visible_slots = itself[:, :, None] & (jnp.arange(slots) < last)[None, None]
    keys, values = (
        part.reshape(*part.shape[:2], num_beams * slots, *part.shape[4:]) for part in cache
    )
    fresh = KvCache(
        keys,
        values,
        jnp.broadcast_to(
            visible_slots.reshape(1, num_beams, -1), (batch, num_beams, num_beams * slots)
        ),
        lengths + jnp.tile(jnp.arange(slots), num_beams)[None],
    )
    past_mask = jnp.broadcast_to(start.past.mask, (batch, num_beams, start.past.mask.shape[2]))
    causal_mask = jnp.broadcast_to(itself[None], (batch, num_beams, num_beams))
    hidden, cache_update = model.text.run(
        Rows(x, positions, causal_mask), (start.past._replace(mask=past_mask), fresh)
    )
    assert cache_update is not None
    # The tokens just read become part of the cache.
    parts = (
        jax.lax.dynamic_update_slice_in_dim(part, new[:, :, :, None], last, axis=3)
        for part, new in zip(cache, cache_update, strict=True)
    )
    return model.text.logits(hidden), _Cache(*parts)
