"""An accelerator machine has jax, flax, optax, orbax and grain; `model` must import there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABSENT = (
    "apache_beam", "av", "decord", "google_crc32c", "matplotlib", "prefect", "pyarrow", "pydantic",
    "ray", "sentencepiece", "tensorflow", "typer",
)  # fmt: skip
IMPORT_ALL = """
import importlib, pathlib, sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None  # Importing it now raises ImportError.
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    if path.parent.name == "released":
        continue  # Copied into a release, which torch and transformers load.
    module = ".".join(path.relative_to(pathlib.Path(sys.argv[1]).parent).with_suffix("").parts)
    importlib.import_module(module.removesuffix(".__init__"))
    print(module)
"""


@pytest.mark.slow
def test_every_module_imports_with_only_the_accelerator_machines_packages():
    words = [sys.executable, "-c", IMPORT_ALL, str(ROOT / "model"), ",".join(ABSENT)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-1500:]
    assert "model.train.loop" in done.stdout
    for name in (
        "model.eval.run",
        "model.decode.beam",
        "model.decode.decoding",
        "model.decode.predict",
    ):
        assert name in done.stdout.splitlines()


@pytest.mark.slow
def test_the_accelerator_benchmark_imports_there_too():
    code = "import sys\nfor n in sys.argv[1].split(','): sys.modules[n] = None\n"
    code += "import perf.accelerator"
    words = [sys.executable, "-c", code, ",".join(ABSENT)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-1500:]


@pytest.mark.slow
def test_configurations_names_of_files_and_the_run_itself_come_without_jax():
    code = "import sys, model.files, model.config, model.train.config, model.seeds\n"
    # Its workers tell JAX where its devices and compiled programs are before they import it.
    code += "import flows.run.run, flows.machine.start, flows.steps.worker\n"
    code += "assert not {'jax', 'flax', 'optax'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1500:]
