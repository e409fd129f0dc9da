"""The measure of preparing's pace runs, on so few pictures that its figures mean nothing."""

from pathlib import Path

import pytest

from perf import prepare
from pipelines.prepare.config import PrepareConfig


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["archives", "rows"])
def test_graph_and_pool_give_the_same_bytes(tmp_path: Path, layout: str):
    config = PrepareConfig(image_px=16, num_shards=3, num_workers=2)
    *runs, table = prepare.measure_prepare([7], layout, 1, config, tmp_path, picture=(40, 30))
    digests = {line.split()[-1] for line in runs}
    assert [line.split(":")[0] for line in runs] == ["7 graph", "7 pool"]
    assert len(digests) == 1
    header, row = (line.split() for line in table.splitlines())
    assert "processor" in header
    assert row[0] == "7"
    assert all(float(cell) > 0 for cell in row[1:])


def test_pictures_are_distinct(tmp_path: Path):
    assert prepare.draw_corpus(tmp_path, 5, "rows", (40, 30)) == "web"
    pictures = [path.read_bytes() for path in (tmp_path / "web/pictures").iterdir()]
    assert len(set(pictures)) == 5
