r"""Texts of several examples side by side, without the padding between them.

Matrix products, norms and rotations treat each token alone, and so does the loss; only attention
reads several tokens of an example. So tokens are packed everywhere but there:

```
                 slots   text                  places
  padded  row 0   i i   a b c . .     packed   i i i i i i | a b c d e f . .
          row 1   i i   d . . . .
          row 2   i i   e f . . .              all slots, then all texts: 14 tokens, not 21
```
Attention reads the same padded rows with the same masks and positions as without packing, so no
example can see another. Slots are not packed: all rows of a batch have as many of them.
"""

import typing

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Shaped


class _Table(typing.NamedTuple):
    """For each entry of an output, the entry of the input that it is, if any."""

    source: Int32[Array, " *S"]
    is_any: Bool[Array, " *S"]


class _Tables(typing.NamedTuple):
    """Both ways between padded rows and the packed row.

    Attributes:
      packed: for each packed token, its place among those of all padded rows.
      padded: for each token of the padded rows, its place in the packed row.
    """

    packed: _Table
    padded: _Table


class Packing(typing.NamedTuple):
    """Where the tokens of B padded rows, S slots and T texts each, are in one packed row.

    Attributes:
      rows: padded row of each packed token, M = B * S + P, with P places for texts.
      text: the way of texts alone, T tokens a row.
      whole: the way of slots and texts, S + T tokens a row.
    """

    rows: Int32[Array, " M"]
    text: _Tables
    whole: _Tables

    def tokens(self, padded: Shaped[Array, "B N *C"]) -> Shaped[Array, "1 M *C"]:
        """Returns slots and texts packed, or texts alone where N is T; 0 where no text is."""
        return _move_packed_tokens(padded, *self._packing_tables_for(padded.shape[1]))[None]

    def padded_tokens(self, packed: Shaped[Array, "1 M *C"]) -> Shaped[Array, "B N *C"]:
        """Returns slots and texts padded with 0, or texts alone; the inverse of `tokens`."""
        is_whole = packed.shape[1] == len(self.rows)
        tables = self.whole if is_whole else self.text
        return _move_packed_tokens(packed[0], tables.padded, tables.packed)

    def count(self, num_tokens: int) -> int:
        """Returns how many packed tokens the last tokens of all padded rows are, T or S + T."""
        return len(self._packing_tables_for(num_tokens).packed.source)

    def _packing_tables_for(self, num_tokens: int) -> _Tables:
        return self.whole if num_tokens == self.whole.padded.source.shape[1] else self.text


def pack_texts(lengths: Int32[Array, " B"], num_slots: int, text_len: int, places: int) -> Packing:
    """Returns where tokens are, for texts of these lengths, whose sum is at most `places`."""
    ends, batch = jnp.cumsum(lengths), len(lengths)
    starts, place = ends - lengths, jnp.arange(places)
    # Lengths 3, 1, 2 end at 3, 4, 6: places 0 to 2 are the first row's, 3 the second's, 4 and 5 the
    # third's; the others belong to none, and go with the last.
    row = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    is_any, row = row < batch, jnp.minimum(row, batch - 1)
    token = jnp.arange(text_len)[None]
    text = _Tables(
        packed=_Table(row * text_len + place - starts[row], is_any),
        padded=_Table(starts[:, None] + token, token < lengths[:, None]),
    )
    # Slots come first on either side: of each row, and of the packed row.
    slot = jnp.arange(batch * num_slots).reshape(batch, num_slots)
    first = num_slots * (row + 1)
    slot_rows = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), num_slots)
    whole = _Tables(
        packed=_Table(
            jnp.concatenate([slot.ravel() + text_len * slot_rows, text.packed.source + first]),
            jnp.concatenate([jnp.ones(batch * num_slots, bool), is_any]),
        ),
        padded=_Table(
            jnp.concatenate([slot, text.padded.source + batch * num_slots], axis=1),
            jnp.concatenate([jnp.ones(slot.shape, bool), text.padded.is_any], axis=1),
        ),
    )
    return Packing(jnp.concatenate([slot_rows, row]), text, whole)


@jax.custom_vjp
def _move_packed_tokens(x: Array, to: _Table, back: _Table) -> Array:
    """Returns entries of `x` where a table has them, 0 elsewhere; `back` moves them back."""
    axes = back.source.ndim
    entries = jnp.take(x.reshape(-1, *x.shape[axes:]), to.source, axis=0, mode="clip")
    is_any = jnp.expand_dims(to.is_any, tuple(range(to.is_any.ndim, entries.ndim)))
    return jnp.where(is_any, entries, jnp.zeros_like(entries))


def _move_tokens_forward(x: Array, to: _Table, back: _Table) -> tuple[Array, tuple[_Table, _Table]]:
    return _move_packed_tokens(x, to, back), (to, back)


def _move_tokens_backward(tables: tuple[_Table, _Table], gradient: Array) -> tuple:
    # JAX's own derivative adds entries up by index (a scatter): slow on a TPU, and on a GPU in any
    # order. Here each goes to one place at most, so it is moved back by the other table.
    to, back = tables
    return _move_packed_tokens(gradient, back, to), None, None


_move_packed_tokens.defvjp(_move_tokens_forward, _move_tokens_backward)
