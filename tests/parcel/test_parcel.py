"""What `import parcel` offers in a notebook: the same as the commands, as values."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import parcel as notebook
from flows.lookup.results import show_results
from flows.pages.run_results import study_of
from flows.study.load import load
from infra.errors import ConfigError
from infra.store.store import Store
from pipelines.records.dataset import Dataset
from pipelines.records.schema import Record
from tests.flows.pages.studies import LOSSES

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
    with pytest.raises(ConfigError, match=r"study .*demo, .*got 'gone'"):
        notebook.load("gone", store=str(tmp_path / "store"))


def test_results_are_the_commands_table(toy: Store):
    table = notebook.results("toy", store=toy.uri)
    assert (
        table.text()
        == repr(table)
        == table._repr_markdown_()
        == show_results(toy, "toy", "md", None)
    )
    with pytest.raises(ConfigError, match=r"^RUN .*got 'gone'"):
        notebook.results("gone", store=toy.uri)


def test_without_pandas_a_frame_is_refused_in_one_line(toy: Store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"^to_pandas needs pandas.*; pip install pandas"):
        notebook.results("toy", store=toy.uri).to_pandas()


def test_curves_have_every_value_that_the_trainings_logged(toy: Store):
    curves = notebook.curves("toy", store=toy.uri)
    frame = curves.to_pandas()
    trainings = list(toy.artifacts("checkpoint"))
    assert set(frame.checkpoint) == {training.key for training in trainings}
    losses = frame[frame.quantity == "loss"]
    assert len(losses) == len(trainings) * len(LOSSES.splitlines())
    logged = [json.loads(line) for line in LOSSES.splitlines()]
    one = losses[losses.training == "transfer mqt colors seed=23"]
    assert [*one.step] == [row["step"] for row in logged]
    assert [*one.value] == [row["loss"] for row in logged]
    assert set(one.method) == {"mqt"}
    probe = frame[frame.quantity == "score of the probe"]
    assert set(probe.tokens) == {"16 tokens", "64 tokens"}
    lines = repr(curves).splitlines()
    assert "transfer mqt colors seed=23: loss 5 at step 1, 0.417 at step 12" in lines
    assert len(lines) == len(trainings)
    with pytest.raises(ConfigError, match=r"^RUN .*got 'gone'"):
        notebook.curves("gone", store=toy.uri)


def test_items_have_their_picture_and_every_seeds_answer(toy: Store):
    items = notebook.items("toy/colors/parcel/16", store=toy.uri)
    assert len(items) == 30
    wrong = notebook.items("toy/colors/parcel/16/23", show="wrong", store=toy.uri)
    assert {item.id for item in wrong} == {i.id for i in items if not i.scores[23]}
    item = wrong[0]
    assert item.predictions == {23: "<b>purple</b>"}
    assert item.score == 0
    record = _record(toy, "prepare colors/test", item.id)
    (image,) = item.images
    with Image.open(io.BytesIO(record.images[0])) as stored:
        assert image.tobytes() == stored.convert("RGB").tobytes()
    assert (item.prompt, item.answers, item.source) == (
        record.prefix,
        record.answers,
        record.source,
    )
    frame = items.to_pandas()
    assert len(frame) == 30 * 3
    report = study_of(toy, "toy").section("colors")
    (cell,) = (c for c in report.cells if (c.method, c.budget) == ("parcel", 16))
    means = 100 * frame.groupby("seed").score.mean()
    assert means.to_dict() == pytest.approx({s.seed: s.score for s in cell.scores})
    only = notebook.items("toy/colors/parcel/16", find=item.id, store=toy.uri)
    assert {one.id for one in only} == {i.id for i in items if item.id in i.id}


def _record(store: Store, dataset: str, item: str) -> Record:
    (data,) = (d for d in store.artifacts("dataset") if d.manifest.name == dataset)
    (record,) = (r for r in Dataset(data.uri).records() if r.id == item)
    return record


def test_a_notebook_shows_items_with_pictures_and_escaped_answers(toy: Store):
    items = notebook.items("toy/colors/vanilla/64", store=toy.uri)
    shown = items._repr_html_()
    assert shown.count('<img src="data:image/jpeg;base64,') == 8
    assert shown.endswith("<p>and 22 more</p>")
    assert "<th>seed 11</th><th>seed 23</th><th>seed 47</th>" in shown
    assert "&lt;b&gt;purple&lt;/b&gt; (0)" in shown
    assert repr(items[0]) in repr(items)
    masked = notebook.items("toy/shapes/parcel/16", show="right", store=toy.uri)[0]
    assert "[1 mask]" in masked._repr_html_()
    (image,) = masked.images
    record = _record(toy, "prepare shapes/test", masked.id)
    with Image.open(io.BytesIO(record.images[0])) as stored:
        assert image.tobytes() != stored.convert("RGB").tobytes()  # Its box is painted on it.


def test_wrong_cells_are_refused_in_one_line(toy: Store):
    with pytest.raises(ConfigError, match=r"^a cell .* got 'colors/parcel/17'"):
        notebook.items("toy/colors/parcel/17", store=toy.uri)
    with pytest.raises(ConfigError, match=r"^a cell must be RUN/.*/BUDGET\[/SEED\], got 'toy'\.$"):
        notebook.items("toy", store=toy.uri)
    with pytest.raises(ConfigError, match=r"^show .*all, right, wrong, got 'changed'"):
        notebook.items("toy/colors/parcel/16", show="changed", store=toy.uri)  # pyright: ignore[reportArgumentType]


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
    with pytest.raises(ConfigError, match=r"^num_seeds .*parcel\.load"):
        notebook.run(load(), num_seeds=2, store=str(store))
    with pytest.raises(ConfigError, match=r"^sweep: seed: no such key"):
        notebook.sweep("demo", seed=2, store=str(store))
    assert not (store / "prefect").exists()
