"""Figures are drawn whatever backend the environment names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAW = """
import json, os, sys
from infra.plotting import import_matplotlib
if sys.argv[1] == "chosen":
    import matplotlib
    matplotlib.use("svg")
matplotlib = import_matplotlib()
assert import_matplotlib() is matplotlib
from flows.report.plot import plot_style
with plot_style():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    figure = Figure()
    FigureCanvasAgg(figure)
    figure.savefig("figure.png")
print(json.dumps([matplotlib.get_backend(auto_select=False), os.environ.get("MPLBACKEND")]))
"""


@pytest.mark.parametrize(
    ("named", "chosen", "drawn_by"),
    [
        (None, "", None),
        ("", "", None),
        # Not installed; Jupyter's own is another one where its package is missing.
        ("nothing_like_it", "", None),
        ("module://nothing.like_it", "", "module://nothing.like_it"),
        # The user's own figures keep what is installed, and what was chosen before.
        ("pdf", "", "pdf"),
        ("pdf", "chosen", "svg"),
    ],
)
def test_a_backend_that_is_missing_stops_no_figure(
    named: str | None, chosen: str, drawn_by: str | None, tmp_path: Path
):
    env = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    env |= {} if named is None else {"MPLBACKEND": named}
    done = subprocess.run(
        [sys.executable, "-c", DRAW, chosen],
        env=env | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [drawn_by, named]
    assert (tmp_path / "figure.png").stat().st_size > 1000
