"""What `import parcel` offers in a notebook: the same as the commands, as values."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import parcel as notebook
from flows.config.load import load
from flows.lineage.results import show_results
from infra.errors import ConfigError
from infra.store.store import Store

ROOT = Path(__file__).parents[2]
CODE = "import parcel; print(parcel.__file__, parcel.load().name)"


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_it_is_found_beside_a_checkout_that_is_named_parcel(tmp_path: Path):
    """The checkout's folder is no package, and must not pass for one."""
    (tmp_path / "parcel" / "flows").mkdir(parents=True)
    done = python(CODE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [notebook.__file__, "demo"]


def test_importing_it_imports_nothing_heavy(tmp_path: Path):
    heavy = ("flows", "infra", "jax", "numpy", "pandas", "prefect", "pydantic", "ray", "typer")
    code = f"import parcel, sys; print([m for m in {heavy} if m in sys.modules])"
    assert python(code, tmp_path).stdout.strip() == "[]"


def test_a_study_is_loaded_as_the_commands_load_it(tmp_path: Path):
    file = tmp_path / "wide.yaml"
    file.write_text("base: demo\nname: wide\nnum_seeds: 4\n")
    changes = {"num_seeds": 5, "stage1.peak_lr": 1e-5, "methods": ("vanilla", "mqt")}
    words = ["num_seeds=5", "stage1.peak_lr=1.0e-5", "methods=[vanilla, mqt]"]
    assert notebook.load(file, **changes) == load(file, words)
    assert notebook.load() == load()
    with pytest.raises(ConfigError, match=r"^demo: num_seeds: .* got 0$"):
        notebook.load(num_seeds=0)


def test_a_study_that_ran_is_loaded_by_its_name(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"study must be demo, .* got 'gone'"):
        notebook.load("gone", store=str(tmp_path / "store"))


def test_results_are_the_commands_table(toy: Store):
    table = notebook.results("toy", store=toy.uri)
    assert (
        table.text()
        == repr(table)
        == table._repr_markdown_()
        == show_results(toy, "toy", "md", None)
    )
    with pytest.raises(ConfigError, match=r"^RUN must name a finished run, got 'gone'"):
        notebook.results("gone", store=toy.uri)


def test_without_pandas_a_frame_is_refused_in_one_line(toy: Store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"^to_pandas needs pandas.*; pip install pandas"):
        notebook.results("toy", store=toy.uri).to_pandas()


def test_a_trace_is_the_commands(toy: Store, parcel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARCEL_STORE", toy.uri)
    name = next(iter(toy.keys("predictions")))
    assert notebook.trace(name) + "\n" == parcel("lineage", "trace", name).out
    assert name in notebook.trace(name)


def test_the_page_shows_what_there_is():
    page = (ROOT / "docs" / "howto" / "results.md").read_text()
    shown = set(re.findall(r"\bparcel\.(\w+)\(", page))
    assert shown == set(notebook.__all__)


def test_wrong_requests_start_nothing(tmp_path: Path):
    store = tmp_path / "store"
    with pytest.raises(ConfigError, match=r"^num_seeds must be given to parcel\.load"):
        notebook.run(load(), num_seeds=2, store=str(store))
    with pytest.raises(ConfigError, match=r"^sweep: seed: no such key"):
        notebook.sweep("demo", seed=2, store=str(store))
    assert not (store / "prefect").exists()
