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

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Edit, Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under
from pipelines.sources.reading.row_files import (
    check_width,
    csv_rows,
    group_rows,
    read_file,
    read_rows,
)

_SCREEN2WORDS = FinetuneRecipe(
    lr_pg1=1e-5, lr_pg2=6e-6, epochs=10, label_smoothing=0.2, dropout=0.3
)

_WIDGETCAP = FinetuneRecipe(
    batch_size=64, lr_pg1=3e-6, lr_pg2=3e-6, decay=True, epochs=4, label_smoothing=0.1, dropout=0.1
)

SCREEN2WORDS = Benchmark(
    name="screen2words",
    config="screen2words",
    prompt="caption en",
    text_len=24,
    metric="cider",
    tune_split="train",
    final_split="train+dev",
    eval_split="test",
    rows=(ResultRow(titles=("Screen2Words",), split="test", size=4_310),),
    num_train=18_107,
    recipes={224: _SCREEN2WORDS, 448: _SCREEN2WORDS},
)

WIDGETCAP = Benchmark(
    name="widgetcap",
    config="widgetcap",
    prompt="caption en",
    text_len=32,
    antialias="always",
    metric="cider",
    tune_split="train",
    final_split="train+dev",
    eval_split="test",
    rows=(ResultRow(titles=("WidgetCap",), split="test", suite="main"),),
    num_train=44_704,
    recipes={224: _WIDGETCAP, 448: _WIDGETCAP},
)

SPLITS = ("train", "dev", "test")
_CANVAS_HEIGHT = 2560


def _screen_ids(corpus: Corpus, path: Path) -> list[str]:
    return corpus.read_text(path).split()


def _read_summaries(corpus: Corpus, split: str, table: Path, listed: Path) -> Listing:
    # Five summaries of each screen are rows of their own, so they are grouped first.
    rows = group_rows(csv_rows(table, "screenId", "summary"), "screenId")
    summaries = {group[0]["screenId"]: group for group in rows}
    folder = image_folder(corpus, "combined", "rico")

    def item_of_row(screen: str) -> Item:
        if screen not in summaries:
            raise BadInput(f"screen {screen} has no summary")
        check_width(summaries[screen])
        texts = [text_under(row, "summary") for row in summaries[screen]]
        media = corpus.media(folder / f"{screen}.jpg")
        return question_item(SCREEN2WORDS, split, media, screen, "", texts)

    screens = _screen_ids(corpus, listed)
    yield from read_rows(corpus, listed, f"screen2words/{split}", screens, item_of_row)


def _read_widgets(corpus: Corpus, split: str, table: Path, listed: Path) -> Listing:
    # One table for all splits; the lists say which screens belong to this one.
    screens = set(_screen_ids(corpus, listed))
    folder = image_folder(corpus, "combined", "rico")
    trees: dict[str, object] = {}

    def item_of_row(row: dict) -> Item | None:
        screen, node = text_under(row, "screenId"), text_under(row, "nodeId")
        if screen not in screens:
            return None
        # A screen's tree of widgets is parsed once, not once for each of its widgets.
        if screen not in trees:
            trees.clear()  # Rows of a screen follow each other.
            trees[screen] = _view_tree(corpus, folder / f"{screen}.json")
        captions = [c.strip() for c in text_under(row, "captions").split("|") if c.strip()]
        if not captions:
            raise BadInput(f"node {node} of screen {screen} has no caption")
        # Both axes are divided by the height, as `Edit.frame` is in fractions of it: a canvas of
        # 1440 x 2560 has x up to 0.5625.
        x0, y0, x1, y1 = (v / _CANVAS_HEIGHT for v in _widget_bounds(trees[screen], node))
        media = corpus.media(folder / f"{screen}.jpg", edit=Edit(frame=(x0, y0, x1, y1)))
        return question_item(WIDGETCAP, split, media, node, "", captions, meta={"node": node})

    columns = ("screenId", "nodeId", "captions")
    yield from read_file(
        corpus, table, f"widgetcap/{split}", item_of_row, form="csv", columns=columns
    )


def _view_tree(corpus: Corpus, path: Path) -> object:
    if not path.is_file():
        raise BadInput(f"{corpus.relative(path)} is missing")
    return corpus.load_json(path)


def _widget_bounds(screen: Any, node: str) -> list[float]:
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
    published_source(
        SCREEN2WORDS,
        splits=SPLITS,
        files=lambda split: (
            ("screen_summaries.csv",),
            (f"split/{split}_screens.txt", f"{split}_screens.txt"),
        ),
        read=_read_summaries,
        publisher="github.com/google-research-datasets/screen2words "
        "(pixels: interactionmining.org)",
    ),
    published_source(
        WIDGETCAP,
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
