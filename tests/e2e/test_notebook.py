"""The cells of the tutorial's notebook, in a kernel of Jupyter."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFIG, Finished, parcel
from tests.jupyter import Kernel

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

NOTEBOOK = Path(__file__).parents[2] / "docs/tutorials/notebook.ipynb"

CHECK = """
import json
swept = parcel.sweep(CONFIG, seeds=study.num_seeds, store=STORE)
changed = both[both.metric != both.metric_exact]
cell = ["benchmark", "method", "budget"]
of_cell = scores[(scores[cell] == first[cell]).all(axis=1)]
print(json.dumps({
    "rows": len(scores),
    "columns": list(scores.columns),
    "score": first.score,
    "same": swept.text() == table.text(),
    "trace": trace,
    "keys": [first.predictions, first.checkpoint],
    "changed": [len(changed), int((changed.score_exact > changed.score).sum())],
    "trained_anew": int((both.checkpoint != both.checkpoint_exact).sum()),
    "answered_anew": int((both.predictions != both.predictions_exact).sum()),
    "rescored": sorted(set(changed.metric_exact)),
    "curves": {m: losses[m].dropna().index.tolist() for m in losses},
    "stages": sorted({v.stage for v in curves.values}),
    "item": [item.prompt, list(item.answers), sorted(item.scores), item.images[0].size],
    "html": items._repr_html_(),
    "mean": items.to_pandas().groupby("seed").score.mean().to_dict(),
    "of_cell": of_cell.set_index("seed").score.to_dict(),
}))
"""


def cells(config: str, store: Path) -> Iterator[str]:
    """The code of the notebook's cells, on another study and store."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])
            if "parameters" in cell["metadata"].get("tags", ()):
                yield f"CONFIG, STORE = {config!r}, {str(store)!r}"


def test_the_tutorials_notebook_runs_looks_and_traces(finished: Finished, tmp_path: Path):
    # A copy: the study that the notebook changes is not for tests that look at this store.
    store = Path(shutil.copytree(finished.store, tmp_path / "store"))
    kernel = Kernel(tmp_path, store)
    try:
        printed = [kernel.run(code) for code in cells(CONFIG, store)]
        found = json.loads(kernel.run(CHECK).splitlines()[-1])
    finally:
        kernel.kill()
    assert any("0 made, everything reused" in each for each in printed)
    # The table, as the command has it.
    text = parcel(store, "results", "tiny", "--format", "cells").stdout
    head, first, *others = text.splitlines()
    assert found["columns"] == head.split(",")
    assert found["rows"] == 1 + len(others)
    assert float(first.split(",")[found["columns"].index("score")]) == found["score"]
    assert found["same"]
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
