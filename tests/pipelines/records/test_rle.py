"""COCO run lengths."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipelines.records.rle import decode_mask, encode_mask


@given(hnp.arrays(bool, st.tuples(st.integers(1, 7), st.integers(1, 40))))
def test_mask_comes_back_equal(mask):
    np.testing.assert_array_equal(decode_mask(encode_mask(mask)), mask)


def test_uncompressed_runs_go_down_the_columns():
    mask = decode_mask(json.dumps({"size": [3, 2], "counts": [1, 3, 2]}))
    np.testing.assert_array_equal(mask, [[0, 1], [1, 0], [1, 0]])


def test_compressed_runs_are_differences_from_the_third_on():
    # Runs 6, 2, 3, 2, 7: "6" and "2" as such, "3" as such, then 2 - 2 = 0 and 7 - 3 = 4.
    mask = np.zeros((5, 4), dtype=bool)
    mask[1:3, 1:3] = True
    assert json.loads(encode_mask(mask)) == {"size": [5, 4], "counts": "62304"}


def test_runs_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"sum to 5, .*3x2"):
        decode_mask('{"size": [3, 2], "counts": [1, 4]}')
