"""Every command of the documentation runs in a test, or its words and behaviour are tested."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from parcel.cli.main import app
from tests.docs.pages import ROOT, commands
from tests.infra.deploy.test_commands import options_of

ON_A_STUDY = "tests/e2e/test_documents.py::test_commands_run_on_a_small_study"
EXPLAINED = "tests/e2e/test_documents.py::test_runs_are_explained"
TUTORIAL = "tests/e2e/test_tutorials.py::test"
CLOUD = "nowhere: it needs a cloud; what it is given is checked in tests/infra/deploy"
INSTALLED = "nowhere: it installs; tests run in what `make setup` installed"
CHECKED = "tests/docs/test_commands.py::test_ray_and_prefect_know_their_words"

WAYS = (
    (r"(gcloud|docker|kubectl|tf|terraform|eval|cat|mkdir|export|'tf\(\)') ?.*", CLOUD),
    (r"(pip|\S*pre-commit) install.*|ln -s .*", INSTALLED),
    (r"make .*", "tests/docs/test_commands.py::test_make_has_its_targets"),
    (r"(prefect|ray) .*|'PREFECT_.* prefect .*", CHECKED),
    (r"python -m perf\.(accelerator|topology).*", "tests/perf/test_perf.py::test"),
    (r"python -m pipelines\.hygiene .*", "tests/pipelines/hygiene/test_screen.py::test"),
    (r"parcel (deploy|watch) .*", "tests/e2e/test_deploy.py::test"),
    (r"parcel serve.*", "tests/e2e/test_serve.py::test"),
    (
        r"parcel sweep .*--cron.*",
        "tests/e2e/test_sweep.py::test_a_firing_of_a_schedule_adds_and_an_empty_one_says_so",
    ),
    (
        r"parcel plan configs/paper_224\.yaml .*",
        "tests/flows/plan/test_plan.py::test_a_small_model_is_compiled_for_a_slice_once",
    ),
    (r"parcel prepare .*prepare\.runner.*", "tests/pipelines/prepare/test_runners.py::test"),
    (r"parcel convert .*", "tests/parcel/cli/test_convert.py::test"),
    (r"parcel release .*", "tests/e2e/test_release.py::test"),
    (r"parcel predict .*", "tests/parcel/cli/test_predict.py::test"),
    (r"parcel check-connector .*", "tests/e2e/test_own_connector.py::test"),
    (r"parcel spectral .*", "tests/parcel/cli/test_spectral.py::test"),
    (r"parcel score .*", "tests/parcel/cli/test_score.py::test"),
    (r"parcel doctor.*", "tests/flows/study/test_doctor.py::test_all_is_well"),
    (r"parcel lineage replay .*", "tests/e2e/test_study.py::test_a_cell_is_made_again_to_the_byte"),
    (r"parcel accept .*", "tests/e2e/test_stale.py::test"),
    (r"parcel data mend .*", "tests/flows/study/test_data_mend.py::test"),
    (
        r"parcel data fetch textvqa textcaps .*",
        "tests/pipelines/fetch/test_fetch.py::test_files_are_fetched_unpacked_and_noted",
    ),
    (r"parcel run .*--approve.*", "tests/e2e/test_sweep.py::test_an_approved_run_goes_on"),
    (r"python draw_data\.py|parcel run (study|charts)\.yaml( .*--explain)?", TUTORIAL),
    (r"parcel (results|lineage trace) .*\b(pages|mine/parcel/16)\b.*", TUTORIAL),
    (r"parcel .*easy.vqa.*|parcel data check .*", TUTORIAL),
    (r"parcel (run|sweep) .*", EXPLAINED),
    (r"parcel .*", ON_A_STUDY),
)
"""Pattern of a whole command -> what runs it: the first that matches."""


def way(command: str) -> str:
    return next(said for pattern, said in WAYS if re.fullmatch(pattern, command))


ALL = commands()


@pytest.mark.parametrize("command", ALL)
def test_every_command_is_run_by_somebody(command: str):
    said = way(command)
    path, _, name = said.partition("::")
    if name:
        assert re.search(rf"^def {name}", (ROOT / path).read_text(), re.MULTILINE), said


def parcel_commands() -> Iterator[tuple[str, list[str]]]:
    for command in ALL:
        words = [word for word in shlex.split(command) if word != "&"]
        words = words[: words.index(">")] if ">" in words else words
        if words[0] == "parcel":
            yield command, words[1:]


@pytest.mark.parametrize(("command", "words"), [*parcel_commands()], ids=lambda x: str(x)[:40])
def test_parcel_knows_its_words(command: str, words: list[str]):
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    # Raises at an unknown option, a missing argument.
    assert found.make_context("parcel", words).command is found


@pytest.mark.slow
def test_ray_and_prefect_know_their_words():
    from ray.scripts.scripts import start

    known = {option for parameter in start.params for option in parameter.opts}
    for command in (command for command in ALL if way(command) == CHECKED):
        words = [word for word in shlex.split(command) if not word.startswith("PREFECT_")]
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        if words[:2] == ["ray", "start"]:
            assert options <= known, command
        else:
            told = options_of(*words[:3])
            assert all(re.search(rf"{option}\b", told) for option in options), command


def test_make_has_its_targets():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    used = {command.split()[1] for command in ALL if command.startswith("make ")}
    assert used <= {*targets}


def test_modules_that_are_run_exist():
    for command in ALL:
        if found := re.match(r"python -m ([\w.]+)", command):
            path = ROOT / found[1].replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), command
