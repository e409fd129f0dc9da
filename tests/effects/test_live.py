"""A training is watched while it runs: its page and its run's have its curves and its answers."""

import re
import subprocess

import pytest

from tests.effects.product import PARCEL, SMALLEST, Served, environment, parcel, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

_WITHIN = 400.0
"""Longest wait for a training to do something, on a busy machine [s]."""
_REFRESH = 'http-equiv="refresh"'
_TITLES = (
    "loss by step",
    "gradient norm by step",
    "learning rate by step",
    "tokens per second by step",
    "peak memory [GB] by step",
)


def _steps(page: str) -> list[int]:
    """The steps at which the curves of a page end."""
    return [int(step) for step in re.findall(r">step (\d+)</text>", page)[1::2]]


@pytest.mark.night  # A server, a run and a training made again: minutes on a busy machine.
def test_a_running_training_is_seen_and_then_the_same_page_finished(served: Served):
    words = [
        "train", SMALLEST, "name=seen", "intermediary=null", "stage1.total_steps=200",
        "stage1.sample_steps=40", "stage1.save_steps=200",
    ]  # fmt: skip
    log = served.store / "seen.log"
    with log.open("w") as printed:
        command = subprocess.Popen(
            [PARCEL, *words], env=environment(served.store), stdout=printed, stderr=printed
        )
    try:

        def link(page: str, kind: str, text: str) -> str:
            found = re.search(rf'href="(/parcel/{kind}/[^"]+)">{text}', served.page(page))
            return found[1] if found else ""

        # From the start page to the training, and from there to its run, by links alone.
        training = wait_for(
            lambda: link("/parcel/", "artifact", "stage1 vanilla"), _WITHIN, log.read_text
        )

        def seen() -> str:
            page = served.page(training)
            return page if _REFRESH in page and "Answers to held-out" in page else ""

        page = wait_for(seen, _WITHIN, log.read_text)
        assert all(title in page for title in _TITLES)
        assert 1 < max(_steps(page)) < 200
        assert "step 40, 256 tokens" in page
        run = link(training, "results", "run seen")
        of_run = served.page(run)
        assert _REFRESH in of_run
        assert all(title in of_run for title in _TITLES)
        assert command.wait(_WITHIN) == 0, log.read_text()
    finally:
        command.kill()
        command.wait()
    page = served.page(training)
    assert _REFRESH not in page
    assert all(title in page for title in _TITLES)
    assert {*_steps(page)} == {200}
    assert "step 200, 256 tokens" in page
    of_run = served.page(run)
    assert _REFRESH not in of_run
    assert training in of_run
    # What its page says of a step, the command computes again: four examples, the worst first.
    told = parcel(served.store, "lineage", "losses", training.rpartition("/")[2], "--step", "3")
    assert told.returncode == 0, told.stderr
    losses = [float(line.split()[0]) for line in told.stdout.splitlines()]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
