"""What the study of marks and tokens draws and compares."""

import jax
import jax.numpy as jnp
import numpy as np

from perf import capacity


def test_a_picture_has_its_marks_and_is_asked_about_one():
    features, text = capacity.draw_questions(jax.random.key(0), jnp.array([1, 5]))
    assert np.sum(np.any(features != 0, axis=(1, 3)), axis=1).tolist() == [1, 5]
    codes = jax.random.normal(jax.random.key(1234), (24, 64))
    mark = codes[text[0, 0]] + codes[text[0, 1]]
    np.testing.assert_allclose(features[0].sum((0, 1)), mark, rtol=1e-5)


def test_differences_are_corrected_together():
    right = {m: np.random.default_rng(0).random((5, 2, 5, 40)) < 0.9 for m in capacity.METHODS}
    right["m3"][:, 0, 4] ^= True
    rows = {name: float(holm) for name, *_, holm in capacity.compare(right)}
    assert len(rows) == 12
    found = {name.split(",")[0] for name, p in rows.items() if p <= 0.05}
    assert found == {"mqt@16 - m3@16", "parcel@16 - m3@16", "m3@16 - m3@64"}
