"""A slice of the certificate: two of its trials, with eight faults."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.certificate.__main__ import table
from tests.certificate.kinds import KINDS, OF_STORES
from tests.certificate.shim import compile_shim
from tests.certificate.trials import Trials, draw

SEED = 15
SLICE = ("SIGKILL flow", "SIGKILL Beam worker")
"""Beside them that seed draws a full disk, inodes that are gone, a stop, a clock and more kills."""


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_drawn_faults_are_survived(tmp_path: Path):
    library = compile_shim(tmp_path)
    if library is None:
        pytest.skip("no C compiler (cc): it makes what strikes disks and clocks")
    trials = Trials(tmp_path, library)
    # Of one phase and place, so that how it goes without a fault is measured once.
    drawn = [draw(number, SEED, (kind,), at=("disk", "data")) for number, kind in enumerate(SLICE)]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(zip(drawn, pool.map(trials.run, drawn), strict=True))
    wrong = [f"{trial}: {outcome.wrong}" for trial, outcome in outcomes if outcome.wrong]
    assert not wrong, "\n".join(wrong)
    # The first of each trial's faults is the one it is there for.
    assert all(outcome.seen[0] for _, outcome in outcomes), table(outcomes)


def test_a_trial_is_given_by_its_number_and_the_seed():
    drawn = [draw(number, 7) for number in range(3 * len(KINDS))]
    assert drawn == [draw(number, 7) for number in range(3 * len(KINDS))]
    assert drawn != [draw(number, 8) for number in range(3 * len(KINDS))]
    assert {trial.faults[0].kind for trial in drawn} == set(KINDS)
    for trial in drawn:
        for fault in trial.faults:
            kind = KINDS[fault.kind]
            assert trial.place in kind.places
            assert trial.phase in kind.phases
            assert len(trial.faults) == 1 or not kind.alone
        groups = [group for fault in trial.faults if (group := KINDS[fault.kind].group)]
        assert len(set(groups)) == len(groups)


def test_trials_of_stores_are_in_buckets_and_their_faults_are_those_of_buckets():
    drawn = [draw(n, 7, OF_STORES, ("bucket", ""), OF_STORES) for n in range(3 * len(OF_STORES))]
    assert {trial.place for trial in drawn} == {"bucket"}
    assert {fault.kind for trial in drawn for fault in trial.faults} == set(OF_STORES)
