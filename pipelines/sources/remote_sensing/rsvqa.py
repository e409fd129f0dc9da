"""RSVQA: questions about satellite (low resolution) and aerial (high resolution) images.

    rsvqa_lr  LR_split_{train,val,test}_{questions,answers}.json              Images_LR/{img_id}.tif
    rsvqa_hr  USGS_split_{train,val,test,test_phili}_{questions,answers}.json Data/{img_id}.png
              questions[]: id, img_id, type, question, active, answers_ids
              answers[]: id, question_id, answer, active

Inactive rows are skipped. Questions that ask for a count or an area are left out, as in
big_vision's "nonum". "test_2" is the second test set, of Philadelphia.
"""

from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import index_rows, load_list, read_file

_LR = FinetuneRecipe(lr_pg1=3e-6, lr_pg2=3e-6, epochs=3, label_smoothing=0.2)

_HR = FinetuneRecipe(lr_pg1=1e-5, lr_pg2=1e-5, epochs=1)

RSVQA_LR = Benchmark(
    name="rsvqa_lr",
    config="rsvqa_lr",
    prompt="answer en {text}",
    text_len=32,
    antialias="train",
    metric="rsvqa",
    lower=True,
    tune_split="train",
    final_split="train+val",
    eval_split="test",
    rows=(ResultRow(titles=("RSVQA-lr",), split="test", resolutions=(224,)),),
    num_train=47_173,
    recipes={224: _LR, 448: _LR},
)

RSVQA_HR = Benchmark(
    name="rsvqa_hr",
    config="rsvqa_hr",
    prompt="answer en {text}",
    text_len=32,
    antialias="train",
    metric="rsvqa",
    lower=True,
    tune_split="train",
    final_split="train+val",
    eval_split="test",
    rows=(
        ResultRow(titles=("RSVQA-hr (test)", "RSVQA-hr"), split="test"),
        ResultRow(titles=("RSVQA-hr (test2)",), split="test_2"),
    ),
    num_train=432_239,
    recipes={224: _HR, 448: _HR},
)

_NUMERIC = ("count", "area")


def _read_rsvqa(benchmark: Benchmark, folder: str, extension: str):
    name = benchmark.name

    def read(corpus: Corpus, split: str, questions: Path, answers: Path) -> Listing:
        # Answers are a file of their own, looked up by id.
        answers_by_id = index_rows(answers, load_list(corpus, answers, "answers"), "id")

        def item_of_row(row: dict) -> Item | None:
            if not row["active"] or row["type"] in _NUMERIC:
                return None
            # A question has one answer, and both files must agree on which: a pair that does not is
            # published damage, not a question without an answer.
            (answer_id,) = row["answers_ids"]
            answer = answers_by_id.get(answer_id)
            if answer is None or not answer["active"] or answer["question_id"] != row["id"]:
                raise BadInput(f"question {row['id']} has no answer {answer_id}")
            return question_item(
                benchmark,
                split,
                corpus.media(corpus.folder / folder / f"{int(row['img_id'])}{extension}"),
                row["id"],
                text_under(row, "question"),
                [text_under(answer, "answer")],
                meta={"question_type": text_under(row, "type")},
            )

        yield from read_file(corpus, questions, f"{name}/{split}", item_of_row, key="questions")

    return read


def _rsvqa_files(prefix: str):
    def files(split: str) -> tuple[tuple[str, ...], ...]:
        part = "test_phili" if split == "test_2" else split
        return tuple((f"{prefix}_split_{part}_{kind}.json",) for kind in ("questions", "answers"))

    return files


SOURCES = (
    published_source(
        RSVQA_HR,
        splits=("train", "val", "test", "test_2"),
        files=_rsvqa_files("USGS"),
        read=_read_rsvqa(RSVQA_HR, "Data", ".png"),
        publisher="zenodo.org/records/6344367",
    ),
    published_source(
        RSVQA_LR,
        splits=("train", "val", "test"),
        files=_rsvqa_files("LR"),
        read=_read_rsvqa(RSVQA_LR, "Images_LR", ".tif"),
        publisher="zenodo.org/records/6344334",
    ),
)
