"""`parcel status`: runs under way, leases, and what waits for what; on a disk and in a bucket."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.lookup.runs import begin_run_record, end_run_record
from flows.machine.status import status
from flows.pages.page import Page
from flows.pages.site import NoPageError, Site
from infra.prefect.journal import Journal
from infra.prefect.progress import NodeProgress, ProgressFile
from infra.processes.identity import ProcessIdentity
from infra.store.gc import find_garbage
from infra.store.history import AttemptNote
from infra.store.lease import Lease
from infra.store.store import Store, manifest_name
from tests.flows.conftest import Done
from tests.flows.pages.test_lineage import dataset_with_rejects

RUN = "0c0ffee0-1111-4222-8333-444455556666"
STEP = "checkpoint-0123456789abcdef-01234567"


@pytest.fixture(params=["disk", "bucket"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    request.getfixturevalue("gcs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "cache"))
    return "gs://testing/status"


@pytest.fixture
def under_way(uri: str) -> Iterator[Store]:
    """A run in the middle: a part is made, one step has failed, others wait."""
    store = Store(uri)
    journal = Journal(store.state, RUN)
    journal.plan(
        "toy",
        {
            "corpus": [],
            "broken": ["corpus"],
            "stage1": ["corpus"],
            "ready": ["corpus"],
            "transfer a": ["stage1"],
            "transfer b": ["stage1"],
            "lost": ["broken"],
        },
    )
    for name in ("corpus", "broken", "stage1"):
        journal.started(name)
    journal.ended("corpus", "made")
    at_work = NodeProgress(
        step="stage1",
        done=40,
        total=900,
        note="loss 1.93",
        devices="1 GPU",
        seconds_left=130.0,
        began=time.time(),
        written=time.time(),
    )
    ProgressFile(store.state, RUN).update("stage1", at_work)
    journal.ended("broken", "failed", "no such file")
    with store.pin_run(RUN) as pin, store.lock(STEP):
        pin.add(STEP)
        note = AttemptNote(id="a", started="", holder=ProcessIdentity.of_this_process())
        store.record_attempt(STEP, note, cost=lambda: 7200.0).save_cost()
        yield store


def test_a_run_under_way_tells_what_waits_for_what(parcel: Callable[..., Done], under_way: Store):
    done = parcel("status", "--store", under_way.uri)
    assert done.code == 0, done.err
    lines = [line.strip() for line in done.out.splitlines()]
    here = ProcessIdentity.of_this_process()
    assert any(
        line.startswith(f"toy 444455556666: process {here.pid} of {here.host}, since 20")
        for line in lines
    )
    assert "2 of 7 steps ended: 1 failed, 1 made" in lines
    (stage,) = (line for line in lines if line.startswith("running: stage1, for "))
    assert stage.endswith("40 of 900, loss 1.93, 2 min left")
    assert "at work on: 1 GPU" in lines
    assert "ready, waiting for a worker: ready" in lines
    assert "waiting for stage1: transfer a, transfer b" in lines
    assert "cannot run, since broken failed: lost" in lines
    (lease,) = (line for line in lines if line.startswith(STEP))
    assert re.search(r", renewed \d+ s ago, ", lease)
    assert lease.endswith(", 2 device-hours so far, wanted by toy 444455556666")


def test_leases_of_the_dead_and_of_other_machines(parcel: Callable[..., Done], tmp_path: Path):
    store = Store(tmp_path / "store")
    dead = ProcessIdentity(
        host="here", machine=ProcessIdentity.of_this_process().machine, pid=2**22 + 1, began=1
    )
    other = ProcessIdentity(host="there", machine="another", pid=7, began=1)
    for number, holder in enumerate((dead, other)):
        lease = Lease(token=str(number), holder=holder, since="2026-11-22T10:00:00+00:00", ttl=120)
        store.files.put(f"leases/files-{number:016x}-.json", lease.to_json())
    store.files.put(
        f"pins/{RUN}.abcdef01.json",
        json.dumps(json.loads(lease.to_json()) | {"holder": vars(dead)}).encode(),
    )
    out = parcel("status", "--store", store.uri).out
    assert re.search(r"process 4194305 of here, since 2026-11-22 10:00 UTC, .*gone; .*free", out)
    assert re.search(r"process 7 of there, since 2026-11-22 10:00 UTC, .* \d+ s ago", out)
    assert "runs whose process is gone: 1\n  run 444455556666" in out
    # Nothing is lost of a run whose record says how it ended.
    end_run_record(store, {"name": "toy"}, RUN, results=None, artifacts=[], failed=())
    out = parcel("status", "--store", store.uri).out
    assert "process is gone" not in out
    assert "runs that ended: 1" in out


def test_runs_that_ended_are_told_from_the_newest(parcel: Callable[..., Done], tmp_path: Path):
    store = Store(tmp_path / "store")
    assert "runs that ended: none" in parcel("status", "--store", store.uri).out
    for name, failed in (("old", ()), ("new", ["stage1: out of memory"])):
        end_run_record(store, {"name": name}, "run", results=None, artifacts=[], failed=failed)
    ended = parcel("status", "--store", store.uri).out.partition("runs that ended: 2\n")[2]
    first, how, second, *rest = map(str.strip, ended.splitlines())
    assert first.startswith("new-run: ")
    assert first.endswith("UTC, failed, 0 made, 0 reused; 1 failed: stage1: out of memory")
    assert how == f"continue: parcel run new --failed --store {store.uri}"
    assert second.startswith("old-run: ")
    assert second.endswith("UTC, complete, 0 made, 0 reused")
    assert "`parcel serve`" in rest.pop(0)
    assert rest == [
        "studies: 2",
        "new: failed, runs 1",
        "old: complete, runs 1",
    ]


def test_a_run_shows_what_its_data_left_out_once(parcel: Callable[..., Done], uri: str):
    store = Store(uri)
    dataset = dataset_with_rejects(store)
    for name in ("old", "new"):
        end_run_record(
            store, {"name": name}, "run", results=None, artifacts=[dataset.key], failed=[]
        )
    ended = parcel("status", "--store", store.uri).out.partition("runs that ended: 2\n")[2]
    lines = [line.strip() for line in ended.partition("next: ")[0].splitlines()]
    assert lines[1:-1] == [
        f"prepare web: 5 of 100 inputs rejected; `parcel data rejects {dataset.key}` shows them",
        "rejected: 4 x decode: too small: …, min_side=…",
        *(f"r{n}: too small: 1x{5 + n}, min_side=8 (web/{n}.jpg)" for n in range(3)),
        "and 1 more",
        "rejected: 1 x read: <b> is missing",
        "row-7 (web/a.tsv)",
    ]
    shown = parcel("data", "rejects", dataset.key[:12], "--store", store.uri)
    assert shown.out.startswith("rejected: 4 x decode: too small: …, min_side=…\n  r0: too small")


def _cut(text: bytes) -> bytes:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        lambda text: b"",
        lambda text: b"\x00\xff\xfe" * 40,
        lambda text: b"[1, 2]",
        lambda text: b"null",
        lambda text: b'{"kind": "dataset"}',
        lambda text: text.replace(b'"rejected": 5', b'"rejected": {}'),
        lambda text: b"[" * 100_000,
        lambda text: text.replace(b'"prepare web"', b"3"),
        lambda text: text.replace(b'"key": "dataset-', b'"key": "dataset-00'),
    ],
)
def test_a_damaged_manifest_is_a_line_and_ends_nothing(
    damage: Callable[[bytes], bytes], tmp_path: Path
):
    store = Store(tmp_path)
    dataset = dataset_with_rejects(store)
    end_run_record(store, {"name": "n"}, "run", results=None, artifacts=[dataset.key], failed=[])
    name = manifest_name(dataset.key)
    store.files.put(name, damage(store.files.read(name)))
    store = Store(tmp_path)  # As another process sees it.
    lines = [*status(store)]
    assert [line for line in lines if dataset.key in line and "is not known" in line]
    assert lines[-1].strip().startswith("n: ")
    site = Site(store, lambda page: None)
    for page in (Page("start", ()), Page("runs", ())):
        assert "<html" in site.html(page)
    with pytest.raises(NoPageError, match=dataset.key):
        site.html(Page("artifact", (dataset.key,)))
    with pytest.raises(ValueError, match=f"{name} cannot be read"):
        find_garbage(store, older_than=0.0)


def test_a_damaged_list_of_rejects_is_a_line_and_ends_nothing(tmp_path: Path):
    store = Store(tmp_path)
    dataset = dataset_with_rejects(store)
    end_run_record(store, {"name": "n"}, "run", results=None, artifacts=[dataset.key], failed=[])
    (dataset.path / "rejects.jsonl").write_bytes(b'{"id": 3}\n\x00\n')
    assert [line for line in status(store) if dataset.key in line and "is not known" in line]


WRONG = (None, [], {}, "x", 1, [None], {"x": None})


@pytest.mark.parametrize(
    "damage", ["", "null", "[]", "{}", '{"name": "toy", ', "\x80", "[" * 99_999]
)
def test_a_damaged_record_hides_no_other(
    damage: str, parcel: Callable[..., Done], tmp_path: Path, capsys
):
    store = Store(tmp_path / "store")
    end_run_record(store, {"name": "toy"}, RUN, results=None, artifacts=[], failed=["a: broke"])
    path = tmp_path / "store" / "runs" / "damaged-1.json"
    path.write_bytes(damage.encode("latin-1"))
    done = parcel("status", "--store", store.uri)
    assert done.code == 0, done.err
    (line,) = (line for line in done.out.splitlines() if "damaged-1" in line)
    assert line.startswith(f"{store.uri}/runs/damaged-1.json ")
    assert "runs that ended: 1\n" in done.out
    assert "studies: 1\n" in done.out
    site = Site(store, lambda page: None)
    for page in (Page("start"), Page("runs")):
        shown = site.html(page)
        assert "damaged-1.json" in shown
        assert "toy" in shown
    with pytest.raises(ValueError, match=r"damaged-1\.json"):
        find_garbage(store, older_than=0.0)


@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
def test_a_record_with_a_damaged_field_is_shown_or_named(wrong: object, tmp_path: Path):
    """Of any field, and of the config's: what is shown never fails of it."""
    store = Store(tmp_path / "store")
    config = {"name": "toy", "num_seeds": 3, "num_pretrain_seeds": 1, "methods": ["vanilla"]}
    config |= {"transfers": {}, "compute": {}, "keep": {}}
    key = "results-0123456789abcdef-01234567"
    begin_run_record(store, config, "one", artifacts=[], given="parcel run toy")
    end_run_record(store, config, "one", results=key, artifacts=[key], failed=[])
    begin_run_record(store, config, "two", artifacts=[], given="parcel run toy")
    end_run_record(store, config, "two", results=key, artifacts=[key], failed=[], headline={})
    path = tmp_path / "store" / "runs" / "toy-two.json"
    whole = json.loads(path.read_text())
    values = [{**whole, field: wrong} for field in whole]
    values += [{**whole, "config": {**config, field: wrong}} for field in config]
    for value in values:
        path.write_text(json.dumps(value))
        lines = "\n".join(status(store))
        assert "toy-two.json" in lines or "studies: none" not in lines, value
        Site(store, lambda page: None).html(Page("start"))
