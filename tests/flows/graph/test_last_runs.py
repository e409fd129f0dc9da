"""Steps that are new through values that code owns: said so, and counted like stale ones."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config.keep import KeepConfig
from flows.graph.explain import Explanation
from flows.graph.graph import StudyGraph, graph_of
from flows.graph.nodes import GraphNode
from flows.lookup.runs import end_run_record
from flows.run.session import RunSession, StepFailedError
from flows.steps import registry
from flows.steps.kind import Step
from flows.steps.registry import KINDS
from flows.steps.step_lookup import StepLookup, look_up_step
from flows.study.load import load
from flows.study.study import StudyConfig
from infra.errors import ConfigError
from infra.store.store import Store
from pipelines.sources.registry import BENCHMARKS
from tests.flows.graph.test_explain import fill, told
from tests.flows.graphs import checked_graph
from tests.flows.run.sessions import session_of

SMALL = ("methods=[vanilla,parcel]", "budgets=[256]")
OLD_DEFAULT = "stage1.dropout=0.1"
"""What an earlier version of the code had as the default of a value that nobody states."""


def study(*overrides: str) -> StudyConfig:
    return load(overrides=[*SMALL, *overrides])


def graph(*overrides: str) -> StudyGraph:
    return checked_graph(study(*overrides))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def ran(store: Store, config: StudyConfig, *defaults: str, run: str = "1" * 12) -> None:
    """Makes artifacts and a record as a run of a config, by code with other defaults, leaves them.

    Args:
      store: an empty store, or one with earlier runs.
      config: the config as it was given.
      defaults: what was a default then, as overrides.
      run: id of the run.
    """
    before = {*store.keys()}
    then = load(overrides=[*SMALL, *defaults])
    fill(store, checked_graph(dataclasses.replace(then, name=config.name)), seconds=1000)
    values: dict[str, Any] = dataclasses.asdict(config)
    end_run_record(store, values, run, results=None, artifacts={*store.keys()} - before, failed=[])


def test_a_changed_default_is_said_to_be_the_codes(store: Store):
    ran(store, study(), OLD_DEFAULT)
    states = told(store, graph())
    value = "stage1.dropout 0.1 → 0.0: the code's value, not the config's"
    assert states["stage1 vanilla"] == ("new", value)
    assert states["intermediary parcel"] == ("new", "stage1 vanilla is new")
    assert states["tokenizer"][0] == "reused"


def test_it_counts_against_the_limit_with_all_that_follows(store: Store):
    ran(store, study(), OLD_DEFAULT)
    explanation = Explanation(store, graph())
    new = [step for step in explanation.graph.steps if explanation.steps[step].state == "new"]
    kinds = {"checkpoint", "predictions", "scores", "results"}
    assert {step.kind for step in new} == kinds
    assert all(explanation.steps[step].seconds >= 1000 for step in new)
    hours = sum(explanation.steps[step].seconds for step in new) / 3600
    with pytest.raises(ConfigError) as refused:
        explanation.check(1.0, ())
    assert re.search(
        rf" 1 step new.* {hours:.2g} device-hours, .*compute\.rebuild_limit=1: "
        r"stage1\.dropout 0\.1 → 0\.0 .*stage1 vanilla\..*--rebuild STEP",
        str(refused.value),
    )
    explanation.check(hours + 0.1, ())
    explanation.check(1.0, ("stage1 *",))
    lines = [*explanation.lines(KeepConfig())]
    total = f"remaking what the code's values concern takes about {3600 * hours:.0f} device-seconds"
    assert any(line.endswith(total) for line in lines)


def test_a_run_pays_for_them_as_it_makes_them(store: Store):
    ran(store, study(), OLD_DEFAULT)
    explanation = Explanation(store, graph())
    node, step, lookup = first_stage(store, explanation)
    session = charged_session(store, explanation, seconds=2500)
    session.allow(node, step, lookup)
    left = session.rebuild_seconds
    assert left == pytest.approx(1500, abs=100)
    session.allow(node, step, lookup)
    assert session.rebuild_seconds == left  # A second attempt is no second payment.
    follows = next(s for s in explanation.steps if s.name == "intermediary parcel")
    other = dataclasses.replace(lookup, recipe=dataclasses.replace(lookup.recipe, seed=8))
    session.allow(node, follows, other)
    third = dataclasses.replace(lookup, recipe=dataclasses.replace(lookup.recipe, seed=9))
    with pytest.raises(StepFailedError, match=r"stage1 vanilla is new because of changed code"):
        session.allow(node, step, third)
    session.rebuild = ("stage1 *",)
    session.allow(node, step, third)


def test_a_run_does_not_pay_for_what_its_user_changed(store: Store):
    ran(store, study())
    explanation = Explanation(store, graph("stage1.dropout=0.3"))
    session = charged_session(store, explanation, seconds=0)
    session.allow(*first_stage(store, explanation))
    assert not session.allowed


def charged_session(store: Store, explanation: Explanation, *, seconds: float) -> RunSession:
    """Returns the state of a run that may do so much work again [device-seconds]."""
    return session_of(
        Path(store.uri).parent,
        explanation.graph.nodes,
        rework_costs=explanation.rework_costs(),
        rebuild_seconds=seconds,
    )


def first_stage(store: Store, explanation: Explanation) -> tuple[GraphNode, Step, StepLookup]:
    """Returns the first training of a study, its node, and what the store has of it."""
    node = next(node for node in explanation.graph.nodes if node.name == "stage1 vanilla")
    (step,) = node.steps
    artifacts = explanation.artifacts()
    inputs = {role: artifacts[read] for role, read in step.inputs.items()}
    return node, step, look_up_step(store, step, inputs, frozenset())


def test_the_old_value_in_the_config_finds_the_old_artifacts(store: Store):
    ran(store, study(), OLD_DEFAULT)
    assert {state for state, _ in told(store, graph(OLD_DEFAULT)).values()} == {"reused"}


@pytest.mark.parametrize(
    ("then", "now", "node", "why"),
    [
        # The user states another value, or takes one back.
        ((), ("stage1.dropout=0.3",), "stage1 vanilla", "stage1.dropout 0.1 → 0.3"),
        ((OLD_DEFAULT,), (), "stage1 vanilla", "stage1.dropout 0.1 → 0.0"),
        # Beside the code's value, one of the user's differs.
        ((), ("stage1.b2=0.9",), "stage1 vanilla", "stage1.b2 0.99 → 0.9; stage1.dropout 0.1 →"),
        # The value has another name in the step.
        ((OLD_DEFAULT,), (OLD_DEFAULT, "eval_batch_size=7"), "transfer parcel chartqa seed=56703",
         "decode.batch_size 32 → 7"),
        ((OLD_DEFAULT,), (OLD_DEFAULT, "corpus.num_web=310"), "corpus", "num_web 300 → 310"),
    ],
)  # fmt: skip
def test_what_the_user_changed_is_new_at_no_cost(
    store: Store, then: tuple[str, ...], now: tuple[str, ...], node: str, why: str
):
    ran(store, study(*then), OLD_DEFAULT)
    state, reasons = told(store, graph(*now))[node]
    assert (state, reasons[: len(why)]) == ("new", why)
    assert "the code's value" not in reasons
    Explanation(store, graph(*now)).check(0.0, ())


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"sampling": "choice"}, "transfers.chartqa.train.sampling without_replacement → choice"),
        ({"beams": 3}, "decode.decoding.beams 1 → 3"),
    ],
)
def test_a_recipe_of_the_registry_is_a_value_of_the_code(
    store: Store, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], value: str
):
    ran(store, study())
    changed = dataclasses.replace(BENCHMARKS["chartqa"], **changes)
    monkeypatch.setitem(BENCHMARKS, "chartqa", changed)  # type: ignore[arg-type]
    states = told(store, graph())
    state, why = states["transfer parcel chartqa seed=56703"]
    assert (state, why.partition(": ")[0]) == ("new", value)
    assert states["transfer parcel refcoco seed=56703"][0] == "reused"
    with pytest.raises(ConfigError, match=f"{re.escape(value)} by the code .* concerns transfer"):
        Explanation(store, graph()).check(1.0, ())
    Explanation(store, graph()).check(1.0, ("transfer * chartqa *",))


def test_without_a_run_that_tells_nothing_is_held_against_the_code(store: Store):
    fill(store, graph(OLD_DEFAULT), seconds=1000)
    assert told(store, graph())["stage1 vanilla"] == ("new", "stage1.dropout 0.1 → 0.0")
    ran(store, dataclasses.replace(study(), name="other"), OLD_DEFAULT)
    older = dataclasses.replace(study(), statements={})
    ran(store, older, OLD_DEFAULT, run="2" * 12)
    assert told(store, graph())["stage1 vanilla"] == ("new", "stage1.dropout 0.1 → 0.0")
    Explanation(store, graph()).check(0.0, ())


def test_the_newest_run_that_had_the_step_counts(store: Store):
    ran(store, study(), OLD_DEFAULT)
    ran(store, study("stage1.dropout=0.2"), "stage1.dropout=0.2", run="2" * 12)
    # The user takes back what the last run stated: nobody's default changed since.
    assert told(store, graph())["stage1 vanilla"][1] == "stage1.dropout 0.1 → 0.0"
    Explanation(store, graph()).check(0.0, ())


def test_other_files_of_the_users_are_no_values_of_the_code(store: Store, tmp_path: Path):
    (tmp_path / "pieces.model").write_bytes(b"pieces")
    given = f"tokenizer.path={tmp_path}/pieces.model"
    ran(store, study(given), given)
    (tmp_path / "pieces.model").write_bytes(b"others")
    states = told(store, graph(given))
    assert states["files tokenizer.path"][0] == "new"
    assert not any("the code's" in why for _, why in states.values())
    Explanation(store, graph(given)).check(0.0, ())


def test_a_library_that_remakes_steps_is_named_with_their_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    def install(pillow: str) -> None:
        def libraries(kind: str) -> dict[str, str]:
            return {n: pillow if n == "pillow" else "1.0" for n in KINDS[kind].libraries}

        monkeypatch.setattr(registry, "_libraries", libraries)

    install("12.3.0")
    ran(store, study())
    assert Explanation(store, graph()).describe_remakes() == ""
    install("13.0.0")
    explanation = Explanation(store, graph())
    line = explanation.describe_remakes()
    # Another study, which has not run yet, is not compared with this one.
    other = Explanation(store, graph_of(study("name=other", "stage1.peak_lr=0.5")))
    new = [n for n in explanation.graph.nodes if explanation.of_node(n).state == "new"]
    total = len(explanation.graph.nodes)
    assert line.startswith(f"pillow 12.3.0 → 13.0.0: {len(new)} of {total} steps ")
    assert len(new) > total / 2
    assert line in explanation.lines(KeepConfig())
    assert other.describe_remakes() == ""


def test_a_step_is_not_compared_with_those_of_other_studies(store: Store):
    ran(store, study())
    states = told(store, graph_of(study("name=mine", "stage1.peak_lr=0.5")))
    state, why = states["stage1 vanilla"]
    assert (state, "first of its name" in why) == ("new", True)


def test_what_follows_and_what_a_bucket_does_are_said_where_they_are_so(store: Store, edit: Any):
    ran(store, study())
    lines = [*Explanation(store, graph()).lines(KeepConfig())]
    assert not any(line.startswith(("follows: ", "reading ")) for line in lines)
    edit("model/train/step.py", "jnp.maximum(", "jnp.minimum(")
    lines = [*Explanation(store, graph()).lines(KeepConfig())]
    assert any(line.startswith("follows: it has an artifact") for line in lines)
    (again,) = [line for line in lines if "made again, " in line and " changed: " in line]
    assert again.startswith("model.train.step.loss_weights changed: ")
