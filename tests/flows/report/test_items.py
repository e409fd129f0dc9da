"""Scores of single items, and their files."""

import hashlib
import json
import tracemalloc
from typing import Any

from flows.report.items import mean_item_score
from flows.report.items_reader import ItemsReader
from model.eval.items_file import write_items


def rows_of(*values: tuple[str, float], **more: tuple[float, ...]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{number}",
            "source_sha256": source,
            "score": score,
            **{name: one[number] for name, one in more.items()},
        }
        for number, (source, score) in enumerate(values)
    ]


def test_items_are_read_where_the_score_is_their_mean(tmp_path):
    write_items(tmp_path, rows_of(("b", 0.0), ("a", 1.0), ("b", 0.3), ("a", 0.5)))
    items, plain = ItemsReader().of_scores(tmp_path, 45.0)
    assert (items, plain) == ({"b": (0.0, 30.0), "a": (100.0, 50.0)}, True)
    assert [*items] == ["b", "a"]
    assert mean_item_score(items) == mean_item_score(dict(items)) == 45.0
    # Somebody's, of an average of averages.
    assert ItemsReader().of_scores(tmp_path, 60.0) == ({}, True)


def test_items_of_a_mean_over_parts_count_as_their_pseudo_values(tmp_path):
    rows = rows_of(("a", 0.0), ("b", 0.0), pseudo_value=(1.5, 0.0))
    expected = ({"a": (150.0,), "b": (0.0,)}, False)
    write_items(tmp_path, rows)
    assert ItemsReader().of_scores(tmp_path, 75.0) == expected
    (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ItemsReader().of_guess(tmp_path, 75.0) == expected


def test_an_item_of_a_further_score_costs_little_more_than_its_score(tmp_path):
    num, reader = 20_000, ItemsReader()
    write_items(
        tmp_path, rows_of(*((hashlib.sha256(b"%d" % i).hexdigest(), 1.0) for i in range(num)))
    )
    kept = [reader.of_scores(tmp_path, 100.0)]
    tracemalloc.start()
    kept += [reader.of_scores(tmp_path, 100.0) for _ in range(5)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(items[0] for items in kept)
    assert 8 * 5 * num <= size < 10 * 5 * num
