"""Questions about photographs, each answered by ten people: VQAv2, OK-VQA, VizWiz.

    vqav2     v2_OpenEnded_mscoco_{train2014,val2014,test2015,test-dev2015}_questions.json
              v2_mscoco_{train2014,val2014}_annotations.json
    okvqa     OpenEnded_mscoco_{train,val}2014_questions.json
              mscoco_{train,val}2014_annotations.json
    vizwizvqa annotations/{train,val,test}.json and {split}/*.jpg

Images of COCO 2014 and 2015 are in this folder, or in coco/ beside it.

The Hub's tables can be read as well: lmms-lab/VQAv2; lmms-lab/OK-VQA, which has no names of
pictures, but whose question ids are the picture's number and one digit; lmms-lab/VizWiz-VQA, whose
question_id is the picture's name.
"""

import re
import sys
from pathlib import Path
from typing import Any

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow, answer_texts, number_under
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under, texts_under
from pipelines.sources.reading.row_files import index_rows, load_list, read_file
from pipelines.sources.reading.values import answer_of, is_absent

VQAV2 = Benchmark(
    name="vqav2",
    config="vqav2",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="vqav2",
    tune_split="train+val[:-10240]",
    final_split="train+val",
    eval_split="val[-10240:]",
    rows=(ResultRow(titles=("VQAv2 (minival)", "VQAv2 (val)"), split="val[-10240:]", size=10_240),),
    num_train=658_111,
    recipes={
        224: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=10),
        448: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=3e-6, epochs=10),
    },
)

_OKVQA_RECIPE = FinetuneRecipe(batch_size=128, lr_pg1=5e-6, lr_pg2=3e-6, epochs=10)
OKVQA = Benchmark(
    name="okvqa",
    config="okvqa",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="vqa",
    tune_split="train[:-10%]",
    final_split="train",
    eval_split="val",
    rows=(ResultRow(titles=("OKVQA",), split="val", size=5_046),),
    num_train=9_009,
    recipes={224: _OKVQA_RECIPE, 448: _OKVQA_RECIPE},
)

_VIZWIZ_RECIPE = FinetuneRecipe(lr_pg1=1e-5, lr_pg2=1e-5, epochs=10)
VIZWIZVQA = Benchmark(
    name="vizwizvqa",
    config="vizwizvqa",
    prompt="answer en {text}",
    text_len=48,
    antialias="train",
    metric="vqa",
    tune_split="train",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("VizWizVQA (val)", "VizWizVQA"), split="val", size=4_319),),
    num_train=24_842,
    recipes={224: _VIZWIZ_RECIPE, 448: _VIZWIZ_RECIPE},
)

_COCO_SPLITS = {
    "train": "train2014",
    "val": "val2014",
    "test": "test2015",
    "test-dev": "test-dev2015",
}
_ANSWERED = ("train", "val")


def _answer_only(row: dict) -> object:
    """Replaces an answer's object by its text, a tenth of the memory; keeps every other object."""
    return sys.intern(row["answer"]) if "answer_id" in row and "answer" in row else row


def _coco_question_reader(benchmark: Benchmark):
    name = benchmark.name

    def read(
        corpus: Corpus,
        split: str,
        questions: Path | list[Path],
        annotations: Path | None = None,
    ) -> Listing:
        # Questions of "test-dev" are about pictures of "test".
        images = _COCO_SPLITS[split].replace("-dev", "")
        folder, pictures = image_folder(corpus, images, "coco"), TablePictures(corpus)
        annotated: dict[Any, Any] = {}
        if annotations:
            listed = load_list(corpus, annotations, "annotations", compact=_answer_only)
            annotated = index_rows(annotations, listed, "question_id")

        def item_of_row(row: dict) -> Item:
            key, answers = number_under(row, "question_id"), []
            if isinstance(row, TableRow):
                # The id of an OK-VQA question is its picture's number and one more digit.
                number, kinds = row.get("image_id", key // 10), row
                if split in _ANSWERED:
                    answers = texts_under({"answers": answer_texts(row["answers"])}, "answers")
                media = pictures.store(row, _coco_file(images, number))
            else:
                # A question of "train" or "val" must be annotated; those of test splits are not
                # published.
                if annotations and key not in annotated:
                    raise BadInput(f"question {key} has no annotation")
                kinds = annotated.get(key, {})
                answers = texts_under(kinds, "answers") if kinds else []
                media = corpus.media(folder / _coco_file(images, row["image_id"]))
            types = {k: kinds[k] for k in ("question_type", "answer_type") if kinds.get(k)}
            text, meta = text_under(row, "question"), {"question_id": key, **types}
            return question_item(benchmark, split, media, key, text, answers, meta=meta)

        yield from read_file(corpus, questions, f"{name}/{split}", item_of_row, key="questions")

    return read


def _coco_file(folder: str, number: object) -> str:
    return f"COCO_{folder}_{int(number):012d}.jpg"  # type: ignore[call-overload]


def _coco_files(prefix: str):
    def files(split: str) -> tuple[tuple[str, ...], ...]:
        part = _COCO_SPLITS[split]
        questions = (f"{prefix}OpenEnded_mscoco_{part}_questions.json",)
        if split not in _ANSWERED:
            return (questions,)
        return questions, (f"{prefix}mscoco_{part}_annotations.json",)

    return files


def _read_vizwiz(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    folder, pictures = image_folder(corpus, split), TablePictures(corpus)

    def item_of_row(row: dict) -> Item:
        if isinstance(row, TableRow):
            media = pictures.store(row, f"{text_under(row, 'question_id')}.jpg")
            answer_type = row.get("category") or ""
        else:
            media, answer_type = corpus.media(folder / row["image"]), row.get("answer_type", "")
        answers = []
        if split != "test":
            # Of ten people, some gave no answer; those who did are enough.
            answers = [
                answer_of(answer, "answers")
                for answer in answer_texts(row["answers"])
                if not is_absent(answer) and answer != ""
            ]
            if not answers:
                raise BadInput("every answer is empty")
        # "VizWiz_val_00000042.jpg" is question 42: there is one question per picture.
        key = int(re.findall(r"\d+", Path(media.member or media.path).name)[-1])
        meta = {"question_id": key, "answer_type": answer_type}
        text = text_under(row, "question")
        return question_item(VIZWIZVQA, split, media, key, text, answers, meta=meta)

    yield from read_file(corpus, file, f"vizwizvqa/{split}", item_of_row)


_TABLES = {
    "train": table_patterns("train"),
    "val": table_patterns("validation", "val", "val2014"),
    "test": table_patterns("test"),
    "test-dev": table_patterns("testdev"),
}

SOURCES = (
    published_source(
        OKVQA,
        splits=("train", "val"),
        files=_coco_files(""),
        read=_coco_question_reader(OKVQA),
        publisher="okvqa.allenai.org/download.html",
        tables=_TABLES,
    ),
    published_source(
        VIZWIZVQA,
        splits=("train", "val", "test"),
        files=lambda split: ((f"annotations/{split}.json", f"Annotations/{split}.json"),),
        read=_read_vizwiz,
        publisher="vizwiz.org/tasks-and-datasets/vqa",
        tables=_TABLES,
    ),
    published_source(
        VQAV2,
        splits=tuple(_COCO_SPLITS),
        files=_coco_files("v2_"),
        read=_coco_question_reader(VQAV2),
        publisher="visualqa.org/download.html",
        tables=_TABLES,
    ),
)
