"""FLOPs of the layers that towers and connectors share; a multiply-add is two FLOPs.

Norms, activations, positions and softmax are left out. Source: PARCEL, appendix "FLOP and KV-Cache
Calculations".
"""


def attention_flops(rows: int, keys: int, width: int) -> int:
    """Returns the FLOPs of attention from `rows` to `keys`: four projections, two products."""
    return 4 * (rows + keys) * width**2 + 4 * rows * keys * width


def mlp_flops(rows: int, width: int, hidden: int) -> int:
    """Returns the FLOPs of an MLP of two layers on `rows` vectors."""
    return 4 * rows * width * hidden
