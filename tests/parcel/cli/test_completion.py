"""What a shell is offered at the TAB key, in the words of its own protocol."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.flows.conftest import toy  # noqa: F401
from tests.parcel.cli.test_main import PARCEL


def offered(words: str, store: str, folder: Path) -> str:
    """Answers as Zsh gets them."""
    variables = {"_PARCEL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
    done = subprocess.run(
        [PARCEL],
        env={**os.environ, **variables, "PARCEL_STORE": store},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected", "others"),
    [
        ("parcel results t", ['"toy"'], ["mine.yaml"]),
        ("parcel run ", ['"toy"', '"mine.yaml"', '"more/"'], ["notes.txt"]),
        ("parcel train more/", ['"more/other.yaml"'], ["toy"]),
        ("parcel lineage trace toy --cell colors/p", ["colors/parcel/16"], ["mqt", "shapes"]),
        ("parcel lineage diff toy/shapes/m", ["toy/shapes/mqt/64"], ["parcel/", "colors"]),
        ("parcel lineage trace nope --cell ", [], ["colors"]),
    ],
)
def test_studies_files_and_cells_are_offered(
    words: str,
    expected: list[str],
    others: list[str],
    tmp_path: Path,
    toy: Store,  # noqa: F811
):
    (tmp_path / "more").mkdir()
    for name in ("mine.yaml", "notes.txt", "more/other.yaml"):
        (tmp_path / name).touch()
    found = offered(words, toy.uri, tmp_path)
    assert [word for word in expected if word not in found] == []
    assert [word for word in others if word in found] == []


def test_a_store_that_is_not_there_offers_nothing(tmp_path: Path):
    for store in (str(tmp_path / "none"), "gs://nobody/nothing"):
        assert "toy" not in offered("parcel results t", store, tmp_path)


def test_nothing_heavy_is_imported_for_it(toy: Store):  # noqa: F811
    heavy = ("jax", "numpy", "prefect", "ray", "gcsfs")
    code = (
        "import sys, types\n"
        "from parcel.cli.completion import complete_target\n"
        f"context = types.SimpleNamespace(params={{'store': {toy.uri!r}}}, args=[])\n"
        "assert complete_target(context, 'toy/colors/mqt') == "
        "['toy/colors/mqt/16', 'toy/colors/mqt/64']\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
