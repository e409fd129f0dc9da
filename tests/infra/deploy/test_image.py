"""The image: its lines, and what its install lines make of an empty environment."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.infra.deploy.files import DEPLOY, ROOT, of_kind
from tests.infra.deploy.pins import SUPPORTED, pinned

Instruction = tuple[str, str]

IMPORTS = {
    "a study's pod": "flows.run.run, pipelines.prepare.run, gcsfs, prefect.engine",
    "Ray's workers": "flows.steps.worker, model.train.loop, ray.dashboard.modules.job.job_head",
    "Ray's head": "ray.dashboard.head, ray.autoscaler._private.kuberay.run_autoscaler",
    "Prefect's server": "prefect.server.api.server, asyncpg",
    "Prefect's worker": "prefect_kubernetes.worker",
}
"""Role -> modules that it cannot do without."""


def instructions(file: str = "Dockerfile") -> list[Instruction]:
    """Returns (instruction, rest) of a Dockerfile, with lines joined."""
    text = re.sub(r"\\\n", " ", (DEPLOY / file).read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def all_of(name: str, file: str = "Dockerfile") -> list[str]:
    return [rest for instruction, rest in instructions(file) if instruction == name]


@pytest.mark.parametrize(
    ("file", "argument"), [("Dockerfile", "BASE"), ("Dockerfile.beam", "BEAM")]
)
def test_a_base_image_without_its_digest_is_refused(file: str, argument: str):
    check, *_ = all_of("RUN", file)
    digest = f"sha256:{'0123456789abcdef' * 4}"
    for given, is_right in {
        f"docker.io/library/python:3.13-slim-bookworm@{digest}": True,
        f"mirror.lab:5000/python@{digest}": True,
        "": False,
        "python:3.13": False,
        f"@{digest}": False,
        f"python@{digest[:-1]}": False,
        f"python@{digest}0": False,
        f"python@{digest.upper()}": False,
        f"a b@{digest}": False,
    }.items():
        done = subprocess.run(
            ["sh", "-c", check], env={**os.environ, argument: given}, capture_output=True, text=True
        )
        assert (done.returncode == 0) == is_right, given
        assert is_right or f"'{given}'" in done.stderr


def test_images_of_the_documentation_have_the_python_and_the_libraries_of_the_project():
    (ray,) = of_kind("RayCluster").values()
    assert ray["spec"]["rayVersion"] == pinned()["ray"]
    beam = f"apache/beam_python{SUPPORTED[-1]}_sdk:{pinned()['apache-beam']}"
    python = f"python:{SUPPORTED[-1]}-slim-bookworm"
    page = (ROOT / "docs/howto/cloud.md").read_text()
    for image, file in ((python, "Dockerfile"), (beam, "Dockerfile.beam")):
        assert image in page
        assert f"{image}@sha256:…" in (DEPLOY / file).read_text()


@pytest.mark.skipif(not shutil.which("apt-cache"), reason="this is no Debian")
def test_debian_has_the_packages():
    (install,) = (rest for rest in all_of("RUN") if "apt-get install" in rest)
    words = re.split(r"\s+", install.split("apt-get install")[1].split("&&")[0].strip())
    packages = [word for word in words if not word.startswith("-")]
    found = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", *packages], capture_output=True, text=True
    )
    if not found.stdout:
        pytest.skip("apt has no lists; apt-get update makes them")
    assert {*re.findall(r"^Package: (\S+)", found.stdout, re.MULTILINE)} == {*packages}


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_its_install_lines_make_every_role_of_an_empty_environment(tmp_path: Path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    source = tmp_path / "source"
    source.mkdir()
    own = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{environment}/bin:{os.environ['PATH']}",
        "PARCEL_STATE": str(tmp_path / "state"),
        "HOME": str(tmp_path),
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
        "PIP_NO_COMPILE": "1",  # Each role imports a part of it once.
        "EXTRA": "",
    }
    installs = 0
    for instruction, rest in instructions():
        if instruction == "COPY":
            for name in rest.split()[:-1]:
                copy(ROOT / name, source / name)
        elif instruction == "RUN" and rest.startswith("pip "):
            # The image need not keep a cache of pip's; here it saves the downloads.
            words = rest.replace("--no-cache-dir ", "")
            subprocess.run(["sh", "-ec", words], cwd=source, env=own, check=True, timeout=1500)
            installs += 1
    assert installs == 2

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, (words, done.stderr[-2000:])
        return done.stdout

    assert "results table" in run("parcel", "--help")
    for modules in IMPORTS.values():
        run("python", "-c", f"import {modules}")
    where = run("python", "-c", "import flows; print(flows.__file__)").strip()
    assert Path(where).is_relative_to(environment)
    # A study's pod finds its own sources in the installed packages: they decide the steps' keys.
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"base": "demo", "name": "clean"}))
    explained = run("parcel", "run", "config.yaml", "--explain", "--store", str(tmp_path / "s"))
    assert "new" in explained
    digest = "from flows.steps.code import reach; "
    digest += "from infra.source_code import checkout, code_sha256; "
    digest += "print(code_sha256(reach(checkout(), ['flows.steps.kinds.checkpoint'])))"
    checkout = subprocess.run(
        [sys.executable, "-c", digest], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run("python", "-c", digest) == checkout.stdout


def copy(source: Path, target: Path) -> None:
    """Copies what the image's build is let see."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    left_out = [line for line in ignored[1:] if not line.startswith("!")]
    patterns = [line.replace("**/", "*") for line in left_out]

    def skipped(folder: str, names: list[str]) -> list[str]:
        below = Path(folder).relative_to(ROOT)
        return [
            name
            for name in names
            if any(fnmatch.fnmatch(f"{below / name}", pattern) for pattern in patterns)
        ]

    if source.is_dir():
        shutil.copytree(source, target, ignore=skipped)
    else:
        shutil.copy(source, target)
