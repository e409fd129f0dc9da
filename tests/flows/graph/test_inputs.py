"""A graph is built of a config and of what was looked at before: it looks at nothing itself."""

import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from flows.graph.graph import graph_of
from flows.graph.inputs import check_study, read_inputs
from flows.study.load import load
from infra.errors import ConfigError
from tests.model.connector import own_connectors

pytestmark = pytest.mark.usefixtures("forget")

OWN = "tests.model.connector.own_connectors"
METRIC = "def exact(prediction, fields):\n    return float(prediction in fields['answers'])\n"
# Imports of modules are no looks at the study's files: those are in a folder of their own.
AUDITED = """
import json, sys
from pathlib import Path
from flows.study.load import load
from flows.graph.graph import graph_of
from flows.graph.inputs import read_inputs
folder = sys.argv[1]
sys.path.insert(0, folder)
study = load(Path(folder) / "study.yaml")
inputs = read_inputs(study)
graph_of(load())  # What is imported for any graph.
before, seen = {*sys.modules}, []
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and folder in str(arguments[0]):
        seen.append(str(arguments[0]))
sys.addaudithook(hook)
graph = graph_of(study, inputs=inputs)
new = sorted({*sys.modules} - before)
found = {"seen": seen, "new": new, "jax": "jax" in sys.modules, "nodes": len(graph.nodes)}
print(json.dumps(found))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of one's own data, start, tokenizer and metric."""
    data = tmp_path / "data"
    (data / "web").mkdir(parents=True)
    (data / "mine").mkdir()
    row = {"image": "0.png", "question": "Which?", "answers": ["0"]}
    Image.new("RGB", (32, 32)).save(data / "mine" / "0.png")
    for split in ("train", "val"):
        (data / "mine" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "pieces.model").write_bytes(b"pieces")
    (tmp_path / "metrics.py").write_text(METRIC)
    mine = "{reader: jsonl, path: mine, metric: './metrics.py:exact', train: {total_steps: 4}}"
    (tmp_path / "study.yaml").write_text(
        f"base: demo\nname: pure\ndata_root: {data}\nsources: [{{reader: web}}]\n"
        f"methods: [vanilla, parcel]\ntokenizer: {{path: {tmp_path}/pieces.model}}\n"
        f"transfers: {{chartqa: null, refcoco: null, msvd_qa: null, mine: {mine}}}\n"
    )
    return tmp_path


def test_a_graph_opens_no_file_and_imports_neither_jax_nor_a_users_module(folder: Path):
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, str(folder)],
        capture_output=True, text=True, timeout=120, cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["nodes"] > 10
    assert found | {"nodes": 0} == {"seen": [], "new": [], "jax": False, "nodes": 0}


def test_what_is_missing_is_told_by_the_check_and_not_by_the_graph(folder: Path):
    study = load(folder / "study.yaml")
    inputs = read_inputs(study)
    (folder / "pieces.model").unlink()
    graph_of(study, inputs=inputs)
    for look in (check_study, read_inputs):
        with pytest.raises(ConfigError, match=r"tokenizer\.path .*got "):
            look(study)


def test_a_graph_takes_little_time():
    demo = load()
    sweep = load(overrides=["num_seeds=56", "num_pretrain_seeds=9", "budgets=[16,64,256]"])
    graph_of(demo)
    times = []
    gc.collect()
    gc.freeze()  # What the tests before left alive is not walked through again and again.
    try:
        for study in (demo, sweep):
            began = time.process_time()
            graph = graph_of(study)
            times.append(time.process_time() - began)
    finally:
        gc.unfreeze()
    assert 10_000 <= len(graph.cells) < 11_000
    assert times[0] < 0.1
    assert times[1] < 1.0


def test_a_users_connector_is_traced_before_the_graph_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    study = load(folder / "study.yaml", [f"methods=[vanilla, '{OWN}:Prefix']"])
    inputs = read_inputs(study)
    assert {cost.method for cost in inputs.costs[""]} == {*study.methods}

    def never(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(own_connectors.Prefix, "__call__", never)
    monkeypatch.setattr("jax.eval_shape", never)
    monkeypatch.setattr("jax.jit", never)
    graph = graph_of(study, inputs=inputs)
    assert graph.results is not None
    assert graph.results.config.plan.costs == inputs.costs[""]
