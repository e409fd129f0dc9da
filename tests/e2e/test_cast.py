"""A study that keeps its transfers in bfloat16 and is asked for one more budget later."""

import csv
import io
import re
from pathlib import Path

import pytest

from infra.store.manifest import Manifest
from infra.store.store import Store
from tests.e2e.conftest import SMALLEST, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

STUDY = (
    SMALLEST,
    "hygiene=null",
    "methods=[vanilla,parcel]",
    "train_budgets={parcel: [16, 256]}",
    "keep={transfers: bfloat16}",
)
CELL = "smallest/chartqa:test_human/parcel/16"


def done(store: Path, *words: str) -> str:
    """Runs a command that must succeed, and returns its output."""
    ended = parcel(store, *words, timeout=900)
    assert ended.returncode == 0, f"{words} {ended.stdout[-3000:]} {ended.stderr[-3000:]}"
    return ended.stdout


def manifests(store: Path, kind: str) -> dict[str, Manifest]:
    return {a.key: a.manifest for a in Store(store).artifacts(kind)}


def test_another_budget_is_decoded_from_what_was_kept(tmp_path: Path):
    store = tmp_path / "store"
    ran = done(store, "run", *STUDY)
    assert "in the store, with keep.transfers=bfloat16: " in ran
    assert "‡" not in ran
    before = {kind: manifests(store, kind) for kind in ("checkpoint", "cast", "predictions")}
    transfers = {k for k, m in before["checkpoint"].items() if m.name.startswith("transfer ")}
    assert {m.inputs["checkpoint"].key for m in before["cast"].values()} == transfers
    assert len(transfers) == 2

    # gc lets the float32 parameters go, and keeps those in bfloat16.
    done(store, "gc", "--delete", "--older-than", "0s")
    opened = Store(store)
    assert all(opened.find_pruned(key) for key in transfers)
    assert all(opened.find(key) for key in before["cast"])
    assert "0 made, everything reused" in done(store, "run", *STUDY)

    # One more budget: nothing is trained, and what was decoded before is reused.
    more = (*STUDY, "budgets=[16,256]")
    explained = done(store, "run", *more, "--explain")
    (line,) = re.findall(r"^\w+ +transfer parcel .*$", explained, re.MULTILINE)
    assert re.match(r"new .* decoded from parameters in bfloat16, since the float32 ones", line)
    assert re.search(r"^reused +transfer vanilla", explained, re.MULTILINE)
    table = done(store, "run", *more)
    after = {kind: manifests(store, kind) for kind in before}
    assert after["checkpoint"].keys() == before["checkpoint"].keys()
    assert after["cast"].keys() == before["cast"].keys()
    decoded = [m for k, m in after["predictions"].items() if k not in before["predictions"]]
    assert decoded
    for manifest in decoded:
        assert manifest.inputs["checkpoint"].key in before["cast"]
        assert (manifest.config["budget"], manifest.counts["precision"]) == (16, "bfloat16")
    assert not any("precision" in m.counts for m in before["predictions"].values())

    # The table says which cell it is.
    assert "‡ was decoded from parameters kept in bfloat16" in table
    rows = csv.DictReader(io.StringIO(done(store, "results", "smallest", "--format", "csv")))
    marked = {(row["method"], row["budget"]) for row in rows if row["bfloat16"] == "True"}
    assert marked == {("parcel", "16")}

    # Its history leads through the cast to the training, and it can be made again from the cast.
    traced = done(store, "lineage", "trace", "smallest", "--cell", CELL.partition("/")[2])
    places = [
        traced.index(text)
        for text in ("checkpoint: cast parcel chartqa", "checkpoint: transfer parcel chartqa")
    ]
    assert places == sorted(places)
    assert "precision bfloat16" in traced
    replayed = done(store, "lineage", "replay", decoded[0].key)
    assert "the same bytes, 1 files" in replayed
    assert ", 0 problems" in done(store, "lineage", "verify")
    assert "0 made, everything reused" in done(store, "run", *more)
