"""Masks ⇄ COCO's compressed run-length strings.

Source: cocodataset/cocoapi `common/maskApi.c` (rleEncode, rleToString, rleFrString). Runs go down
the columns, and the first run is of zeros. From the fourth on, a count is written as its difference
to the count two before. A character holds six bits from chr(48) on: five of the number, lowest
first, and one that says whether more follow.
"""

import json

import numpy as np

from pipelines.records.schema import BadInput

_MAX_SHIFT = 40
"""Longest accepted number in a mask text [bits]: longer ones would take very long to decode."""


def encode_mask(mask: np.ndarray) -> str:
    """Returns {"size": [h, w], "counts": ...} as JSON, for a bool mask of shape (H, W)."""
    # A mask of 2 rows and 3 columns, read down its columns:
    #
    #   0 1 1
    #   0 1 0  ─▶  0 0 1 1 1 0  ─▶  counts 2 (zeros), 3 (ones), 1 (zero)
    flat = np.asarray(mask, dtype=bool).T.reshape(-1)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], changes, [flat.size]])).tolist()
    if flat.size and flat[0]:
        counts.insert(0, 0)
    characters = []
    for i, count in enumerate(counts):
        x = int(count) - (int(counts[i - 2]) if i > 2 else 0)
        more = True
        while more:
            # Five bits at a time. The last chunk's highest bit is the sign, so a number is complete
            # only once all bits that are left are equal to it.
            chunk = x & 0x1F
            x >>= 5
            more = x != -1 if chunk & 0x10 else x != 0
            characters.append(chr((chunk | 0x20 if more else chunk) + 48))
    height, width = mask.shape
    return json.dumps({"size": [height, width], "counts": "".join(characters)})


def decode_mask(text: str) -> np.ndarray:
    """Returns the bool mask, shape (H, W); `counts` may be compressed or a plain list.

    Raises:
      BadInput: if the runs do not fill the stated size.
    """
    rle = json.loads(text)
    height, width = rle["size"]
    counts = rle["counts"] if isinstance(rle["counts"], list) else _parse_counts(rle["counts"])
    if min(counts, default=0) < 0:
        raise BadInput(f"runs must not be negative, got {min(counts)}.")
    if sum(counts) != height * width:
        raise BadInput(f"runs sum to {sum(counts)}, not to size {height}x{width}.")
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(width, height).T


def _parse_counts(text: str) -> list[int]:
    # A character minus 48 is six bits: whether more follow, and five of the number. So 50 is "b1":
    #
    #     b   98 - 48 = 1 10010   more follow, 18
    #     1   49 - 48 = 0 00001   the last, 1       18 + 1 * 32 = 50
    counts: list[int] = []
    position = 0
    while position < len(text):
        x, shift, more = 0, 0, True
        while more:
            chunk = ord(text[position]) - 48
            if not 0 <= chunk < 64 or shift > _MAX_SHIFT:
                raise BadInput(f"character {position} of the runs is not of a run-length code.")
            x |= (chunk & 0x1F) << shift
            more = bool(chunk & 0x20)
            position += 1
            shift += 5
            # The highest of the last five bits is the sign: "O" is 0 11111, which is -1.
            if not more and chunk & 0x10:
                x |= -1 << shift
        # From the fourth on, a number is the difference to the count two before, of the same kind
        # (zeros or ones): neighbouring columns have runs of about one length. 2 3 1 4 3 is written
        # 2 3 1 1 2.
        counts.append(x + counts[-2] if len(counts) > 2 else x)
    return counts
