"""Lines sorted on the disk come out as lines sorted in memory do."""

import json
import random

from pipelines.records import lines


def test_runs_are_merged_and_equal_lines_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_RUN_BYTES", 200)
    rows = [{"id": f"{n % 37:03d} \u2028 é", "number": n} for n in range(300)]
    random.Random(0).shuffle(rows)
    for name, part in (("a", rows[:170]), ("b", rows[170:])):
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in part)
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = [tmp_path / "a", tmp_path / "b"]
    found = lines.sorted_lines(paths, lambda row: row["id"], str(tmp_path))
    assert [json.loads(line) for line in found] == sorted(rows, key=lambda row: row["id"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_no_lines_give_none(tmp_path):
    (tmp_path / "a").touch()
    assert list(lines.sorted_lines([tmp_path / "a"], str, str(tmp_path))) == []
