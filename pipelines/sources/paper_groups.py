"""The groups of benchmarks that the paper's tables average over.

They stand apart from the benchmarks' own definitions: those are code of every prepared dataset,
which a change of a group would make stale.
"""

import functools
from collections.abc import Callable, Mapping

from pipelines.benchmarks.row import Benchmark, ResultRow

MAIN_SUITE = "main suite"
"""The 27 rows at 224 px whose mean retention is the paper's headline."""
HIGH_SUITE = "high-resolution suite"
"""The 34 rows of the paper's table at 448 px."""

_RESOLUTION_SENSITIVE = {
    "chartqa", "docvqa", "infovqa", "scicap", "stvqa", "textcaps", "textvqa", "widgetcap",
}  # fmt: skip
_VIDEO_TOP_3 = {"ActivityNet-CAP", "ActivityNet-QA", "MSRVTT-Cap"}
_RESOLUTION_TOP_3 = {"DocVQA (val)", "ChartQA (human)", "ChartQA (aug)"}

_Has = Callable[[Benchmark, ResultRow], bool]


def _is_main(benchmark: Benchmark, row: ResultRow) -> bool:
    return row.suite == "main"


def _is_video(benchmark: Benchmark, row: ResultRow) -> bool:
    return row.suite == "main" and benchmark.num_frames > 0


def _is_refcoco(benchmark: Benchmark, row: ResultRow) -> bool:
    return benchmark.name == "refcoco"


def _is_resolution_sensitive(benchmark: Benchmark, row: ResultRow) -> bool:
    return benchmark.name in _RESOLUTION_SENSITIVE


def _is_general(at: int) -> _Has:
    # xGQA and MaRVL are of the main suite, but the paper's table of general benchmarks lacks them.
    others = (_is_video, _is_refcoco, _is_resolution_sensitive)
    return lambda benchmark, row: (
        at in row.resolutions and not any(has(benchmark, row) for has in others)
    )


def _has_title_fn(*titles: str) -> _Has:
    return lambda benchmark, row: row.titles[0] in titles


def _splits_of(title: str) -> _Has:
    return lambda benchmark, row: row.titles[0].startswith(f"{title} (")


_REFCOCO: Mapping[str, _Has] = {
    "RefCOCO": _is_refcoco,
    **{f"{title} (Avg.)": _splits_of(title) for title in ("RefCOCO", "RefCOCO+", "RefCOCO-g")},
}
_GROUPS: Mapping[str, _Has] = {
    MAIN_SUITE: _is_main,
    "Image": lambda benchmark, row: _is_main(benchmark, row) and not benchmark.num_frames,
    "Video": _is_video,
    "Video, top 3": _has_title_fn(*_VIDEO_TOP_3),
    **_REFCOCO,
    "Resolution-sensitive": _is_resolution_sensitive,
    "Resolution-sensitive, top 3": _has_title_fn(*_RESOLUTION_TOP_3),
    "General": _is_general(224),
}
_HIGH_GROUPS: Mapping[str, _Has] = {
    HIGH_SUITE: lambda benchmark, row: 448 in row.resolutions,
    **_REFCOCO,
    "Resolution-sensitive": _is_resolution_sensitive,
    "General": _is_general(448),
}
_BLOCKS = ("Video", "RefCOCO", "Resolution-sensitive", "General")
"""The groups that have a table each; no row is in two of them."""

_LEFT_OUT = {"VATEX"}
"""Rows that no mean is over.

The paper leaves VATEX out of its aggregates: its scores vary widely on the validation split, the
only one that is public.
"""


@functools.cache
def paper_groups(*, is_high: bool = False) -> Mapping[str, tuple[ResultRow, ...]]:
    """Returns name -> rows of the groups, a wider one before its parts.

    The two "top 3" are the rows that Table 2 shows: those that lose most at 16 tokens. They are the
    paper's, whatever the scores of a study.

    Args:
      is_high: whether the groups are those at 448 px, after Stage 2, or else those at 224 px.
    """
    # Imported here: the registry has every reader, and those import NumPy.
    from pipelines.sources.registry import BENCHMARKS

    rows = [(benchmark, row) for benchmark in BENCHMARKS.values() for row in benchmark.rows]
    return {
        name: tuple(row for benchmark, row in rows if has(benchmark, row))
        for name, has in (_HIGH_GROUPS if is_high else _GROUPS).items()
    }


def group_sizes(*, is_high: bool = False) -> dict[str, int]:
    """Returns name -> number of rows of each group."""
    return {name: len(rows) for name, rows in paper_groups(is_high=is_high).items()}


def rows_by_group(
    rows: Mapping[str, ResultRow | None], *, is_high: bool = False
) -> dict[str, tuple[str, ...]]:
    """Returns group -> the names of its rows, of those at hand; a group without any is not there.

    Args:
      rows: name -> the paper's row of that name; None for a user's own.
      is_high: as in `paper_groups`.
    """
    found = {
        group: tuple(name for name, row in rows.items() if row in members)
        for group, members in paper_groups(is_high=is_high).items()
    }
    return {group: names for group, names in found.items() if names}


def in_paper_order(groups: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns groups by name in the order of `rows_by_group`, which a manifest does not keep."""
    order = {name: place for place, name in enumerate((HIGH_SUITE, *_GROUPS))}
    return dict(sorted(groups.items(), key=lambda group: order.get(group[0], len(order))))


def block_of(row: ResultRow, *, is_high: bool = False) -> str:
    """Returns the group whose table has the row; "" if none has."""
    groups = paper_groups(is_high=is_high)
    return next((name for name in _BLOCKS if row in groups.get(name, ())), "")


def is_left_out(row: ResultRow) -> bool:
    """Returns whether the paper leaves the row out of every mean."""
    return row.titles[0] in _LEFT_OUT
