"""Cards: the pictures, texts and answers of one record, as pages show them."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from flows.pages.item_scores import Reader
from flows.pages.mask_overlays import Masks
from flows.pages.pictures import PictureBoxes, Records
from flows.report.items import guess_rows
from flows.steps.registry import kind_of
from infra.store.store import Artifact, Store
from model.eval.predictions_file import read_predictions
from pipelines.records.schema import Record


class Card:
    """An item as a page shows it: its pictures, its texts and its answers.

    Attributes:
      data: key of the record's dataset.
      id: the record's id.
      record: the record; None if its files are no longer in the store.
      boxes: boxes and masks of all its texts.
      prefix: text that the model reads.
      answers: accepted answers.
      told: (column that answered or "", mean score, (seed, answer, score) of each seed); scores are
        None where the answers were not scored.
    """

    def __init__(self, data: str, item: str, record: Record | None) -> None:
        self.data, self.id, self.record = data, item, record
        self.boxes = PictureBoxes(data)
        self.prefix = self.boxes.text(record.prefix if record else "")
        accepted = (record.answers or record.suffixes) if record else ()
        self.answers = [self.boxes.text(answer) for answer in accepted]
        self.columns: list[tuple[Any, float | None, list[tuple[int, Markup, float | None]]]] = []

    def add(
        self,
        whose: object,
        mean: float | None,
        rows: Iterable[tuple[int, Mapping[str, Any]]],
        codec: str,
    ) -> None:
        """Adds the answers of some seeds; `codec` is the key of their mask codec, or ""."""
        boxes = self.boxes
        texts = [(s, boxes.text(row["prediction"], codec), row.get("score")) for s, row in rows]
        self.columns.append((whose, mean, texts))

    @property
    def num_images(self) -> int:
        """Number of pictures that the model looked at; for a video, those of its first window."""
        return len(self.record.window()) if self.record else 0


class Cards:
    """Cards of the records of a store; safe to share between threads.

    Attributes:
      answers: reader of answers and their scores.
      records: reader of the datasets' records.
      masks: reader of masks that models wrote.

    Args:
      store: the store of all these.
    """

    def __init__(self, store: Store) -> None:
        self.answers, self.records, self.masks = Reader(store), Records(store), Masks(store)

    def of(self, data: str, item: str) -> Card:
        """Returns the card of a record of a dataset, without any answers."""
        return Card(data, item, self.records.find(data, item))

    def samples(self, artifact: Artifact, limit: int) -> Iterator[Card]:
        """Yields cards of a few records of a dataset, or of a few answers, scores or guesses.

        There are none for other artifacts, or if the files are gone.
        """
        key, kind = artifact.key, kind_of(artifact.manifest)
        if kind.holds == "dataset":
            for record in self.records.samples(key, limit):
                yield Card(key, record.id, record)
        elif kind.items:
            data = artifact.manifest.inputs[kind.items].key
            with contextlib.suppress(FileNotFoundError):  # gc deleted its files.
                for row in self._card_answer_rows(artifact, limit):
                    card = self.of(data, row["id"])
                    card.add("", row.get("score"), [(0, row)], self.masks.codec_of(key))
                    yield card

    def _card_answer_rows(self, artifact: Artifact, limit: int) -> Iterable[Mapping[str, Any]]:
        match kind_of(artifact.manifest).holds:
            case "scores":
                return self.answers.file(artifact.key).spread(limit)
            case "guesses":
                rows = itertools.islice(guess_rows(artifact.path, ("id", "score")), limit)
                return [{"id": item, "score": score, "prediction": ""} for item, score in rows]
        return itertools.islice(read_predictions(artifact.path), limit)
