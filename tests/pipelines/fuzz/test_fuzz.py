"""Mutants of every kind of file become records or rejects; nothing crashes, hangs or is lost."""

import pytest

from tests.pipelines.fuzz import mutants
from tests.pipelines.fuzz import run as fuzz


@pytest.mark.deep
def test_every_mutant_is_accounted_for(tmp_path):
    kinds = dict(fuzz.fuzz(tmp_path, num_images=300, num_videos=30, num_containers=10, seed=1))
    for kind, outcome in kinds.items():
        assert not outcome.told, kind
        assert (outcome.lost, outcome.crashes, outcome.hangs) == (0, 0, 0), kind
    for kind in (*mutants.images(), *mutants.videos()):
        assert kinds[kind].records + kinds[kind].reasons.total() == kinds[kind].files
    assert sum(outcome.files for outcome in kinds.values()) == 340


def test_mutants_are_always_the_same():
    seeds = mutants.images()["png"]
    made = [list(mutants.mutants(seeds, [b"other"], 30, 7)) for _ in range(2)]
    assert made[0] == made[1]
    assert len({data for _, data in made[0]}) > 20
    assert {name for name, _ in made[0]} == {mutate.__name__ for mutate in mutants.MUTATIONS}
