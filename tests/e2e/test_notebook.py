"""The cells of the tutorial's notebook, where an event loop runs already, as in Jupyter."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFIG, Finished, environment, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

NOTEBOOK = Path(__file__).parents[2] / "docs/tutorials/notebook.ipynb"

CELLS = """
import asyncio, gc, json, sys

def cells(notebook, config, store):
    found = {}
    for cell in json.load(open(notebook, encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        print("cell", cell["id"], flush=True)
        exec(compile("".join(cell["source"]), cell["id"], "exec"), found)
        if "parameters" in cell["metadata"].get("tags", ()):
            found |= {"CONFIG": config, "STORE": store}
    return found

def check(found):
    parcel, study, table = found["parcel"], found["study"], found["table"]
    scores, first, item = found["scores"], found["first"], found["item"]
    swept = parcel.sweep(found["CONFIG"], seeds=study.num_seeds, store=found["STORE"])
    both, losses = found["both"], found["losses"]
    changed = both[both.metric != both.metric_exact]
    cell = ["benchmark", "method", "budget"]
    of_cell = scores[(scores[cell] == first[cell]).all(axis=1)]
    print(json.dumps({
        "rows": len(scores),
        "columns": list(scores.columns),
        "score": first.score,
        "same": swept.text() == table.text(),
        "trace": found["trace"],
        "keys": [first.predictions, first.checkpoint],
        "changed": [len(changed), int((changed.score_exact > changed.score).sum())],
        "trained_anew": int((both.checkpoint != both.checkpoint_exact).sum()),
        "answered_anew": int((both.predictions != both.predictions_exact).sum()),
        "rescored": sorted(set(changed.metric_exact)),
        "curves": {m: losses[m].dropna().index.tolist() for m in losses},
        "stages": sorted({v.stage for v in found["curves"].values}),
        "item": [item.prompt, list(item.answers), sorted(item.scores), item.images[0].size],
        "html": found["items"]._repr_html_(),
        "mean": found["items"].to_pandas().groupby("seed").score.mean().to_dict(),
        "event_workers": sum(type(each).__name__ == "EventsWorker" for each in gc.get_objects()),
        "of_cell": of_cell.set_index("seed").score.to_dict(),
    }))

async def main():
    check(cells(*sys.argv[1:]))

asyncio.run(main())
"""


def test_the_tutorials_notebook_runs_looks_and_traces(finished: Finished, tmp_path: Path):
    # A copy: the study that the notebook changes is not for tests that look at this store.
    store = Path(shutil.copytree(finished.store, tmp_path / "store"))
    done = subprocess.run(
        [sys.executable, "-c", CELLS, NOTEBOOK, CONFIG, store],
        env=environment(store) | {"MPLBACKEND": "Agg"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "0 made, everything re-used" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    # The table, as the command has it.
    text = parcel(store, "results", "tiny", "--format", "cells").stdout
    head, first, *others = text.splitlines()
    assert found["columns"] == head.split(",")
    assert found["rows"] == 1 + len(others)
    assert float(first.split(",")[found["columns"].index("score")]) == found["score"]
    assert found["same"]
    # Prefect would keep each worker that a run has ended.
    assert found["event_workers"] == 1
    # The changed metric: only scores are new, and an exact answer is a relaxed one, too.
    number, higher = found["changed"]
    assert number > 0
    assert higher == 0
    assert found["rescored"] == ["exact_match"]
    assert found["trained_anew"] == found["answered_anew"] == 0
    # Curves, items and the trace belong to the same cells.
    assert set(found["curves"]) == {"m3", "mqt", "parcel", "vanilla"}
    assert all(steps == [1, 2, 3, 4] for steps in found["curves"].values())
    assert {"stage1", "intermediary", "transfer"} <= set(found["stages"])
    prompt, answers, seeds, size = found["item"]
    assert prompt
    assert answers
    assert len(seeds) == 2
    assert min(size) > 1
    assert "<img" in found["html"]
    assert {s: 100 * m for s, m in found["mean"].items()} == pytest.approx(found["of_cell"])
    assert all(key in found["trace"] for key in found["keys"])
