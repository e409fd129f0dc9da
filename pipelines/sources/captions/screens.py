"""Screens of Android apps (RICO): Screen2Words sums one up, Widget Captioning names a widget.

    screen2words  screen_summaries.csv              screenId, summary; five rows per screen
                  split/{train,dev,test}_screens.txt
    widgetcap     widget_captions.csv               screenId, nodeId, captions ("a|b")
                  split/{train,dev,test}.txt
    both          combined/{screenId}.{jpg,json}    of RICO; in this folder or in rico/

A nodeId "0.1.2" is a path of child indices from the root of the screen's activity; its first number
is the root. The widget's bounds are on a canvas 2560 pixels high, whatever the screenshot's size.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.benchmarks.captions import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Edit, Item
from pipelines.sources.layout import (
    Found,
    csv_rows,
    grouped,
    image_folder,
    question,
    read_rows,
    text_of,
)
from pipelines.sources.spec import published

SPLITS = ("train", "dev", "test")
_CANVAS_HEIGHT = 2560


def _listed(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def _read_summaries(corpus: Corpus, split: str, table: Path, listed: Path) -> Found:
    rows = grouped(csv_rows(table, "screenId", "summary"), "screenId")
    summaries = {group[0]["screenId"]: group for group in rows}
    folder = image_folder(corpus, "combined", "rico")

    def make(screen: str) -> Item:
        if screen not in summaries:
            raise BadInput(f"screen {screen} has no summary")
        texts = [text_of(row, "summary") for row in summaries[screen]]
        media = corpus.media(folder / f"{screen}.jpg")
        return question(BENCHMARKS["screen2words"], split, media, screen, "", texts)

    yield from read_rows(corpus, listed, f"screen2words/{split}", _listed(listed), make)


def _read_widgets(corpus: Corpus, split: str, table: Path, listed: Path) -> Found:
    screens = set(_listed(listed))
    folder = image_folder(corpus, "combined", "rico")
    trees: dict[str, object] = {}

    def make(row: dict) -> Item | None:
        screen, node = text_of(row, "screenId"), text_of(row, "nodeId")
        if screen not in screens:
            return None
        if screen not in trees:
            trees.clear()  # Rows of a screen follow each other.
            trees[screen] = _tree(corpus, folder / f"{screen}.json")
        captions = [c.strip() for c in text_of(row, "captions").split("|") if c.strip()]
        if not captions:
            raise BadInput(f"node {node} of screen {screen} has no caption")
        x0, y0, x1, y1 = (v / _CANVAS_HEIGHT for v in _bounds(trees[screen], node))
        media = corpus.media(folder / f"{screen}.jpg", edit=Edit(frame=(x0, y0, x1, y1)))
        return question(
            BENCHMARKS["widgetcap"], split, media, node, "", captions, meta={"node": node}
        )

    rows = csv_rows(table, "screenId", "nodeId", "captions")
    yield from read_rows(corpus, table, f"widgetcap/{split}", rows, make)


def _tree(corpus: Corpus, path: Path) -> object:
    if not path.is_file():
        raise BadInput(f"{corpus.relative(path)} is missing")
    return corpus.load_json(path)


def _bounds(screen: Any, node: str) -> list[float]:
    place = screen["activity"]["root"]
    for index in node.split(".")[1:]:
        place = place["children"][int(index)]
    if not isinstance(place, Mapping):
        raise BadInput(f"node {node} is not on its screen")
    bounds = place["bounds"]
    if len(bounds) != 4:
        raise BadInput(f"bounds of node {node} must be 4 numbers, got {bounds}")
    return bounds


SOURCES = (
    published(
        BENCHMARKS["screen2words"],
        splits=SPLITS,
        files=lambda split: (
            ("screen_summaries.csv",),
            (f"split/{split}_screens.txt", f"{split}_screens.txt"),
        ),
        read=_read_summaries,
        publisher="github.com/google-research-datasets/screen2words "
        "(pixels: interactionmining.org)",
    ),
    published(
        BENCHMARKS["widgetcap"],
        splits=SPLITS,
        files=lambda split: (
            ("widget_captions.csv",),
            (f"split/{split}.txt", f"{split}.txt"),
        ),
        read=_read_widgets,
        publisher="github.com/google-research-datasets/widget-caption "
        "(pixels: interactionmining.org)",
    ),
)
