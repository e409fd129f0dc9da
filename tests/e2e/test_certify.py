"""`parcel certify` and `parcel verify` of a study that ran, by their commands."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.lookup.results import results_spec
from flows.report.cells import CellKey
from flows.steps.kind import StepContext
from flows.steps.kinds import results as results_kind
from flows.steps.kinds import scores as scores_kind
from flows.steps.registry import typed_config
from infra.store.digest import file_sha256, listing_sha256
from infra.store.manifest import File, Manifest, Recipe
from infra.store.store import Artifact, Attempt, Store, manifest_name
from model.files import PREDICTIONS
from tests.e2e.conftest import Finished, parcel

pytestmark = pytest.mark.e2e


@dataclasses.dataclass(frozen=True)
class Certified:
    """A store, the author's public key, and a certificate of the store's table."""

    store: Path
    public_key: str
    file: Path


@pytest.fixture(scope="module")
def certified(smallest: Finished, tmp_path_factory: pytest.TempPathFactory) -> Certified:
    folder = tmp_path_factory.mktemp("certified")
    return certify(smallest.store, folder)


def certify(store: Path, folder: Path) -> Certified:
    key, file = folder / "author.pem", folder / "smallest.cert.json"
    made = parcel(store, "certify", "--new-key", str(key))
    done = parcel(store, "certify", "smallest", "--key", str(key), "--out", str(file))
    assert done.returncode == 0, done.stderr
    return Certified(store, made.stdout.strip(), file)


def levels(printed: str) -> dict[str, str]:
    """Level -> its state, of the table that `verify` prints."""
    rows = printed.splitlines()
    table = rows[next(n for n, row in enumerate(rows) if row.startswith("level ")) + 1 :]
    states = ("passed", "failed", "not checked")
    return {
        row.split()[0]: next(s for s in states if row.split(maxsplit=1)[1].startswith(s))
        for row in table
    }


def test_the_file_alone_is_enough_elsewhere(certified: Certified, tmp_path: Path):
    shutil.copy(certified.file, tmp_path)
    words = ("verify", certified.file.name, "--public-key", certified.public_key)
    done = parcel(tmp_path / "no-store", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {"signed": "passed", "consistent": "passed"}
    assert levels(done.stdout) == {**found, "traced": "not checked", "re-made": "not checked"}


@pytest.mark.slow
def test_a_copy_of_the_store_is_traced_and_made_again(certified: Certified, tmp_path: Path):
    shutil.copytree(certified.store, tmp_path / "copy", symlinks=True)
    words = ("verify", str(certified.file), "--store", str(tmp_path / "copy"), "--replay", "5%")
    done = parcel(tmp_path / "none", *words, "--seed", "17")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(levels(done.stdout).values()) == {"passed"}
    assert "the same bytes" in done.stdout


@pytest.mark.slow
def test_answers_forged_with_all_that_follows_from_them_are_not_made_again(
    smallest: Finished, tmp_path: Path
):
    shutil.copytree(smallest.store, tmp_path / "store", symlinks=True)
    store = Store(tmp_path / "store")
    (path,) = (store.state / "runs").glob("smallest-*.json")
    record = json.loads(path.read_text())
    table = store.get(record["results"])
    role = sorted(r for r in table.manifest.inputs if CellKey.of_role(r))[0]
    scored = forge_cell(store, store.get(table.manifest.inputs[role].key))
    inputs = {**table.manifest.inputs, role: scored.as_input}
    forged = remake(store, table.manifest, inputs, results_spec(table.manifest), results_kind.make)
    path.write_text(json.dumps({**record, "results": forged.key}))
    seen = certify(store.state, tmp_path)
    # The seed that draws this cell, as any of a verifier's may.
    cells = sorted(r for r in inputs if CellKey.of_role(r))
    seed = next(s for s in range(99) if role in random.Random(s).sample(cells, 1))
    words = ("--store", str(store.state), "--replay", "1%", "--seed", str(seed))
    done = parcel(tmp_path / "none", "verify", str(seen.file), *words)
    assert done.returncode == 1, done.stdout
    found = {"signed": "passed", "consistent": "passed", "traced": "passed"}
    assert levels(done.stdout) == {**found, "re-made": "failed"}
    assert "failed first: re-made" in done.stderr


def forge_cell(store: Store, scored: Artifact) -> Artifact:
    """Puts right answers in the place of a model's, and scores them."""
    predictions = store.get(scored.manifest.inputs["predictions"].key)
    manifest = predictions.manifest
    lines = predictions.path / PREDICTIONS
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    lines.unlink()
    lines.write_text(
        "".join(
            json.dumps({**row, "prediction": row["answers"][0]}, ensure_ascii=False, sort_keys=True)
            + "\n"
            for row in rows
        )
    )
    digest = file_sha256(lines)
    checkpoint = manifest.inputs["checkpoint"].content
    forged: Manifest = dataclasses.replace(
        manifest,
        files={PREDICTIONS: File(sha256=digest, size=lines.stat().st_size)},
        content=listing_sha256({PREDICTIONS: digest, "checkpoint": checkpoint}),
    )
    (store.state / manifest_name(forged.key)).unlink()
    (store.state / manifest_name(forged.key)).write_text(forged.to_json())
    store = Store(store.state)
    inputs = {**scored.manifest.inputs, "predictions": store.get(forged.key).as_input}
    spec = typed_config("scores", scored.manifest.config)
    return remake(store, scored.manifest, inputs, spec, scores_kind.make)


def remake(store: Store, was: Manifest, inputs: Any, spec: Any, make: Any) -> Artifact:
    recipe = Recipe(
        kind=was.kind,
        name=was.name,
        inputs=inputs,
        config=spec,
        seed=was.seed,
        libraries=was.libraries,
        code=was.code,
        source=was.source,
        labels=was.environment["labels"],
    )
    attempt = Attempt(store, recipe)
    work = StepContext(recipe, store, attempt.path, attempt.path)
    list(make(work))
    attempt.counts |= work.counts
    attempt.content = work.content
    return attempt.commit({name: was.environment[name] for name in ("packages", "hardware")})
