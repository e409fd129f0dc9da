"""The items of a cell: each with its picture, its question, and what every seed answered."""

import functools
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args, overload

from PIL import Image

from flows.lookup.runs import results_artifact
from flows.lookup.target import find_target
from flows.pages.item_scores import ScoredItem
from flows.pages.record_cards import Card, Cards
from flows.pages.run_results import Column
from flows.pages.sample_table import card_rows, paint_boxes
from flows.report.cells import CellKey
from flows.report.items_table import ScoreArtifacts
from flows.steps.registry import typed_config
from infra.errors import ConfigError
from infra.store.store import Store
from parcel.optional import import_pandas

if TYPE_CHECKING:
    import pandas

CellFilter = Literal["all", "right", "wrong"]

_SHOWN = 8
"""Number of items in a notebook's view of a list."""
_PX = 224
"""Longer side of a picture in a notebook's view [pixels]."""


class CellItem:
    """An item, as a cell answered it.

    Attributes:
      id: id of its record.
      score: its score, the mean over the cell's seeds [0-1].
      prompt: text that the model read.
      answers: accepted answers.
      source: the file that the picture comes from.
      predictions: seed -> what the model wrote.
      scores: seed -> score [0-1].
    """

    def __init__(self, cards: Cards, data: str, column: Column, item: ScoredItem) -> None:
        # A card holds the texts escaped, for a page; here they are as the model read and wrote
        # them.
        rows = dict(cards.answers.rows(column, item.id))
        self._card: Card = cards.of(data, item.id)
        self._card.add(column, item.scores[0], rows.items(), "")
        self.id, self.score = item.id, item.scores[0]
        # Of the first seed: all seeds were asked the same.
        asked = next(iter(rows.values()))
        self.prompt: str = asked["prefix"]
        self.answers: tuple[str, ...] = tuple(asked["answers"])
        self.source: str = asked["source"]
        self.predictions: Mapping[int, str] = {s: row["prediction"] for s, row in rows.items()}
        self.scores: Mapping[int, float] = {s: row["score"] for s, row in rows.items()}

    @functools.cached_property
    def images(self) -> list[Image.Image]:
        """The pictures that the model saw, at their stored size; of a video, the frames.

        The first has the boxes that question and answers name. Empty if `gc` deleted the files
        of the dataset.
        """
        record = self._card.record
        window = record.window() if record else ()
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in window]
        for image in images[:1]:
            paint_boxes(image, self._card)
        return images

    def __repr__(self) -> str:
        said = ", ".join(
            f"{text!r} ({100 * self.scores[s]:.0f})" for s, text in self.predictions.items()
        )
        return f"{self.id}: {self.prompt!r} accepts {', '.join(self.answers)}; answered {said}"

    def _repr_html_(self) -> str:
        return _cell_items_html([self._card], [*self.predictions])


class CellItems(Sequence[CellItem]):
    """Items of a cell, in the order of their ids; a notebook shows the first with pictures.

    Args:
      store: the store of the run.
      cell: RUN/BENCHMARK/METHOD/BUDGET for all its seeds, or the same with /SEED.
      show: "right" for items whose mean score over seeds is at least 0.5, "wrong" for the others,
        or "all".
      find: text that an item's id must contain.

    Raises:
      ConfigError: if there is no such cell, listing those that exist; or `show` is none of these.
    """

    def __init__(
        self, store: Store, cell: str, *, show: CellFilter = "all", find: str = ""
    ) -> None:
        if show not in get_args(CellFilter):
            raise ConfigError(
                f"show must be one of {', '.join(get_args(CellFilter))}, got {show!r}."
            )
        target = find_target(store, cell)
        if not target.seeds:
            raise ConfigError(f"a cell must be RUN/BENCHMARK/METHOD/BUDGET[/SEED], got {cell!r}.")
        run, benchmark, method, budget, *_ = cell.split("/")
        self._store, self._run, self._benchmark = store, run, benchmark
        keys = [artifact.key for artifact in target.artifacts]
        self._column = Column(
            method=method,
            budget=int(budget),
            artifacts=dict(zip(target.seeds, keys, strict=True)),
        )
        self._data = target.artifacts[0].manifest.inputs["data"].key
        self._cards = Cards(store)
        try:
            self._items: Sequence[ScoredItem] = self._cards.answers.items(
                [self._column], show, find
            )
        except KeyError as error:  # A cell of an earlier version.
            raise ConfigError(str(error.args[0])) from None

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> CellItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[CellItem]: ...
    def __getitem__(self, index: int | slice) -> CellItem | list[CellItem]:
        """Returns an item; its row and its record are read now."""
        if isinstance(index, slice):
            return [self._read_cell_item(item) for item in self._items[index]]
        return self._read_cell_item(self._items[index])

    def _read_cell_item(self, item: ScoredItem) -> CellItem:
        return CellItem(self._cards, self._data, self._column, item)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a row per item and seed, in the columns of `parcel results --format items`.

        Raises:
          ConfigError: if pandas is not installed.
        """
        pandas = import_pandas("the items one by one")
        plan = typed_config(
            "results", results_artifact(self._store, self._run).manifest.config
        ).plan
        column, frames = self._column, []
        for seed, key in column.artifacts.items():
            cell = CellKey(
                benchmark=self._benchmark, method=column.method, budget=column.budget, seed=seed
            )
            pretraining = plan.pretraining_in_any_view[seed]
            score = ScoreArtifacts.of(cell, pretraining, key, self._store.get_cached)
            frames.append(score.table().to_pandas())
        frame = pandas.concat(frames, ignore_index=True)
        listed = {item.id for item in self._items}
        return frame[frame["id"].isin(listed)].reset_index(drop=True)

    def __repr__(self) -> str:
        more = f"\nand {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
        return "\n".join(map(repr, self[:_SHOWN])) + more

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - _SHOWN} more</p>" if len(self) > _SHOWN else ""
        return (
            _cell_items_html([item._card for item in self[:_SHOWN]], [*self._column.artifacts])
            + more
        )


def _cell_items_html(cards: Sequence[Card], seeds: Sequence[int]) -> str:
    """Returns items as an HTML table: picture, question with accepted answers, answer by seed."""
    head = "".join(f"<th>seed {seed}</th>" for seed in seeds)
    return (
        f"<table><tr><th></th><th>question, accepted answers</th>{head}</tr>"
        f"{''.join(card_rows(cards, _PX))}</table>"
    )
