"""A flat table of items, as Parquet: a row per benchmark, method, budget, seed and item.

    benchmark, method, budget, seed, pretraining    the score that the item is one of
    id, prompt, source, answers, prediction         as `parcel.items` has them
    score                                           of the item [0-1]
    pseudo_value                                    see `PredictionScores`; null where the score is
                                                    the plain mean of its items
    metric                                          name of the metric that `score` is in
    scores, predictions, checkpoint, data           keys of the artifacts that it comes from
    scores_sha256, data_sha256, source_sha256       digests of contents: of the scores, of the
                                                    questions with their pictures, of the picture

Scores come in the order of the report, and the items of each by id.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flows.report.cells import CellKey, Plan, Report
from flows.report.gather import trained_checkpoint
from infra.store.manifest import Manifest
from infra.store.store import Artifact
from model.eval.items_file import ItemsFile
from model.eval.score_json import read_score
from model.files import SCORE

if TYPE_CHECKING:
    import pyarrow

_RIGHT = 0.5
"""Smallest score of a right item [0-1]."""

_OF_ITEM = {
    "id": "id",
    "prompt": "prefix",
    "source": "source",
    "source_sha256": "source_sha256",
    "answers": "answers",
    "prediction": "prediction",
    "score": "score",
}
"""Column -> the column of a scores artifact that has it."""


def is_right(score: float) -> bool:
    """Returns whether an item's score in 0-1 counts as a right answer."""
    return score >= _RIGHT


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreArtifacts:
    """The artifacts of one score: what its items share.

    Attributes:
      cell: its place in the study.
      pretraining: number of the pretraining that its training started from.
      folder: folder of the scores artifact.
      scores, predictions, data: manifests of the scores, the answers and the questions.
      checkpoint: manifest of the checkpoint that answered, or whose cast did.
    """

    cell: CellKey
    pretraining: int
    folder: Path
    scores: Manifest
    predictions: Manifest
    checkpoint: Manifest
    data: Manifest

    @classmethod
    def of(
        cls, cell: CellKey, pretraining: int, key: str, recall: Callable[[str], Artifact]
    ) -> "ScoreArtifacts":
        """Returns the artifacts of a score.

        Args:
          cell: its place in the study.
          pretraining: number of its pretraining.
          key: key of the scores artifact.
          recall: function from a key to its artifact.
        """
        scores = recall(key)
        predictions = recall(scores.manifest.inputs["predictions"].key).manifest
        return cls(
            cell=cell,
            pretraining=pretraining,
            folder=scores.path,
            scores=scores.manifest,
            predictions=predictions,
            checkpoint=trained_checkpoint(predictions, recall),
            data=recall(predictions.inputs["data"].key).manifest,
        )

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return read_score(self.folder / SCORE)["metric"]

    def table(self) -> "pyarrow.Table":
        """Returns a row per item, in the columns of this module."""
        import pyarrow as pa  # Here: it takes long, and few users of a report read items.

        file = ItemsFile(self.folder)
        columns = dict(zip(_OF_ITEM, file.columns(*_OF_ITEM.values()), strict=True))
        num = len(columns["id"])
        pseudo_values = file.columns("pseudo_value")[0] if file.has_pseudo_values else [None] * num
        shared = {
            **dataclasses.asdict(self.cell),
            "pretraining": self.pretraining,
            "metric": self.metric,
            "scores": self.scores.key,
            "predictions": self.predictions.key,
            "checkpoint": self.checkpoint.key,
            "data": self.data.key,
            "scores_sha256": self.scores.content,
            "data_sha256": self.data.content,
        }
        schema = items_schema()
        arrays = [
            pa.repeat(pa.scalar(shared[field.name], field.type), num)
            if field.name in shared
            else pa.array({**columns, "pseudo_value": pseudo_values}[field.name], field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def scores_of(
    report: Report, plan: Plan, recall: Callable[[str], Artifact]
) -> Iterator[ScoreArtifacts]:
    """Yields the artifacts of every score of a report, in its order.

    Args:
      report: the report.
      plan: the report's plan.
      recall: function from a key to its artifact.
    """
    pretrainings = plan.pretraining_at_any_resolution
    for section in report.sections:
        for cell in section.cells:
            for score in cell.scores:
                place = CellKey(
                    benchmark=score.benchmark,
                    method=score.method,
                    budget=score.budget,
                    seed=score.seed,
                )
                yield ScoreArtifacts.of(place, pretrainings[score.seed], score.artifact, recall)


def items_schema() -> "pyarrow.Schema":
    """Returns the columns and their types."""
    import pyarrow as pa

    text, number, count = pa.string(), pa.float64(), pa.int64()
    return pa.schema(
        {
            "benchmark": text,
            "method": text,
            "budget": count,
            "seed": count,
            "pretraining": count,
            "id": text,
            "prompt": text,
            "source": text,
            "answers": pa.list_(text),
            "prediction": text,
            "score": number,
            "pseudo_value": number,
            "metric": text,
            "scores": text,
            "predictions": text,
            "checkpoint": text,
            "data": text,
            "scores_sha256": text,
            "data_sha256": text,
            "source_sha256": text,
        }
    )


def write_items_table(scores: Iterable[ScoreArtifacts], path: Path) -> int:
    """Writes the items of some scores as one Parquet file, and returns their number.

    Memory holds the items of one score at a time. The same scores give the same bytes.

    Raises:
      OSError: if the file cannot be written; nothing is left of it then.
    """
    from pyarrow import parquet

    # Under another name until it is whole, so that no reader takes a part for all.
    partial = path.with_name(f"{path.name}.partial")
    num = 0
    try:
        with parquet.ParquetWriter(partial, items_schema(), compression="zstd") as writer:
            for score in scores:
                table = score.table()
                writer.write_table(table)
                num += table.num_rows
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return num
