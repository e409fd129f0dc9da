"""`auto` among a study's budgets: what it adds to the graph, and what it leaves as it is."""

import pytest

from flows.config.auto import parted
from flows.config.load import load
from flows.study.graph import graph_of
from infra.errors import ConfigError
from infra.store.digest import canonical_json
from model.router.files import ANSWERS

AUTO = ["methods=[vanilla,parcel]", "budgets=[16,64,256,auto]"]
PLAIN = ["methods=[vanilla,parcel]"]


def settings(*overrides: str) -> dict[str, tuple[str, int | None, list[str]]]:
    """Name of each step -> what its key is made of."""
    return {
        step.name: (
            canonical_json(step.config),
            step.seed,
            sorted(f"{role} {read.name}" for role, read in step.inputs.items()),
        )
        for step in graph_of(load(overrides=overrides)).steps
    }


def test_up_to_the_transfers_a_study_is_what_it_was():
    plain, auto = settings(*PLAIN), settings(*AUTO)
    changed = {name for name in plain if plain[name] != auto[name]}
    assert all(name.startswith(("transfer ", "results ")) for name in changed)
    assert {name.split()[0] for name in auto.keys() - plain.keys()} == {
        "prepare",
        "router",
        "evaluate",
    }


def test_a_router_comes_after_the_evaluations_and_learns_from_what_was_held_back():
    graph = graph_of(load(overrides=AUTO))
    node = next(n for n in graph.nodes if n.name.startswith("transfer parcel chartqa"))
    training, _, routing, choosing = (job.steps for job in node.jobs)
    (router,) = routing
    assert router.config.budgets == (16, 64, 256)
    assert router.inputs["checkpoint"] is training[0]
    trained, held = training[0].inputs["data/0"].config, router.inputs["data"].config
    assert trained.split.endswith(":80%]")
    assert held.split == trained.split.replace("[:80%]", "[80%:]")
    for step in choosing:
        assert step.inputs["router"] is router
        assert {r for r in step.inputs if r.startswith(ANSWERS)} == {
            f"{ANSWERS}{budget}" for budget in (16, 64, 256)
        }
    vanilla = next(n for n in graph.nodes if n.name.startswith("transfer vanilla chartqa"))
    assert len(vanilla.jobs) == 2  # One budget: nothing to choose.
    assert graph.results is not None
    assert {str(key) for key in graph.routed} <= set(graph.results.inputs)


def test_a_variant_has_the_routers_of_its_connector():
    variant = ["methods=[parcel,longer]", "variants={longer: {of: parcel, length: 2}}"]
    graph = graph_of(load(overrides=[*variant, "budgets=[16,256,auto]"]))
    routers = {s.name.split()[1]: s.config for s in graph.steps if s.kind == "router"}
    assert {*routers} == {"parcel", "longer"}
    assert routers["parcel"] == routers["longer"]
    assert {key.method for key in graph.routed} == {"parcel", "longer"}


@pytest.mark.parametrize(
    ("split", "kept", "held"),
    [
        ("train", "train[:80%]", "train[80%:]"),
        ("train+val", "train[:80%]+val[:80%]", "train[80%:]+val[80%:]"),
        ("train[:98%]", "train[:78%]", "train[78%:98%]"),
        ("val[5%:]", "val[5%:80%]", "val[80%:]"),
    ],
)
def test_a_split_is_parted(split: str, kept: str, held: str):
    assert parted(split, 20) == (kept, held)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["methods=[vanilla]", "budgets=[256,auto]"], r"budgets must hold several .* for vanilla"),
        ([*AUTO, "auto.held_back=0"], r"auto\.held_back"),
        ([*AUTO, "auto.router.threshold=2"], r"threshold must be a probability .* got 2"),
        (
            [*AUTO, "transfers.chartqa.train_split=train_human[:-100]"],
            r"transfers\.chartqa: train_split must be .* got train_human\[:-100\]; state",
        ),
        (
            [*AUTO, "transfers.chartqa.train_split=train_human[:10%]"],
            r"transfers\.chartqa: auto\.held_back must leave some .* got 20 percent",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(overrides: list[str], says: str):
    with pytest.raises(ConfigError, match=says) as error:
        load(overrides=overrides)
    assert "\n" not in str(error.value)


def test_settings_go_beside_the_budgets():
    config = load(overrides=[*AUTO, "auto={held_back: 10, router: {epsilon: 0.1}}"])
    assert config.auto is not None
    assert (config.auto.held_back, config.auto.router.epsilon) == (10, 0.1)
    assert config.budgets == (16, 64, 256)
