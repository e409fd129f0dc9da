"""A training whose seeds differ far more than elsewhere learns nothing from the others."""

import numpy as np
import pytest
from scipy import stats

from flows.report.cells import Section
from tests.night.statistics.judge import report_of
from tests.night.statistics.shapes import Drawn

NAMES = [f"b{number}" for number in range(12)]
SEEDS = np.array([0.0, 0.0, 0.0])
FAR = np.array([9.0, -9.0, 0.0])


def noisy_section(noise: np.ndarray, deviations: np.ndarray) -> Section:
    """The last of twelve benchmarks of 150 pictures and three seeds, which differ most there.

    Args:
      noise: what its seeds add there.
      deviations: what the reference's seeds add there.
    """
    rng, drawn = np.random.default_rng(0), []
    for name in NAMES:
        items = 50 + rng.normal(0, 10, 150) + rng.normal(0, 20, (2, 3, 150))
        items -= items.mean(axis=2, keepdims=True) - 50 - rng.normal(0, 1.5, (2, 3, 1))
        if name == NAMES[-1]:
            items += np.stack([deviations, noise])[..., None]
        sources = [f"{name}/{i}" for i in range(150)]
        drawn.append(Drawn(items=items, counts=np.ones(150, int), sources=sources))
    return report_of(drawn, (0, 0, 0)).sections[-1]


def test_its_interval_is_students_t_over_its_own_seeds():
    section = noisy_section(FAR, SEEDS)
    assert section.cell("parcel", 256).has_outlier_seeds
    assert not section.cell("vanilla", 256).has_outlier_seeds
    (entry,) = section.comparisons
    pairs = [section.cell(method, 256).scores for method in ("parcel", "vanilla")]
    differences = [one.score - other.score for one, other in zip(*pairs, strict=True)]
    own = stats.sem(differences) * stats.t.ppf(0.975, 2)
    assert entry.high is not None
    assert entry.high - entry.mean == pytest.approx(own, rel=0.05)


def test_close_differences_of_noisy_trainings_are_no_surer_than_three_seeds_are():
    """Both methods fail alike: their differences lie close by chance, and look like the others."""
    section = noisy_section(FAR, FAR)
    quiet = noisy_section(SEEDS, SEEDS)
    (entry,), (usual,) = section.comparisons, quiet.comparisons
    assert None not in (entry.high, entry.p, usual.high, usual.p)
    assert entry.mean == pytest.approx(usual.mean)
    assert entry.high - entry.mean > 1.3 * (usual.high - usual.mean)
    # So is a retention, which is the same two trainings'.
    cell, same = (of.cell("parcel", 256) for of in (section, quiet))
    assert cell.retention_high - cell.retention > 1.3 * (same.retention_high - same.retention)


def test_a_method_without_any_noise_is_not_unlike_itself():
    """Scores that are equal but for rounding have no variance, whatever that is divided by."""
    rng, drawn = np.random.default_rng(1), []
    for name in NAMES:
        same = np.repeat(rng.choice([0.0, 100 / 3, 200 / 3, 100.0], (1, 1, 90)), 3, axis=1)
        other = rng.choice([0.0, 100 / 3, 200 / 3, 100.0], (1, 3, 90))
        items = np.concatenate([same, other])
        sources = [f"{name}/{i}" for i in range(90)]
        drawn.append(Drawn(items=items, counts=np.ones(90, int), sources=sources))
    sections = report_of(drawn, (0, 0, 0)).sections
    assert not any(s.cell("vanilla", 256).has_outlier_seeds for s in sections)
