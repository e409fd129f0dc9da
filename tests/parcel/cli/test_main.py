"""The command line: instant help, one example each, errors in one line."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from docs.reference.pages import leaves
from flows.graph.graph import PHASES
from parcel.cli.main import app
from tests.commands import run_commands

PARCEL = str(Path(sys.executable).with_name("parcel"))
CONFIGS = Path(__file__).parents[3] / "configs"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PARCEL, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [words for words, _ in leaves(typer.main.get_command(app))])
def test_every_command_has_help_with_an_example(words: str):
    done = CliRunner().invoke(app, [*words.split(), "--help"])
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    assert f"Example: parcel {words}" in text
    # What a help text has in brackets is markup to whoever prints it, and lost.
    assert not re.search(r"\s\.(\s|$)", text)


def test_help_imports_nothing_heavy():
    heavy = ("jax", "numpy", "prefect", "ray")
    code = f"import parcel.cli.main, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
    began = time.monotonic()
    call("--help")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("words", [["fly"], ["results", "--colour"], ["serve", "--port", "x"]])
def test_unknown_words_are_the_callers_mistake(words: list[str]):
    done = call(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("parcel: ")
    assert done.stderr.count("\n") == 1


def test_it_is_called_as_a_module_too(tmp_path: Path):
    words = [sys.executable, "-m", "parcel", "fly"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr[:30]) == (2, "parcel: No such command 'fly'.")


MISSPELT = [
    (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
    (["lineage", "trcae"], "No such command 'trcae'. Did you mean 'trace'?"),
    (["predikt"], "No such command 'predikt'. Did you mean 'predict'?"),
    (["run", "study"], "There is a file study.yaml: name it with its suffix."),
    (["data", "fetch", "--hlep"], "No such option: --hlep"),
    (["run", "--seeds", "5"], "--seeds; a study's keys have no dashes: num_seeds=VALUE"),
    (
        ["prepare", "--profile", "3:4"],
        "--profile must be without --until prepare, which trains",
    ),
    (["serve", "--watch", "--port", "0"], "--watch must be without a server's options;"),
    (["train", "--profile", "3"], 'profile must be two steps from 1 on, such as "10:13", got'),
    (["run", "stuyd.yaml"], "No such file or directory; did you mean study.yaml?"),
    (["plan", "study.yml"], "No such file or directory; did you mean study.yaml?"),
    (["run", "smal.yaml"], f"; did you mean {CONFIGS / 'small.yaml'}?"),
    (["run", "--explain", "--rebuild", "stage1 vanila"], "; did you mean stage1 vanilla?"),
    (["run", "--explain", "--rebuild", "no*"], "got 'no*'; `--explain` lists them."),
    (["run", "nothing/near.yaml"], "near.yaml: No such file or directory."),
    (["run", "seeds=5"], "seeds: no such key; did you mean num_seeds?"),
    (["status", "--store", "/dev/null"], "got '/dev/null', which is a file or below one."),
    (["gc", "--store", "study.yaml/x"], "study.yaml/x', which is a file or below one."),
]
"""Words of a command, and what it says of them."""


@pytest.fixture(scope="module")
def misspelt(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, subprocess.CompletedProcess[str]]:
    """How the commands of `MISSPELT` end beside a study.yaml; each alone is mostly imports."""
    folder = tmp_path_factory.mktemp("misspelt")
    (folder / "study.yaml").write_text("base: demo\nname: study\n")
    done = run_commands([words for words, _ in MISSPELT], cwd=folder)
    return {" ".join(each.args): each for each in done}


@pytest.mark.parametrize(
    ("words", "told"), [pytest.param(" ".join(w), told, id=" ".join(w)) for w, told in MISSPELT]
)
def test_a_misspelt_word_is_told_with_the_one_that_is_meant(
    words: str, told: str, misspelt: dict[str, subprocess.CompletedProcess[str]]
):
    """Exit code 2, and one line with the cure."""
    done = misspelt[words]
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "usage"),
    [(phase, "run") for phase in PHASES]
    + [(name, f"model {name}") for name in ("convert", "flops", "spectral", "score", "predict")]
    + [("check-connector", "model check"), ("watch", "serve")],
)
def test_a_short_word_has_the_options_of_what_it_stands_for(word: str, usage: str):
    done, full = (CliRunner().invoke(app, [*words, "--help"]) for words in ([word], usage.split()))
    assert (done.exit_code, done.output) == (0, full.output)


def test_flags_that_would_end_each_worker_are_refused_before_work_begins(tmp_path: Path):
    environment = {**os.environ, "XLA_FLAGS": "--xla_nope=1"}
    options = {"capture_output": True, "text": True, "timeout": 60, "env": environment}
    done = subprocess.run([PARCEL, "run", "--store", str(tmp_path / "store")], **options)
    assert done.returncode == 2
    assert done.stderr.startswith("parcel: XLA_FLAGS ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "store").exists()
    words = ["doctor", "--engine", "none", "--store", str(tmp_path / "store")]
    doctor = subprocess.run([PARCEL, *words], **options)
    assert doctor.returncode == 1
    assert "BAD  xla        XLA_FLAGS must be " in doctor.stdout


READERS = [
    ["status"], ["gc"], ["accept", "x"], ["results", "small"],
    ["lineage", "show", "dataset-1"], ["lineage", "trace", "small/chartqa/parcel/64"],
    ["lineage", "verify", "small"], ["lineage", "replay", "small/chartqa/parcel/64"],
    ["lineage", "diff", "small/a", "small/b"], ["lineage", "export", "small"],
    ["lineage", "rebuild"], ["schedule", "list"], ["schedule", "stop", "small"],
    ["data", "show", "dataset-1", "--out", "sheet.html"], ["data", "rejects", "dataset-1"],
]  # fmt: skip


@pytest.mark.slow
def test_what_only_reads_makes_no_store_and_says_that_there_is_none(tmp_path: Path):
    """Each reader of a store that is not there ends with one line, and none makes a file."""
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    commands = [[*words, "--store", "typo"] for words in READERS]
    for done in run_commands(commands, cwd=tmp_path, env=environment):
        assert done.returncode == 2, done
        assert re.search(r"no store (at )?\S*typo", done.stderr), done
        assert done.stderr.count("\n") == 1, done
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_an_explanation_makes_no_store(tmp_path: Path):
    """A run and a sweep are told without a store, which is not there afterwards either."""
    store = str(tmp_path / "store")
    commands = [[command, "--explain", "--store", store] for command in ("run", "sweep")]
    for done in run_commands(commands, cwd=tmp_path):
        assert done.returncode == 0, done.stderr
        assert "corpus is new" in done.stdout
    assert [*tmp_path.iterdir()] == []


def test_the_version_is_told_with_its_commit():
    from infra.store.environment import git_state

    done = call("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"parcel {git_state()['version']} (commit ")
    assert str(git_state()["commit"]) in done.stdout


def test_no_process_of_a_command_waits_for_words():
    script = "import parcel, os; raise SystemExit('PYTHONINSPECT' in os.environ)"
    environment = {**os.environ, "PYTHONINSPECT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "SystemExit: True" not in done.stderr
