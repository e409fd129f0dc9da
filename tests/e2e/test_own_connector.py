"""The tutorial of a connector of one's own, command by command, on a shrunken study."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import SMALLEST, parcel
from tests.torch_python import run_torch, torch_python

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "own_connector.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("parcel ")]
FILES = r"connectors(?:_torch)?\.py|ripple\.yaml|ripple-chartqa|spectra|picture\.png"
SMALL = """
base: {smallest}
hygiene: null
budgets: [16, 256]
train_budgets: {{parcel: [16, 256], "connectors.py:Ripple": [16, 256]}}
compute: {{pack: 30}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page has one write."""
    folder = tmp_path_factory.mktemp("ripple")
    blocks = re.findall(r"```(?:yaml|python)\n# (\w+\.\w+)(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["connectors.py", "ripple.yaml", "connectors_torch.py"]
    for name, text in blocks:
        (folder / name).write_text(f"#{text}")
    assert len((folder / "connectors.py").read_text().splitlines()) <= 40
    small = SMALL.format(smallest=SMALLEST)
    page = (folder / "ripple.yaml").read_text()
    assert page.count("base: demo\n") == 1
    page = page.replace("base: demo\n", small)
    # The demo's RefCOCO, which the page keeps prepared, is no part of the smallest study.
    page = page.replace("{refcoco: {transfer: false}}", "{}")
    (folder / "ripple.yaml").write_text(page)
    return folder


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the page; files are named by their place, as the command runs elsewhere."""
    words = [re.sub(rf"^({FILES})(?=:|$)", rf"{folder}/\1", word) for word in shlex.split(line)[1:]]
    return parcel(folder / "store", *words, timeout=900)


def done(folder: Path, line: str) -> str:
    ended = run(folder, line)
    assert ended.returncode == 0, line + ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def test_what_the_page_shows_works(folder: Path):
    first, explain, train, results, flops, beside, spectral = COMMANDS[:-2]
    promised = [line for line in PAGE.splitlines() if re.match(r"\w+ +ok ", line)]
    assert done(folder, first).splitlines() == promised[:-1]  # The last one is of torch.
    assert re.search(r"new +intermediary connectors:Ripple", done(folder, explain))
    assert "17 made, 0 reused" in done(folder, train)
    # Retention, which no vanilla at chance has, and a score at either budget.
    row = r"\| connectors:Ripple \|( [^|]+ \|){2}( \**\d+\.\d\** \|){2}"
    assert re.search(row, done(folder, results))
    assert "connectors:Ripple" in done(folder, flops).splitlines()[-1]
    assert "connectors:Ripple" in done(folder, beside).splitlines()[-1]
    (trace,) = re.findall(r"`(parcel lineage trace [^`]+)`", PAGE)
    cell = trace.replace("chartqa/", "chartqa:test_human/").replace("/64", "/16")
    found = re.search(r"transfer connectors:Ripple.* (checkpoint-\w+-\w+)", done(folder, cell))
    assert found is not None
    picture = next((folder / "store").rglob("*.png"))
    (folder / "picture.png").write_bytes(picture.read_bytes())
    done(folder, spectral.replace("CHECKPOINT", found[1]))
    (entry,) = json.loads((folder / "spectra" / "spectra.json").read_text())["checkpoints"]
    assert {curve["what"] for curve in entry["curves"]} == {"features", "queries"}


def test_its_torch_module_is_compared_and_released(folder: Path):
    torch_python()
    check, release = COMMANDS[-2:]
    assert re.search(r"^torch +ok +Ripple is within 1e-05 of ours at 128 ", done(folder, check))
    trained = next(
        a
        for a in Store(folder / "store").artifacts("checkpoint")
        if a.manifest.name.startswith("transfer connectors:Ripple chartqa")
    )
    # A module that computes something else is refused, and leaves nothing.
    file = folder / "connectors_torch.py"
    code = file.read_text()
    file.write_text(code.replace("pool(features, 16)", "pool(features, 64)"))
    refused = run(folder, release.replace("CHECKPOINT", trained.key))
    assert refused.returncode == 2
    assert "--torch: Ripple differs from ours by " in refused.stderr
    assert not (folder / "ripple-chartqa").exists()
    file.write_text(code)
    said = done(folder, release.replace("CHECKPOINT", trained.key))
    assert "own_connector.py: Ripple is within 1e-05 of ours" in said

    out = folder / "ripple-chartqa"
    assert (out / "own_connector.py").read_text() == code
    shutil.copyfile(folder / "picture.png", out / "image.png")
    (block,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    (budget,) = re.findall(r"budget=(\d+)", block)
    (out / "example.py").write_text(block)
    predict = (
        f"parcel model predict {trained.key} picture.png --prompt 'caption en' --budget {budget}"
    )
    assert run_torch(out, "example.py") == done(folder, predict)


def test_its_code_is_the_step_s_and_nobody_else_s(folder: Path):
    kept = {
        a.manifest.name: a.manifest.source for a in Store(folder / "store").artifacts("checkpoint")
    }
    (source,) = {kept[name] for name in kept if "connectors:Ripple" in name}
    files = Store(folder / "store").open_source(source)
    code = (folder / "connectors.py").read_text()
    assert files["own/connectors.py"] == code.encode()
    trained = next(
        a
        for a in Store(folder / "store").artifacts("checkpoint")
        if a.manifest.name == "intermediary connectors:Ripple"
    )
    assert trained.manifest.counts["pack"] == 30
    (folder / "connectors.py").unlink()  # Its code is in the store.
    assert ", made again on " in run(folder, f"parcel lineage replay {trained.key}").stdout
    (folder / "connectors.py").write_text(code.replace("normal(0.02)", "normal(0.03)"))
    told = done(folder, COMMANDS[1])
    assert re.findall(r"^stale +(\w+ \S+)", told, re.MULTILINE) == [
        "intermediary connectors:Ripple",
        "transfer connectors:Ripple",
    ]
    assert "connectors.Ripple.__init__ changed" in told
    assert not re.search(r"^new", told, re.MULTILINE)


def test_one_that_breaks_a_promise_is_refused_before_anything_starts(folder: Path):
    code = (folder / "connectors.py").read_text()
    (folder / "connectors.py").write_text(code.replace("bucket, width))", "budget, width))"))
    ended = run(folder, "parcel run ripple.yaml")
    assert ended.returncode == 2
    (line,) = [one for one in ended.stderr.splitlines() if one.startswith("parcel: ")]
    assert "methods: at 224 px connectors:Ripple breaks 'programs': " in line
