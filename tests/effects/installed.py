"""The product as a wheel in an environment of its own, used from a folder of somebody's project."""

import dataclasses
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.effects.product import environment

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("flows", "infra", "model", "parcel", "pipelines")
WRONG = "raise SystemExit('{} is imported from the working folder')\n"


@dataclasses.dataclass(frozen=True)
class Installed:
    """An installed wheel, and a folder in which all of its packages have namesakes.

    Attributes:
      command: path of its `parcel`.
      folder: the folder.
    """

    command: str
    folder: Path

    def run(
        self, store: Path, *words: str, timeout: float = 600, **own: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the folder, on a store, to its end."""
        return subprocess.run(
            [self.command, *words],
            cwd=self.folder,
            env=environment(store, {"PYTHONPATH": "", **own}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def install(folder: Path) -> Installed:
    """Builds the wheel of this checkout and installs it, with the libraries of this environment."""
    source, wheels, env = folder / "source", folder / "wheels", folder / "env"
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        path = CHECKOUT / name
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / name, ignore=ignored)
        else:
            shutil.copy(path, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source))
    subprocess.run([*pip, *build], check=True, timeout=300)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    python = env / "bin" / "python"
    words = ("--python", str(python), "install", "--no-deps", "--no-compile", str(wheel))
    subprocess.run([*pip, *words], check=True, timeout=300)
    # The libraries, and not the checkout: a folder that is named here is no place where Python
    # reads the files of editable installs.
    (site,) = env.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    project = folder / "project"
    project.mkdir()
    for name in PACKAGES:
        if name != "model":
            (project / name).mkdir()
            (project / name / "__init__.py").write_text(WRONG.format(name))
    for name in ("model", "jax", "ray", "prefect", "numpy"):
        (project / f"{name}.py").write_text(WRONG.format(name))
    # What is theirs, and is meant.
    (project / "lab_scores.py").write_text(
        "def length(prediction, fields):\n    return min(1.0, len(prediction) / 10)\n"
    )
    return Installed(str(env / "bin" / "parcel"), project)
