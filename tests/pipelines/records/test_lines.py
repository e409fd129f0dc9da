"""Lines sorted on the disk come out as lines sorted in memory do."""

import json
import os
import random

import pytest

from pipelines.records.lines import sorted_lines


@pytest.mark.parametrize("merged", [2, 5, 1000])
def test_runs_are_merged_and_equal_lines_keep_their_order(tmp_path, merged):
    rows = [{"id": f"{n % 37:03d} \u2028 é", "number": n} for n in range(300)]
    random.Random(0).shuffle(rows)
    given = [f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows]
    found = sorted_lines(
        given, lambda line: json.loads(line)["id"], str(tmp_path), run_size=200, max_runs=merged
    )
    assert [json.loads(line) for line in found] == sorted(rows, key=lambda row: row["id"])
    assert not list(tmp_path.iterdir())


def test_few_files_are_open_whatever_is_sorted(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    given = (f"{n * 7 % 500:03d}\n" for n in range(500))
    found = sorted_lines(given, str, str(tmp_path), run_size=1, max_runs=4)
    assert next(found) == "000\n"
    assert len(os.listdir("/proc/self/fd")) - before <= 4 * 5
    assert list(found) == [f"{n:03d}\n" for n in range(1, 500)]


def test_no_lines_give_none(tmp_path):
    assert list(sorted_lines([], str, str(tmp_path))) == []
