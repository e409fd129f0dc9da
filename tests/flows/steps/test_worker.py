"""The worker: one step after the other, none taking another down, and with no other code."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.steps import worker
from flows.steps.kind import StepContext
from flows.steps.kinds.files import FilesSpec, check_input_files
from flows.steps.registry import KINDS, code_digest
from flows.steps.step_lookup import device_seconds
from flows.steps.workers import AlreadyRunning, LocalWorkers
from infra.progress import Progress
from infra.ray.cluster import Cluster
from infra.source_code import checkout
from infra.store.history import list_attempts
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # A worker of its own would set it.
    return Store(tmp_path / "store")


def files(store: Store, name: str, **more) -> Recipe:
    """A recipe of the cheapest kind."""
    config = {"files": [[name, "0" * 64, 1]]}
    recipe = Recipe(kind="files", name=name, config=config, code=code_digest("files", config))
    return dataclasses.replace(recipe, **more)


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(KINDS["files"].make)  # Of the same module: the code of the step is as it was.
    def make(work: StepContext) -> Iterator[Progress]:
        yield Progress(done=1, total=2)
        if "broken" in str(work.config):
            raise ValueError("the file\nis broken")
        (work.out / "a.txt").write_text(str(work.config))

    plain = dataclasses.replace(KINDS["files"], make=make)
    monkeypatch.setitem(KINDS, "files", plain)


@pytest.fixture
def working_together(working: None, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Has steps whose names begin alike be made together; returns the groups that were."""
    groups: list[list[str]] = []

    def make_together(works: Sequence[StepContext]) -> Iterator[Progress]:
        groups.append([work.config["files"][0][0] for work in works])
        for work in works:
            yield from KINDS["files"].make(work)
            work.counts["size"] = 1

    together = dataclasses.replace(
        KINDS["files"],
        make_together=make_together,
        group_value=lambda config: config["files"][0][0].partition(" ")[0],
    )
    monkeypatch.setitem(KINDS, "files", together)
    return groups


def test_steps_that_are_alike_are_made_together_and_fail_together(
    store: Store, working_together: list[list[str]]
):
    first = files(store, "a 1")
    assert list(worker.make(str(store.state), [first], {}))[-1] == worker.StepOutcome(name="a 1")
    names = ("a 1", "a 2", "b 1", "a 3", "c broken", "c 2")
    recipes = [files(store, name) for name in names]
    items = list(worker.make(str(store.state), recipes, {}))
    ends = {item.name: item for item in items if isinstance(item, worker.StepOutcome)}
    assert sorted(map(sorted, working_together)) == [
        ["a 1"],
        ["a 2", "a 3"],
        ["b 1"],
        ["c 2", "c broken"],
    ]
    assert {name for name, end in ends.items() if end.error} == {"c 2", "c broken"}
    assert [name for name, end in ends.items() if end.reused] == ["a 1"]
    for recipe in recipes[1:4]:
        artifact = store.get(recipe.key)
        assert artifact.manifest.counts == {"size": 1}
        assert (artifact.path / "a.txt").read_text() == str(recipe.config)


@pytest.mark.usefixtures("working")
def test_a_step_that_fails_leaves_the_others_alone(store: Store):
    recipes = [files(store, name) for name in ("a", "broken", "b")]
    items = list(worker.make(str(store.state), recipes, {}))
    ends = [item for item in items if isinstance(item, worker.StepOutcome)]
    assert [(end.name, end.reused, end.error) for end in ends] == [
        ("a", False, ""),
        ("broken", False, "the file is broken"),
        ("b", False, ""),
    ]
    assert "ValueError" in ends[1].traceback
    assert [store.find(recipe.key) is not None for recipe in recipes] == [True, False, True]
    again = [item for item in worker.make(str(store.state), recipes[:1], {})]
    assert again == [worker.StepOutcome(name="a", reused=True)]


def test_a_worker_of_another_checkout_refuses_and_names_the_module(store: Store):
    recipe = files(store, "a")
    changed = dict(checkout().files)
    path = "flows/steps/kinds/files.py"
    changed[path] = changed[path].replace(b'"files.txt"', b'"other.txt"')
    source = store.save_source(changed)
    (end,) = worker.make(
        str(store.state), [dataclasses.replace(recipe, code="0" * 64, source=source)], {}
    )
    assert isinstance(end, worker.StepOutcome)
    assert "must be made with code 00000000" in end.error
    assert "other code in flows.steps.kinds.files;" in end.error
    assert store.find(recipe.key) is None


def test_the_cost_of_a_step_is_that_of_all_its_attempts(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    tries: list[float] = []

    @functools.wraps(KINDS["files"].make)
    def make(work: StepContext) -> Iterator[Progress]:
        began = time.monotonic()
        while time.monotonic() - began < 0.2:
            yield Progress(done=0, total=1)
        tries.append(time.monotonic() - began)
        if len(tries) == 1:
            raise OSError("the machine was taken away")
        (work.out / "a.txt").write_text("a")

    monkeypatch.setitem(KINDS, "files", dataclasses.replace(KINDS["files"], make=make))
    monkeypatch.setattr(worker, "_NOTED_EVERY", 0.01)
    recipe = files(store, "a")
    for _ in range(2):
        list(worker.make(str(store.state), [recipe], {}))
    assert len(tries) == 2
    assert store.get(recipe.key).manifest.seconds >= 0.99 * sum(tries)


@pytest.fixture
def on_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has steps report a thousand devices; one called "fails once" fails the first time."""

    @functools.wraps(KINDS["files"].make)
    def make(work: StepContext) -> Iterator[Progress]:
        yield Progress(done=1, total=1, devices=1000)
        fails = "fails once" in str(work.config) and not (work.scratch / "tried").exists()
        (work.scratch / "tried").touch()
        if fails:
            raise ValueError("broken")

    monkeypatch.setitem(KINDS, "files", dataclasses.replace(KINDS["files"], make=make))


@pytest.mark.usefixtures("on_many_devices")
def test_the_cost_is_counted_by_the_processes_that_compute(store: Store):
    recipe = files(store, "a")
    list(worker.make(store.uri, [recipe], {"devices": 1}))
    manifest = store.get(recipe.key).manifest
    assert manifest.environment["devices"] == 1000
    cost = manifest.environment["device_seconds"]
    assert cost == pytest.approx(1000 * manifest.seconds, abs=1.0)
    assert cost > 0
    assert device_seconds(store.get(recipe.key)) == cost


@pytest.mark.usefixtures("on_many_devices")
def test_failed_attempts_are_part_of_the_cost(store: Store):
    recipe = files(store, "fails once")
    (*_, failed), (*_, ended) = (list(worker.make(store.uri, [recipe], {})) for _ in range(2))
    assert (failed.error, ended.error) == ("broken", "")
    notes = list_attempts(store.files, recipe.key)
    assert [note.device_seconds > 0 for note in notes] == [True, True]
    spent = sum(note.device_seconds for note in notes)
    cost = store.get(recipe.key).manifest.environment["device_seconds"]
    assert cost == pytest.approx(spent, abs=0.01)
    assert store.attempts_device_seconds(recipe.key) == spent


_KILLED = """
import dataclasses, functools, os, pickle, signal, sys
from flows.steps import worker
from flows.steps.registry import KINDS
from infra.progress import Progress

@functools.wraps(KINDS["files"].make)
def make(work):
    yield Progress(done=1, total=2, devices=1000)
    os.kill(os.getpid(), signal.SIGKILL)

KINDS["files"] = dataclasses.replace(KINDS["files"], make=make)
worker._COST_SAVED_EVERY = 0.0
list(worker.make(sys.argv[1], [pickle.load(sys.stdin.buffer)], {}))
"""


@pytest.mark.usefixtures("working")
def test_an_attempt_that_was_killed_is_part_of_the_cost(store: Store):
    recipe = files(store, "a")
    child = subprocess.run(
        [sys.executable, "-c", _KILLED, store.uri],
        input=pickle.dumps(recipe),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.returncode == -signal.SIGKILL
    killed = store.attempts_device_seconds(recipe.key)
    assert killed > 0
    list(worker.make(store.uri, [recipe], {}))
    assert store.get(recipe.key).manifest.environment["devices"] == 1
    assert device_seconds(store.get(recipe.key)) > killed


def test_given_files_that_changed_since_they_were_noted_are_refused(store: Store, tmp_path: Path):
    (tmp_path / "pieces.model").write_bytes(b"pieces")
    digest = hashlib.sha256(b"pieces").hexdigest()
    config = {"files": [["pieces.model", digest, 6]]}
    code = code_digest("files", config)
    noted = Recipe(kind="files", name="files", config=FilesSpec(**config), code=code)
    assert list(worker.make(str(store.state), [noted], {}))[-1] == worker.StepOutcome(name="files")
    check_input_files(tmp_path, store.get(noted.key).path)
    (tmp_path / "pieces.model").write_bytes(b"others")
    with pytest.raises(ValueError, match=r"pieces\.model has changed"):
        check_input_files(tmp_path, store.get(noted.key).path)


@pytest.mark.usefixtures("working")
def test_a_worker_that_finds_its_place_too_late_makes_nothing(store: Store):
    recipe = files(store, "late", source=store.save_source(checkout().files))
    soon = time.time() + 60
    (end,) = worker.make(store.uri, [recipe], {"closes": 0.0}, alone=True)
    assert end.held
    assert store.find(recipe.key) is None
    *_, end = worker.make(store.uri, [recipe], {"closes": soon, "prefect": {}}, alone=True)
    assert end == worker.StepOutcome(name="late")
    assert "closes" not in store.get(recipe.key).manifest.environment


@pytest.mark.usefixtures("working")
def test_a_worker_makes_what_is_free_while_another_run_makes_the_rest(store: Store):
    ours, theirs, calls = files(store, "a"), files(store, "b"), list[list[str]]()

    def stream(
        function: Any, uri: str, recipes: Any, *args: Any, **resources: Any
    ) -> Iterator[Any]:
        calls.append([recipe.name for recipe in recipes])
        yield from function(uri, recipes, *args)

    workers = LocalWorkers(cast(Cluster, SimpleNamespace(stream=stream, num_cpus=1)), store)
    keys = [theirs.key, ours.key]
    with contextlib.ExitStack() as other_run:
        other_run.enter_context(store.lock(theirs.key))
        items = workers.make("two", keys, [theirs, ours], {}, cpus=1, gpus=0)
        # The worker comes back without the step that is busy, and this thread waits for it.
        assert next(items) == ("a", Progress(done=0, total=0))  # It has begun.
        assert next(items)[0] == "a"  # type: ignore[index]
        assert next(items) == worker.StepOutcome(name="a")
        assert next(items) == AlreadyRunning(by="a step of another run")
        Attempt(store, theirs).commit({})
    assert list(items) == [worker.StepOutcome(name="b", reused=True)]
    assert calls == [["b", "a"], ["b"]]


@pytest.mark.parametrize(
    ("wait", "end"),
    [
        (True, worker.StepOutcome(name="a", reused=True)),
        (False, worker.StepOutcome(name="a", busy=True)),
    ],
)
def test_a_holder_that_comes_back_after_another_made_its_step_has_not_failed(
    store: Store, working: None, monkeypatch: pytest.MonkeyPatch, wait: bool, end: Any
):
    @functools.wraps(KINDS["files"].make)
    def make(work: StepContext) -> Iterator[Progress]:
        yield Progress(done=1, total=2)
        (work.scratch / "metrics.jsonl").write_text("")  # Its folder is the other holder's now.

    recipe = files(store, "a")
    monkeypatch.setitem(KINDS, "files", dataclasses.replace(KINDS["files"], make=make))
    items = worker.make(str(store.state), [recipe], {"wait": wait}, token="first")
    assert [next(items)[1].done for _ in range(2)] == [0, 1]  # type: ignore[index]
    with store.lock(recipe.key, lost=["first"]):
        Attempt(store, recipe).commit({})
    assert list(items) == [end]


def test_pieces_are_made_once_and_found_by_whoever_makes_the_steps(
    store: Store, working: None, monkeypatch: pytest.MonkeyPatch
):
    made: list[tuple[int, int, list[str]]] = []

    def make_piece(
        works: Sequence[StepContext], piece: int, of: int
    ) -> Generator[Progress, None, bytes]:
        made.append((piece, of, [work.config["files"][0][0] for work in works]))
        yield Progress(done=piece, total=of)
        if "broken" in str(works[0].config):
            raise ValueError("no such file")
        return f"{piece} of {of}".encode()

    def make_together(works: Sequence[StepContext]) -> Iterator[Progress]:
        yield Progress(done=1, total=1)
        for work in works:
            (work.out / "a.txt").write_bytes(b", ".join(sorted(works[0].pieces)))

    kind = dataclasses.replace(
        KINDS["files"],
        make_together=make_together,
        make_piece=make_piece,
        group_value=lambda config: config["files"][0][0].partition(" ")[0],
    )
    monkeypatch.setitem(KINDS, "files", kind)
    recipes = [files(store, name) for name in ("a 1", "a 2", "broken")]

    def apart(number: int, of: int) -> list[Any]:
        return list(worker.make(store.uri, recipes, {"piece": (number, of)}, alone=True))

    for number, of in ((1, 3), (0, 2), (2, 3)):
        told, progress, end = apart(number, of)
        assert told[0] == "a 1"
        assert (told[1].done, told[1].total) == (number, of)  # Its loss is NaN, equal to nothing.
        assert progress[0] == end.name == "broken"
        assert end.error == "no such file"
    assert len(apart(1, 3)) == 2  # What is there is not made again.
    assert [m for m in made if "broken" not in m[2]] == [
        (1, 3, ["a 1", "a 2"]),
        (0, 2, ["a 1", "a 2"]),
        (2, 3, ["a 1", "a 2"]),
    ]
    assert not any(store.find(recipe.key) for recipe in recipes)
    list(worker.make(store.uri, recipes[:2], {}))
    for recipe in recipes[:2]:
        assert (store.get(recipe.key).path / "a.txt").read_text() == "1 of 3, 2 of 3"


def test_the_cost_of_a_step_is_that_of_its_pieces_too(
    store: Store, working: None, monkeypatch: pytest.MonkeyPatch
):
    def make_piece(
        works: Sequence[StepContext], piece: int, of: int
    ) -> Generator[Progress, None, bytes]:
        yield Progress(done=1, total=1)
        time.sleep(0.2)
        return b""

    kind = dataclasses.replace(KINDS["files"], make_piece=make_piece)
    monkeypatch.setitem(KINDS, "files", kind)
    recipe = files(store, "a")
    for number in range(2):
        list(worker.make(store.uri, [recipe], {"piece": (number, 2)}, alone=True))
    list(worker.make(store.uri, [recipe], {}))
    assert store.get(recipe.key).manifest.seconds >= 0.4
    assert device_seconds(store.get(recipe.key)) >= 0.4
    assert store.attempts_device_seconds(recipe.key) >= 0.4
