"""A name stands for its newest run; where that hides a larger one, a line names it."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import parcel as notebook
from flows.lookup.runs import end_run_record, ended_run_records, find_run
from flows.machine.status import status
from flows.study.load import load
from infra.prefect.server import PAGES
from infra.store.store import Store
from parcel.studies import load_named_study
from tests.flows.pages.studies import write_study
from tests.flows.pages.test_pages import get, told
from tests.flows.pages.test_start import client_of

LARGE, SMALL = "toy-aaaaaaaaaaaa", "toy-bbbbbbbbbbbb"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The study `toy` with three seeds, and then again with one."""
    store = Store(tmp_path / "store")
    write_study(store)
    (first,) = ended_run_records(store).values()
    (tmp_path / "store" / "runs" / f"{first['run']}.json").unlink()
    for run, seeds, scores in ((LARGE, 3, 36), (SMALL, 1, 12)):
        end_run_record(
            store,
            {**first["config"], "num_seeds": seeds},
            run.replace("toy-", "run-"),
            results=first["results"],
            artifacts=[],
            failed=[],
            headline={"cells": scores},
        )
    return store


HIDDEN = (
    rf"^toy: its newest run is taken, {SMALL}, with 12 scores, 1 seed, 2 benchmarks, 3 methods; "
    rf"{LARGE} of \S+ \S+ UTC has 36 scores, 3 seeds: give {LARGE} instead of toy for that one\n$"
)


@pytest.mark.parametrize(
    "words",
    [
        ("results", "toy"),
        ("results", "toy", "--format", "csv"),
        ("results", "toy", "--format", "html", "--out", "out"),
        ("results", "toy", "--format", "items", "--out", "items.parquet"),
        ("lineage", "trace", "toy/colors/parcel/64"),
        ("lineage", "export", "toy"),
    ],
    ids=" ".join,
)
def test_a_command_says_that_the_newest_run_hides_a_larger_one(
    words: tuple[str, ...], store: Store, parcel: Callable, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = parcel(*words, "--store", store.uri)
    assert done.code == 0
    assert re.match(HIDDEN, done.err), done.err


def test_the_larger_run_is_had_by_its_name_without_a_line(store: Store, parcel: Callable):
    done = parcel("results", LARGE, "--store", store.uri)
    assert (done.code, done.err) == (0, "")
    assert find_run(store, LARGE)["config"]["num_seeds"] == 3
    # Nor is there one where the newest is the largest.
    Path(store.uri, "runs", f"{LARGE}.json").unlink()
    assert parcel("results", "toy", "--store", store.uri).err == ""


def test_a_notebook_says_so_too(store: Store, capsys: pytest.CaptureFixture[str]):
    for call in (notebook.results, notebook.curves):
        call("toy", store=store.uri)
        assert re.match(HIDDEN, capsys.readouterr().err)
    notebook.trace("toy/colors/parcel/64", store=store.uri)
    assert re.match(HIDDEN, capsys.readouterr().err)


def test_a_study_is_loaded_from_the_run_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import dataclasses

    store = Store(tmp_path / "store")
    for seeds, run in ((3, "run-aaaaaaaaaaaa"), (1, "run-bbbbbbbbbbbb")):
        config = dataclasses.asdict(load(None, ["name=wide", f"num_seeds={seeds}"]))
        end_run_record(store, config, run, results=None, artifacts=[], failed=[])
    assert load_named_study("wide", [], store.uri).num_seeds == 1
    line = capsys.readouterr().err
    assert re.match(r"wide: .*wide-bbbbbbbbbbbb, with 1 seed\b", line)
    assert re.search(r"wide-aaaaaaaaaaaa of .* 3 seeds\b.* wide-aaaaaaaaaaaa ", line)
    assert load_named_study("wide-aaaaaaaaaaaa", [], store.uri).num_seeds == 3
    assert capsys.readouterr().err == ""


def test_pages_and_status_name_the_larger_run(store: Store):
    client = client_of(store)
    larger = rf"{LARGE} of \S+ \S+ UTC has 36 scores, 3 seeds"
    page = told(get(client, f"{PAGES}/results/{SMALL}"))
    assert re.search(rf"A run of this name is larger: {larger}", page)
    assert "is larger" not in told(get(client, f"{PAGES}/results/{LARGE}"))
    assert re.search(larger, told(get(client, f"{PAGES}/")))
    (line,) = [line for line in status(store) if "hides" in line]
    assert re.search(rf"its newest table hides a larger one: {larger}", line)


def test_what_has_fewer_scores_and_more_of_another_thing_is_larger(tmp_path: Path):
    from flows.lookup.runs import describe_larger_run

    store = Store(tmp_path / "store")
    number = itertools.count()

    def end(name: str, cells: int, **config: object) -> None:
        end_run_record(
            store, {"name": name, **config}, f"run-{next(number):012x}", results=None,
            artifacts=[], failed=[], headline={"cells": cells},
        )  # fmt: skip

    end("a", 8, num_seeds=1, transfers={"chartqa": {}, "gqa": {}})
    end("a", 9, num_seeds=3, transfers={"gqa": {}})
    end("a-2", 900, num_seeds=9)  # Another study.
    line = describe_larger_run(ended_run_records(store).values(), "a")
    assert "a-000000000000 of " in line
    assert " has 2 benchmarks: " in line
