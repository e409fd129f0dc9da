"""Every command on a page exists, with every option that it is shown with.

`tests/e2e/test_documents.py` runs those that need nothing but a finished study; the others are run
by the tests of what they do.
"""

import re
import shlex
from typing import Any

import pytest
import typer

from parcel.cli.main import app
from tests.docs.pages import PAGES, ROOT, commands

ELSEWHERE = {
    "the shell": {"cat", "eval", "export", "ln", "mkdir"},
    "an installer": {"pip", ".venv/bin/pre-commit"},
    # Not installed here. What they are given is checked in tests/infra/deploy.
    "a cloud": {"docker", "gcloud", "kubectl", "terraform", "tf", "tf()"},
    "Slurm": {"sbatch"},  # In tests/slurm, where it can be installed.
    # Asked for their help by tests/infra/deploy/test_commands.py, which takes seconds.
    "Ray and Prefect": {"prefect", "ray"},
}


_UsageError = typer.BadParameter.__mro__[1]
assert _UsageError.__name__ == "UsageError"


def parcel_words(command: str) -> list[str] | None:
    """Returns the words of a `parcel` command without those of the shell; None for another one."""
    words = [word for word in shlex.split(command) if word != "&"]
    words = words[: words.index(">")] if ">" in words else words
    return words[1:] if words[0] == "parcel" else None


def problem(command: str) -> str | None:
    """Returns what a command names that does not exist, None where all of it does."""
    words = [word for word in shlex.split(command) if not word.startswith("PREFECT_")]
    parcel = parcel_words(command)
    if parcel is not None:
        found: Any = typer.main.get_command(app)
        while hasattr(found, "commands"):
            if not parcel or parcel[0] not in found.commands:
                return f"no command {parcel[:1]}"
            found, parcel = found.commands[parcel[0]], parcel[1:]
        try:  # Raises at an unknown option and at a missing argument.
            found.make_context("parcel", parcel)
        except _UsageError as error:
            return error.format_message()
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if words[1] in targets else f"no target {words[1]}"
    elif words[:2] == ["python", "-m"]:
        path = ROOT / words[2].replace(".", "/")
        files = path.with_suffix(".py"), path / "__main__.py"
        return None if any(file.exists() for file in files) else f"no module {words[2]}"
    elif words[0] == "python":  # A script that some page has its reader write.
        shown = any(f"\n# {words[1]}\n" in page.read_text() for page in PAGES)
        return None if shown else f"no page shows {words[1]}"
    elif not any(words[0] in programs for programs in ELSEWHERE.values()):
        return f"no program {words[0]}"
    return None


def test_every_command_of_the_pages_exists():
    found = {command: problem(command) for command in commands()}
    assert len(found) > 100
    assert {command: said for command, said in found.items() if said} == {}


@pytest.mark.parametrize(
    "command",
    [
        "parcel frobnicate",
        "parcel lineage frobnicate",
        "parcel run --frobnicate",
        "parcel model score cider",  # Of what?
        "make frobnicate",
        "python -m perf.frobnicate",
        "python frobnicate.py",
        "frobnicate",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str):
    assert problem(command)
