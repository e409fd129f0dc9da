"""The flow of several passes: which outcome of one lets the next be drawn."""

from collections.abc import Iterator

import pytest

from flows.config.load import load
from flows.config.study import StudyConfig
from flows.study.explain import Explanation
from flows.study.retry_policy import GIVEN_UP
from infra.store.store import Store
from tests.flows.study.test_explain import store

__all__ = ["store"]

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("served_store")
@pytest.mark.parametrize(("why", "num_passes"), [(GIVEN_UP, 3), ("outside 20:00-08:00 UTC", 1)])
def test_what_was_given_up_ends_no_sweep_and_what_was_put_off_does(
    store: Store, why: str, num_passes: int
):
    from prefect import flow

    from flows.study.flow import run_passes

    drawn: list[int] = []

    def passes() -> Iterator[StudyConfig]:
        for num_seeds in (1, 2, 3):
            drawn.append(num_seeds)
            yield load(overrides=[f"num_seeds={num_seeds}"])

    def hold(explanation: Explanation) -> dict:
        return dict.fromkeys(explanation.graph.nodes, why)

    @flow
    def sweep():
        return run_passes(passes(), store, until="prepare", hold_rule=hold)

    assert sweep(return_state=True).is_completed()
    assert len(drawn) == num_passes
