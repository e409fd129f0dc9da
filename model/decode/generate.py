"""Decoding with a key-value cache: one program per (bucket, text length) shape.

The cache has the dtype of the activations, `ModelConfig.dtype`. (big_vision's cache is bfloat16
even with float32 activations; then decoding with a cache would not equal reading the whole sequence
again.)
"""

import functools
import typing

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PRNGKeyArray

from model import vlm
from model.decode.config import SamplingParams
from model.text.decoder import KvCache, Rows

PAD, EOS = 0, 1


GREEDY = SamplingParams()


class PromptState(typing.NamedTuple):
    """The start of decoding: the prompt has been read.

    Attributes:
      logits: logits of the first new token.
      past: cached keys and values of images and prompt, in the dtype of the activations.
      lengths: position of the first new token, per row.
    """

    logits: Float[Array, "B V"]
    past: KvCache
    lengths: Int32[Array, " B"]


class _State(typing.NamedTuple):
    step: Array
    logits: Float[Array, "B V"]
    tokens: Int32[Array, "B M"]
    done: Bool[Array, " B"]
    keys: Float[Array, "N B M K h"]
    values: Float[Array, "N B M K h"]


@functools.partial(
    jax.jit, static_argnames=("structure", "max_new_tokens", "sampling", "stop", "causal")
)
def generate(
    structure: vlm.Structure,
    params: vlm.Params,
    prompt: vlm.Prompt,
    slots: vlm.Slots,
    *,
    max_new_tokens: int,
    sampling: SamplingParams = GREEDY,
    key: PRNGKeyArray | None = None,
    stop: int | None = EOS,
    causal: bool = False,
) -> Int32[Array, "B M"]:
    """Returns the tokens that continue each prompt; PAD after the stop token.

    Ends early once every real row has stopped.

    Args:
      structure: the model's structure.
      params: its parameters.
      prompt: prompts to continue.
      slots: room for soft tokens.
      max_new_tokens: longest continuation, M.
      sampling: how to choose tokens; anything but greedy needs `key`.
      key: key of the random draws; the token of step i is drawn with `fold_in(key, i)`.
      stop: token that ends a row; None always writes `max_new_tokens`.
      causal: whether images and prompts are causal too, regardless of `mask_ar`, as in transformers
        when `generate` gets no `token_type_ids`.
    """
    if sampling.temperature and key is None:
        raise ValueError(f"key must be given to sample at temperature {sampling.temperature}.")
    model = vlm.merge(structure, params)
    start = prefill(model, prompt, slots, causal=causal)
    batch, layers = prompt.text.shape[0], start.past.keys.shape[0]
    # Room for the answer's keys and values. The prompt's stay where they are: with one array for
    # both, every token would copy all of it.
    empty = jnp.zeros((layers, batch, max_new_tokens, *start.past.keys.shape[3:]))
    empty = empty.astype(start.past.keys.dtype)
    state = _State(
        step=jnp.int32(0),
        logits=start.logits,
        tokens=jnp.full((batch, max_new_tokens), PAD, jnp.int32),
        done=invalid_rows(prompt),
        keys=empty,
        values=empty,
    )

    def go_on(state: _State) -> Array:
        return (state.step < max_new_tokens) & ~jnp.all(state.done)

    def body(state: _State) -> _State:
        step_key = None if key is None else jax.random.fold_in(key, state.step)
        # A row that has stopped writes PAD, whatever it would choose: all rows run to the longest.
        token = jnp.where(state.done, PAD, choose_token(state.logits, sampling, step_key))
        stopped = state.done if stop is None else state.done | (token == stop)
        tokens = jax.lax.dynamic_update_slice_in_dim(
            state.tokens, token[:, None], state.step, axis=1
        )
        state = state._replace(tokens=tokens, done=stopped)
        # No logits are needed after the last token. Without this, each answer would cost one extra
        # pass through the decoder.
        return jax.lax.cond(
            go_on(state._replace(step=state.step + 1)),
            lambda s: _extend(model, start, s, token),
            lambda s: s._replace(step=s.step + 1),
            state,
        )

    return jax.lax.while_loop(go_on, body, state).tokens


def prefill(
    model: vlm.Vlm, prompt: vlm.Prompt, slots: vlm.Slots, *, causal: bool = False
) -> PromptState:
    """Runs images and prompts through the model once, and keeps every layer's keys and values."""
    rows, valid = vlm.embed_sequence(model, prompt, slots, causal=causal)
    hidden, keys_values = model.text.run(rows, num_rows=prompt.text.shape[1])
    assert keys_values is not None
    # Prompts are padded on the right, so the last real token is at another place in each row.
    last = jnp.sum(vlm.text_valid(prompt).astype(jnp.int32), axis=1) - 1
    final = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
    past = KvCache(keys_values[0], keys_values[1], valid[:, None, :], rows.positions)
    lengths = jnp.sum(valid.astype(jnp.int32), axis=1)
    return PromptState(model.text.logits(final)[:, 0], past, lengths)


def invalid_rows(prompt: vlm.Prompt) -> Bool[Array, " B"]:
    """Returns which rows only fill up the batch; they count as done from the start."""
    if prompt.real is None:
        return jnp.zeros(prompt.text.shape[0], bool)
    return ~jnp.asarray(prompt.real)


def choose_token(
    logits: Float[Array, "B V"], sampling: SamplingParams, key: PRNGKeyArray | None
) -> Int32[Array, " B"]:
    """Returns one token per row."""
    if sampling.temperature == 0 or key is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / sampling.temperature
    if sampling.top_p < 1:
        logits = jnp.where(_nucleus_mask(logits, sampling.top_p), logits, -jnp.inf)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def _nucleus_mask(logits: Float[Array, "B V"], top_p: float) -> Bool[Array, "B V"]:
    """Returns a mask of the fewest likeliest tokens that together reach `top_p`."""
    order = jnp.argsort(-logits, axis=-1)
    sorted_probs = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
    # A token stays if those before it do not reach `top_p` yet: the one that crosses it does too.
    in_nucleus = jnp.cumsum(sorted_probs, axis=-1) - sorted_probs < top_p
    return jnp.take_along_axis(in_nucleus, jnp.argsort(order, axis=-1), axis=-1)


def _extend(model: vlm.Vlm, start: PromptState, state: _State, token: Int32[Array, " B"]) -> _State:
    """Reads the token of `state.step`; returns the state with its cache row and the next logits."""
    # What the token of step 2 sees; M is 5, and the prompt has two padded places:
    #
    #     cache of the prompt        slots of the answer    itself
    #     1 1 1 1 1 1 1 0 0          1 1 0 0 0              1
    #
    # Its own key and value go to slot 2 afterwards, where the next token finds them.
    x = model.text.embed(token[:, None], dtype=state.keys.dtype)
    batch, slots = state.tokens.shape
    positions = start.lengths[:, None] + state.step
    visible_slots = jnp.broadcast_to(jnp.arange(slots) < state.step, (batch, 1, slots))
    new_positions = start.lengths[:, None] + jnp.arange(slots)[None]
    fresh = KvCache(state.keys, state.values, visible_slots, new_positions)
    itself = jnp.ones((batch, 1, 1), bool)
    hidden, keys_values = model.text.run(Rows(x, positions, itself), (start.past, fresh))
    assert keys_values is not None
    update = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=state.step, axis=2)
    return state._replace(
        step=state.step + 1,
        logits=model.text.logits(hidden)[:, 0],
        keys=update(state.keys, keys_values[0]),
        values=update(state.values, keys_values[1]),
    )
