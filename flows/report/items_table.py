"""A flat table of items, as Parquet: a row per benchmark, method, budget, seed and item.

Scores come in the order of the report, and the items of each by id.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
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

ITEM_COLUMNS: Mapping[str, tuple[str, str]] = {
    "benchmark": ("string", "benchmark, as in the tables"),
    "method": ("string", "method"),
    "budget": ("int64", "soft tokens per image"),
    "seed": ("int64", "seed of the transfer"),
    "pretraining": ("int64", "number of the pretraining that its training started from"),
    "id": ("string", "id of the question's record"),
    "prompt": ("string", "text that the model read: the question in the benchmark's prompt"),
    "source": ("string", "file that the picture or video comes from"),
    "answers": ("list", "accepted answers, a list of texts"),
    "prediction": ("string", "the model's answer"),
    "score": ("double", "score of the answer, 0–1; CIDEr may exceed 1"),
    "pseudo_value": (
        "double",
        "number whose plain mean is the benchmark's score, which intervals are made of; null where "
        "the score is the mean of `score`",
    ),
    "metric": ("string", "name of the metric that `score` is in"),
    "scores": ("string", "key of the artifact with the scores"),
    "predictions": ("string", "key of the artifact with the answers"),
    "checkpoint": ("string", "key of the checkpoint that answered, or whose cast did"),
    "data": ("string", "key of the dataset with the questions and pictures"),
    "scores_sha256": ("string", "digest of the scores' content"),
    "data_sha256": ("string", "digest of the dataset's content"),
    "source_sha256": (
        "string",
        "digest of the picture or video; items that share it are a cluster",
    ),
}
"""Name of a column -> its type and what it is."""

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
        """Returns a row per item, in the columns of `ITEM_COLUMNS`."""
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
    pretrainings = plan.pretraining_in_any_view
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
    """Returns the names and types of the columns."""
    import pyarrow as pa

    types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
    types["list"] = pa.list_(pa.string())
    return pa.schema({name: types[kind] for name, (kind, _) in ITEM_COLUMNS.items()})


def write_items_table(scores: Iterable[ScoreArtifacts], path: Path) -> int:
    """Writes the items of some scores as one Parquet file, and returns their number.

    Memory holds the items of one score at a time. The same scores and version of pyarrow give the
    same bytes.

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
