"""Modules of ours run where they are started, whatever else has their names there."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.processes.module import (
    PACKAGES,
    hiding_files,
    module_command,
    python_path,
    see_new_files,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which each of our packages has a namesake."""
    for name in PACKAGES[1:]:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    (tmp_path / PACKAGES[0]).mkdir()
    (tmp_path / PACKAGES[0] / "__init__.py").touch()
    return tmp_path


def test_a_child_imports_ours(project: Path):
    words = module_command("infra.processes.child", "not a number")
    done = subprocess.run(words, cwd=project, capture_output=True, text=True)
    assert "ValueError: invalid literal for int() with base 10: 'not a number'" in done.stderr


def test_the_files_in_the_way_are_found_by_where_imports_look(project: Path, tmp_path: Path):
    found = dict(hiding_files(PACKAGES, [str(project)]))
    assert found.pop(PACKAGES[0]) == f"{project}/{PACKAGES[0]}/__init__.py"
    assert found == {name: f"{project}/{name}.py" for name in PACKAGES[1:]}
    # A folder without `__init__.py` is none, and ours are not in their own way.
    (tmp_path / "plain" / "model").mkdir(parents=True)
    assert [*hiding_files(PACKAGES, [str(tmp_path / "plain"), str(ROOT)])] == []
    assert [*hiding_files(["numpy", "no_such_package"], [str(tmp_path / "plain")])] == []


def test_the_path_of_a_child_begins_with_ours_only_where_something_is_in_the_way(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", ["/usr/lib/python", str(ROOT)])
    assert python_path() == f"/usr/lib/python{os.pathsep}{ROOT}"
    monkeypatch.setattr(sys, "path", ["", str(ROOT)])
    monkeypatch.chdir(project)
    assert python_path() == os.pathsep.join([str(ROOT), str(project), str(ROOT)])


def test_import_parcel_takes_ours_in_a_notebook_of_such_a_folder(project: Path):
    # The folder of a notebook is first on its path.
    (project / "parcel.py").unlink()
    ask = "import sys; sys.path[1:1] = ['{root}']; import parcel, model.config; "
    ask += "print(model.config.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", ask.format(root=ROOT)], cwd=project, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(ROOT / "model" / "config.py"), done.stderr
    # Too late: theirs is there already.
    (project / "model.py").write_text("class Net: pass\n")
    late = f"import model; {ask.format(root=ROOT)}"
    done = subprocess.run([sys.executable, "-c", late], cwd=project, capture_output=True, text=True)
    line = f"ImportError: {project}/model.py hides the package model of parcel-pipeline: import"
    assert line in done.stderr


def test_threads_may_look_for_new_files_at_the_same_time(monkeypatch: pytest.MonkeyPatch):
    # Folders that are not there have None in Python's cache, which is deleted at each look.
    cache = {f"/nowhere/{number}": None for number in range(5000)}
    monkeypatch.setattr(sys, "path_importer_cache", sys.path_importer_cache | cache)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(5):
                sys.path_importer_cache.update(cache)
                list(pool.map(lambda _: see_new_files(), range(4)))
    finally:
        sys.setswitchinterval(before)
