"""Code of the user's own: found where it is named, part of a step's code, and sent to workers."""

import importlib.metadata
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.steps import worker
from flows.steps.registry import code_digest, libraries_of, step_code
from flows.steps.user_code import canonical_reference, library_versions, with_user_code
from infra.source_code import checkout
from infra.store.digest import canonical_json
from infra.store.manifest import Recipe
from infra.store.store import Store
from pipelines.sources.own_source import OwnSource

pytestmark = pytest.mark.usefixtures("forget")

METRIC = """
from own_helper import WEIGHT

def f1(prediction, fields):
    return WEIGHT * (prediction in fields["answers"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "own_metric.py", METRIC)
    write(tmp_path / "own_helper.py", "WEIGHT = 1.0\n")
    write(tmp_path / "own_unused.py", "WEIGHT = 2.0\n")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def scores(metric: str) -> dict:
    return {"metric": metric}


def test_a_file_and_what_it_imports_from_beside_it_are_the_steps_code(
    folder: Path, forget: Callable
):
    others = {*checkout().files}  # Of studies that the same process loaded before.
    metric = canonical_reference(f"{folder}/own_metric.py:f1", "parcel.metrics")
    assert metric == "own_metric:f1"
    assert {*checkout().files} - others == {"own/own_metric.py", "own/own_helper.py"}
    plain = step_code("scores", scores("vqa"))
    reached = step_code("scores", scores(metric))
    assert set(reached) - set(plain) == {"own_metric", "own_helper"}
    registry, vqa = "model.eval.metrics.registry", "model.eval.metrics.vqa"
    assert set(plain) - set(reached) == {registry, vqa}
    assert all(plain[name] == digest for name, digest in reached.items() if name in plain)
    before = code_digest("chance", metric)

    def digest(name: str, text: str) -> str:
        write(folder / name, text)
        forget()
        canonical_reference(f"{folder}/own_metric.py:f1", "parcel.metrics")
        return code_digest("chance", metric)

    assert digest("own_metric.py", f'"""Said."""\n# And why.\n{METRIC}') == before
    assert digest("own_unused.py", "WEIGHT = 3.0\n") == before
    assert digest("own_helper.py", "WEIGHT = 0.5\n") != before


def test_a_package_in_a_folder_may_import_from_itself(tmp_path: Path, monkeypatch):
    write(tmp_path / "own_package/__init__.py", "NAME = 'x'\n")
    write(tmp_path / "own_package/scores/__init__.py", "from .rules import rule\nf1 = rule\n")
    write(
        tmp_path / "own_package/scores/rules.py", "from .. import NAME\nfrom ..more import rule\n"
    )
    write(tmp_path / "own_package/more.py", "def rule(prediction, fields):\n    return 0.0\n")
    write(tmp_path / "own_package/other.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert canonical_reference("own_package.scores:f1", "parcel.metrics") == "own_package.scores:f1"
    assert {path for path in checkout().files if path.startswith("own/")} == {
        f"own/own_package/{name}"
        for name in ("__init__.py", "more.py", "scores/__init__.py", "scores/rules.py")
    }


def install(site: Path, name: str, version: str, text: str, points: str = "") -> None:
    """Installs a distribution of one module, as a wheel would be."""
    write(site / f"{name}.py", text)
    info = site / f"{name}-{version}.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    write(info / "RECORD", f"{name}.py,,\n{name}-{version}.dist-info/METADATA,,\n")
    write(info / "entry_points.txt", points)


def test_an_installed_function_counts_by_version_and_does_not_travel(tmp_path: Path, monkeypatch):
    site = tmp_path / "site-packages"
    points = "[parcel.metrics]\nsoft = own_installed:score\n"
    install(site, "own_installed", "1.2", "def score(prediction, fields):\n    return 0\n", points)
    monkeypatch.syspath_prepend(site)
    metric = canonical_reference("soft", "parcel.metrics")
    assert (
        metric
        == canonical_reference("own_installed:score", "parcel.metrics")
        == "own_installed:score"
    )
    assert not any(path.startswith("own/") for path in checkout().files)
    plain = libraries_of("scores", scores("vqa"))
    assert libraries_of("scores", scores(metric)) == {**plain, "own_installed": "1.2"}
    assert "own_installed" not in step_code("chance", metric)


def test_what_a_file_imports_counts_by_version_unless_every_manifest_has_it(tmp_path: Path):
    text = "import json\nimport numpy\nimport yaml\ndef f(p, fields):\n    return 0.0\n"
    canonical_reference(f"{write(tmp_path / 'own_imports.py', text)}:f", "parcel.metrics")
    assert library_versions("own_imports") == {"PyYAML": importlib.metadata.version("pyyaml")}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("own_a.py", "def f(:\n", r"own_a\.py line 1 is not Python: "),
        ("own_b.py", "def g(): pass\n", r"own_b has no 'f'; .*own_b\.py must define it"),
        ("own_c.py", "import nothing_such\n", "own_c cannot be imported: ModuleNotFoundError: No"),
        (
            "own_d.py",
            "import importlib\nf = importlib.import_module('json').loads\n",
            r"own_d line 2: import_module imports by a computed name",
        ),
        ("json.py", "def f(): pass\n", r"json has the name of another module, .*rename it"),
        ("own-e.py", "def f(): pass\n", r"own-e\.py must have the name of a module"),
        ("own_g.py", "def f(p, fields):\n    return open(__file__)\n", "own_g.py names __file__"),
        ("own_f.py", "f = 3\n", "own_f:f must be a function or a class, got 3"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line(tmp_path: Path, name: str, text: str, told: str):
    write(tmp_path / name, text)
    with pytest.raises(ValueError, match=told) as refused:
        canonical_reference(f"{tmp_path / name}:f", "parcel.metrics")
    assert "\n" not in str(refused.value)


def test_two_files_of_one_name_are_refused(tmp_path: Path):
    for folder in ("a", "b"):
        write(tmp_path / folder / "own_twice.py", "def f(): pass\n")
    canonical_reference(f"{tmp_path}/a/own_twice.py:f", "parcel.metrics")
    with pytest.raises(ValueError, match=r"own_twice .*/a/own_tw"):
        canonical_reference(f"{tmp_path}/b/own_twice.py:f", "parcel.metrics")


@pytest.mark.slow
def test_a_worker_with_another_version_refuses(tmp_path: Path, monkeypatch):
    site = tmp_path / "site-packages"
    install(site, "own_versions", "1.2", "def score(prediction, fields):\n    return 0\n")
    monkeypatch.syspath_prepend(site)
    metric = canonical_reference("own_versions:score", "parcel.metrics")
    recipe = Recipe(
        kind="chance",
        name="chance mine",
        config=metric,
        code=code_digest("chance", metric),
        libraries={"own_versions": "1.1"},
    )
    (end,) = worker.make(str(Store(tmp_path / "store").state), [recipe], {})
    assert isinstance(end, worker.StepOutcome)
    assert re.search(r"own_versions 1\.1, .* 1\.2\b", end.error)


READER = """
def read(folder, split):
    from own_words import QUESTION
    for picture in sorted(folder.glob("*.png")):
        yield {"image": picture.name, "question": QUESTION, "answers": picture.stem}
"""
LISTING = """
import pickle, sys
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.registry import source_spec
source = pickle.load(sys.stdin.buffer)
corpus = Corpus(sys.argv[1], "mine", UnpackedMedia(None))
for item in source_spec(source).read_splits(corpus, "val"):
    print(item.prefix, item.answers)
"""


def test_a_reader_travels_with_the_work_of_those_who_list(tmp_path: Path):
    write(tmp_path / "code" / "own_reader.py", READER)
    write(tmp_path / "code" / "own_words.py", "QUESTION = 'Which?'\n")
    write(tmp_path / "data" / "mine" / "a.png", "")
    function = canonical_reference(f"{tmp_path}/code/own_reader.py:read", "parcel.readers")
    source = with_user_code(OwnSource(reader=function, name="mine"))
    assert canonical_json(source) == canonical_json(OwnSource(reader=function, name="mine"))
    for path in (tmp_path / "code").iterdir():
        path.write_text("raise SystemExit\n")  # An edit while the run is under way.
    done = subprocess.run(
        [sys.executable, "-c", LISTING, str(tmp_path / "data")],
        input=pickle.dumps(source),
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}/code"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "answer en Which? ('a',)\n"


WORKER = """
import sys
from pathlib import Path
from flows.steps.user_code import install_user_code
from flows.steps.registry import code_digest
from infra.store.store import Store
from model.eval.metrics.registry import get_metric
store = Store(sys.argv[1])
install_user_code(store.open_source(sys.argv[2]))
metric = "own_metric:f1"
print(get_metric(metric).score("x", {"answers": ["x"]}), code_digest("chance", metric))
"""


def test_another_process_imports_it_as_the_run_had_it(folder: Path, tmp_path: Path):
    metric = canonical_reference(f"{folder}/own_metric.py:f1", "parcel.metrics")
    store = Store(tmp_path / "store")
    source = store.save_source(checkout().files)
    write(folder / "own_helper.py", "WEIGHT = 0.25\n")  # An edit while the run is under way.
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path / "store"), source],
        # Where the folder itself is in the path, what the run had counts still.
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.0", code_digest("chance", metric)]
