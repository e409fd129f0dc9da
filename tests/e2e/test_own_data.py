"""A study of the user's own data, by a metric and a reader of theirs, through the command."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infra.store.store import Store
from tests.e2e.conftest import parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

CONFIG = """
base: {tiny}
name: own
data_root: data
sources: [{{reader: jsonl, path: mine}}]
mask_codec: null
methods: [parcel]
num_seeds: 1
stage1: {{mixture: []}}
intermediary: {{mixture: []}}
transfers:
  chartqa: null
  refcoco: null
  msvd_qa: null
  mine:
    reader: jsonl
    metric: ./my_scores.py:distance
    prompt: "colour of {{text}}?"
    train: &few {{batch_size: 4, total_steps: 4, save_steps: 2, log_steps: 1}}
  listed: {{reader: ./my_reader.py:read, path: mine, metric: vqa, train: *few}}
"""
METRIC = '''
from my_colours import COLOURS


def distance(prediction, fields):
    """Returns 1 for the colour that was drawn, 0.5 for another one, 0 for what is none."""
    return 1.0 if prediction in fields["answers"] else 0.5 * (prediction in COLOURS)
'''
READER = '''
def read(folder, split):
    """Yields a row per line of a list of ours."""
    for line in (folder / f"{split}.list").read_text().splitlines():
        picture, colour = line.split("|")
        yield {"image": picture, "question": "it", "answers": [colour]}
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user's: data, a metric, a reader, a config."""
    folder = tmp_path_factory.mktemp("own")
    mine = folder / "data" / "mine"
    mine.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for split, number in (("train", 16), ("val", 8)):
        rows = []
        for n in range(number):
            colour = ("red", "green", "blue")[n % 3]
            pixels = draw.integers(0, 80, (40, 50, 3), dtype=np.uint8)
            pixels[..., n % 3] += 150
            Image.fromarray(pixels).save(mine / f"{split}{n}.png")
            rows.append({"image": f"{split}{n}.png", "question": "this", "answers": [colour]})
        (mine / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        listed = "".join(f"{row['image']}|{row['answers'][0]}\n" for row in rows)
        (mine / f"{split}.list").write_text(listed)
    for path in mine.iterdir():  # A file of the last two seconds is looked at again.
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (folder / "my_scores.py").write_text(METRIC)
    (folder / "my_colours.py").write_text('COLOURS = ("red", "green", "blue")\n')
    (folder / "my_reader.py").write_text(READER)
    tiny = Path(__file__).with_name("tiny.yaml")
    (folder / "study.yaml").write_text(CONFIG.format(tiny=tiny))
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    data = f"data_root={folder / 'data'}"
    return parcel(folder / "store", "run", str(folder / "study.yaml"), data, *words, timeout=900)


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    done = run(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Store(folder / "store")


def newest(store: Store, kind: str) -> dict[str, Path]:
    """Returns name -> folder of the artifacts of a kind, of those of one name the last made."""
    found = sorted(store.artifacts(kind), key=lambda a: a.manifest.started)
    return {a.manifest.name: a.path for a in found}


def test_ones_own_benchmark_has_its_rows_at_every_budget(folder: Path, store: Store):
    (results,) = newest(store, "results").values()
    table = (results / "results.md").read_text()
    assert "mine" in table
    assert "listed" in table
    predictions, scores = newest(store, "predictions"), newest(store, "scores")
    assert len(predictions) == len(scores) == 2 * 2
    for name, path in scores.items():
        score = json.loads((path / "score.json").read_text())
        assert score["num"] == 8
        assert score["metric"] == ("my_scores:distance" if " mine " in name else "vqa")
    mine = next(path for name, path in predictions.items() if " mine " in name)
    row = json.loads((mine / "predictions.jsonl").read_text().splitlines()[0])
    assert row["prefix"] == "colour of this?"
    assert row["id"].startswith("mine/val/val0.png#")
    done = parcel(folder / "store", "results", "own", "--format", "csv")
    assert {line.split(",")[0] for line in done.stdout.splitlines()[1:]} == {"mine", "listed"}
    done = parcel(folder / "store", "lineage", "trace", "own", "--cell", "mine/parcel/16")
    assert "mine/val/val0.png" in done.stdout


def test_its_code_is_kept_with_the_run(folder: Path, store: Store):
    kept = {a.manifest.source for a in store.artifacts("predictions")}
    (source,) = kept
    assert store.open_source(source)["own/my_scores.py"] == METRIC.encode()
    assert "own/my_colours.py" in set(store.open_source(source))
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "everything reused" in done.stdout, done.stdout


def test_an_edited_metric_is_scored_anew_and_nothing_else(folder: Path, store: Store):
    before = {a.key for a in store.artifacts()}
    text = (folder / "my_colours.py").read_text()
    (folder / "my_colours.py").write_text(text.replace('"red", ', ""))
    done = run(folder, "--explain")
    stale = [line for line in done.stdout.splitlines() if line.startswith("stale")]
    assert {line.split()[1] for line in stale} == {"transfer", "chance"}
    assert all("my_colours.COLOURS changed since" in line for line in stale)
    done = run(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    new = [a.manifest for a in store.artifacts() if a.key not in before]
    assert {m.kind for m in new} <= {"scores", "chance", "results"}
    assert {m.name for m in new if m.kind != "results"} == {
        "chance mine",
        *(a.manifest.name for a in store.artifacts("scores") if " mine " in a.manifest.name),
    }
    done = parcel(
        folder / "store",
        "accept",
        "chance mine",
        str(folder / "study.yaml"),
        f"data_root={folder / 'data'}",
        "--replay",
        "1",
    )
    assert done.returncode == 2
    assert "is not stale" in done.stderr


def test_a_metric_that_changed_to_no_effect_is_kept_by_replay(folder: Path, store: Store):
    run(folder)
    text = (folder / "my_scores.py").read_text()
    (folder / "my_scores.py").write_text(f"{text}\n\ndef unused():\n    return 0\n")
    done = parcel(
        folder / "store",
        "accept",
        "chance mine",
        str(folder / "study.yaml"),
        f"data_root={folder / 'data'}",
        "--replay",
        "1",
    )
    assert done.returncode == 0, done.stderr
    assert "both codes give contents" in done.stdout


def test_score_and_check_know_them(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "copy")
    lines = tmp_path / "predictions.jsonl"
    lines.write_text('{"id": 1, "prediction": "blue", "answers": ["red"]}\n')
    metric = f"{tmp_path}/copy/my_scores.py:distance"
    done = parcel(tmp_path / "store", "model", "score", metric, str(lines))
    assert "my_scores:distance\t50.0000\tnum 1" in done.stdout, done.stderr
    reader = f"{tmp_path}/copy/my_reader.py:read"
    words = ("--source", reader, "--path", "mine", "--split", "val")
    done = parcel(tmp_path / "store", "data", "check", str(tmp_path / "copy" / "data"), *words)
    assert "8 inputs = 8 records + 0 rejects" in done.stdout, done.stderr


def test_mistakes_end_with_two_and_a_line(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "copy")
    done = run(tmp_path / "copy", "transfers.mine.metric=vqqa", "--explain")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "transfers.mine.metric must be one of exact_match" in done.stderr
    (tmp_path / "copy/data/mine/val.jsonl").unlink()
    done = run(tmp_path / "copy", "--explain")
    assert done.returncode == 2
    assert "transfers.mine.eval_splits: " in done.stderr
    assert "val.jsonl is missing" in done.stderr
