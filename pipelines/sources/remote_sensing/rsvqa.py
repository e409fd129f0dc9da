"""RSVQA: questions about satellite (low resolution) and aerial (high resolution) images.

    rsvqa_lr  LR_split_{train,val,test}_{questions,answers}.json              Images_LR/{img_id}.tif
    rsvqa_hr  USGS_split_{train,val,test,test_phili}_{questions,answers}.json Data/{img_id}.png
              questions[]: id, img_id, type, question, active, answers_ids
              answers[]: id, question_id, answer, active

Inactive rows are skipped. Questions that ask for a count or an area are left out, as in
big_vision's "nonum". "test_2" is the second test set, of Philadelphia.
"""

from pathlib import Path

from pipelines.benchmarks.remote_sensing import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    indexed,
    load_list,
    question,
    read_rows,
    text_of,
)
from pipelines.sources.spec import published

_NUMERIC = ("count", "area")


def _reader(name: str, folder: str, extension: str):
    def read(corpus: Corpus, split: str, questions: Path, answers: Path) -> Found:
        given = indexed(answers, load_list(corpus, answers, "answers"), "id")

        def make(row: dict) -> Item | None:
            if not row["active"] or row["type"] in _NUMERIC:
                return None
            (answer_id,) = row["answers_ids"]
            found = given.get(answer_id)
            if found is None or not found["active"] or found["question_id"] != row["id"]:
                raise BadInput(f"question {row['id']} has no answer {answer_id}")
            return question(
                BENCHMARKS[name],
                split,
                corpus.media(corpus.folder / folder / f"{int(row['img_id'])}{extension}"),
                row["id"],
                text_of(row, "question"),
                [text_of(found, "answer")],
                meta={"question_type": text_of(row, "type")},
            )

        rows = load_list(corpus, questions, "questions")
        yield from read_rows(corpus, questions, f"{name}/{split}", rows, make)

    return read


def _files(prefix: str):
    def files(split: str) -> tuple[tuple[str, ...], ...]:
        part = "test_phili" if split == "test_2" else split
        return tuple((f"{prefix}_split_{part}_{what}.json",) for what in ("questions", "answers"))

    return files


SOURCES = (
    published(
        BENCHMARKS["rsvqa_hr"],
        splits=("train", "val", "test", "test_2"),
        files=_files("USGS"),
        read=_reader("rsvqa_hr", "Data", ".png"),
        publisher="zenodo.org/records/6344367",
    ),
    published(
        BENCHMARKS["rsvqa_lr"],
        splits=("train", "val", "test"),
        files=_files("LR"),
        read=_reader("rsvqa_lr", "Images_LR", ".tif"),
        publisher="zenodo.org/records/6344334",
    ),
)
