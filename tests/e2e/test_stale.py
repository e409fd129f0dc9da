"""A checkout whose code has changed, on a store that was filled before: told, refused, kept."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import CONFIG, Finished, environment

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

ROOT = Path(__file__).parents[2]
EDITED = "model/eval/metrics/relaxed_accuracy.py"


UNUSED = "\n\ndef _unused() -> None:\n    pass\n"


def copied(folder: Path) -> Path:
    """Returns a copy of the checkout."""
    for package in ("flows", "infra", "model", "parcel", "pipelines"):
        shutil.copytree(ROOT / package, folder / package)
    return folder


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout in which one metric is another program, to the same effect."""
    copy = copied(tmp_path_factory.mktemp("checkout"))
    path = copy / EDITED
    path.write_text(path.read_text() + UNUSED)
    return copy


@pytest.fixture(scope="module")
def store(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished.store, tmp_path_factory.mktemp("stale") / "store"))


def run(checkout: Path, store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line of another checkout."""
    code = "from parcel.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=checkout,
        env={**environment(store), "PYTHONPATH": str(checkout), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=600,
    )


def states(output: str) -> dict[str, str]:
    rows = [line.split(maxsplit=1) for line in output.splitlines()[:-3]]
    return {name.split("  ")[0]: state for state, name in rows}


def test_a_comment_changes_nothing(edited: Path, store: Path, tmp_path: Path):
    commented = copied(tmp_path)
    path = commented / "model" / "train" / "step.py"
    path.write_text(f"# Said again.\n{path.read_text()}")
    done = run(commented, store, "run", CONFIG, "--explain")
    assert done.returncode == 0, done.stderr
    assert set(states(done.stdout).values()) == {"reused"}


def test_an_edited_metric_scores_the_answers_that_there_are(finished: Finished, tmp_path: Path):
    store, copy = tmp_path / "store", copied(tmp_path / "checkout")
    shutil.copytree(finished.store, store)
    path = copy / EDITED
    wrong = path.read_text().replace("return float(", "return 1.0 - float(")
    assert wrong != path.read_text()
    path.write_text(wrong)
    before = {artifact.key: artifact.manifest for artifact in Store(store).artifacts()}
    done = run(copy, store, "run", CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr
    made = [a.manifest for a in Store(store).artifacts() if a.key not in before]
    old = [m for m in before.values() if m.kind == "scores"]
    # No answer is decoded again: every kind but these is as it was.
    assert {m.kind for m in made} == {"scores", "chance", "results"}
    scores = {m.name: m for m in made if m.kind == "scores"}
    assert {*scores} == {m.name for m in old}
    assert all(
        scores[m.name].counts["score"] == pytest.approx(100 - float(m.counts["score"]))
        and scores[m.name].inputs == m.inputs
        for m in old
    )


def test_changed_code_is_told_refused_kept_and_marked(edited: Path, store: Path):
    before = {artifact.key for artifact in Store(store).artifacts()}
    done = run(edited, store, "run", CONFIG, "--explain")
    assert done.returncode == 0, done.stderr
    stale = {name for name, state in states(done.stdout).items() if state == "stale"}
    assert {name.split()[0] for name in stale} == {"transfer", "chance"}
    assert f"{EDITED.removesuffix('.py').replace('/', '.')}._unused changed since" in done.stdout

    done = run(edited, store, "run", CONFIG, "compute.rebuild_limit=0")
    assert done.returncode == 2
    assert "_unused changed, which transfer vanilla chartqa" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {artifact.key for artifact in Store(store).artifacts()} == before

    done = run(edited, store, "accept", "transfer *", CONFIG)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * 2 * (1 + 3 * 2)
    done = run(edited, store, "run", CONFIG, "compute.rebuild_limit=0")
    assert done.returncode == 2  # Chance is left.
    done = run(edited, store, "run", CONFIG, "compute.rebuild_limit=0", "--rebuild", "chance *")
    assert done.returncode == 0, done.stdout + done.stderr
    new = [a.manifest for a in Store(store).artifacts() if a.key not in before]
    assert sorted(m.kind for m in new) == ["chance", "chance", "results"]
    assert "kept although its code has changed" in done.stdout
    # The checkout of before has its own table still.
    done = run(ROOT, store, "run", CONFIG, "--explain")
    assert set(states(done.stdout).values()) == {"reused"}


def test_a_changed_default_is_told_and_refused(store: Path, tmp_path: Path):
    copy = copied(tmp_path)
    config = copy / "model" / "train" / "config.py"
    before = config.read_text()
    changed = before.replace("import NOT_IDENTITY", "import NOT_IDENTITY, born").replace(
        "    grad_clip: float = 1.0\n",
        "    grad_clip: float = dataclasses.field(default=0.5, metadata=born(1.0))\n",
    )
    assert changed.count("born") == 2
    config.write_text(changed)
    done = run(copy, store, "run", CONFIG, "--explain")
    assert done.returncode == 0, done.stderr
    value = "stage1.grad_clip 1.0 → 0.5: the code's value, not the config's"
    assert re.search(rf"^new +stage1 vanilla +{re.escape(value)}$", done.stdout, re.MULTILINE)
    assert {state for name, state in states(done.stdout).items() if "prepare" in name} == {"reused"}
    done = run(copy, store, "run", CONFIG, "compute.rebuild_limit=0")
    assert done.returncode == 2
    assert "stage1.grad_clip 1.0 → 0.5 by the code" in done.stderr
    assert done.stderr.count("\n") == 1
    # The old value is the old identity; the edit itself makes it stale.
    done = run(copy, store, "run", CONFIG, "--explain", "stage1.grad_clip=1.0")
    assert states(done.stdout)["stage1 vanilla"] == "stale", done.stdout


def test_a_training_is_kept_if_both_codes_agree_on_its_losses(store: Path, tmp_path: Path):
    words = ("accept", "stage1 vanilla", CONFIG, "--replay", "3")
    copy = copied(tmp_path)
    step, rates = copy / "model" / "train" / "step.py", copy / "model" / "train" / "optimizer.py"
    before = rates.read_text()
    changed = before.replace("b2=", "b2=0.5 * ")
    assert changed != before
    rates.write_text(changed)
    done = run(copy, store, *words)
    assert done.returncode == 2
    told = r"stage1 vanilla is not kept: .* loss \d\.\d+ after [23] updates, .* loss \d\.\d+ after"
    assert re.search(told, done.stderr), done.stderr
    rates.write_text(before)
    step.write_text(step.read_text() + UNUSED)
    done = run(copy, store, *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"both .* loss \d\.\d+ after 3 updates\)$", done.stdout.strip())
    kept = run(copy, store, "run", CONFIG, "--explain")
    assert states(kept.stdout)["stage1 vanilla"] == "accepted"
    traced = run(
        copy, store, "lineage", "trace", "tiny", "--cell", "chartqa:test_human/vanilla/256"
    )
    assert re.search(r"stage1 vanilla.* † kept ", traced.stdout)
