"""Pages, posters and signs: DocVQA, InfographicVQA, ST-VQA.

    docvqa   {train,val}_v1.0_withQT.json, test_v1.0.json; {split}/documents/*.png
             data[]: questionId, question, image ("documents/x.png"), answers
    infovqa  infographicsVQA_{train_v1.0,val_v1.0_withQT,test_v1.0}.json; images/
             data[]: questionId, question, image_local_name, answers
    stvqa    {train,test}_task_3.json; train_images/, test_task3_images/
             data[]: question_id, question, file_path ("coco-text/x.jpg"), answers

InfographicVQA: an answer that lists up to six items is accepted in any order of the items.
ST-VQA publishes no validation split. Ours has the images whose path's hash, modulo 26,074, is below
2,628: on average as many questions as the usual, unpublished split has. Its COCO-Text images are
taken from COCO's train2014 in coco/ beside this folder, if that exists, since they are larger.

The Hub's lmms-lab/DocVQA can be read as well, its InfographicVQA also from docvqa/ beside this
folder. It has the names of DocVQA's pages, but not of InfographicVQA's pictures.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.hashing import stable_hash
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow, number_under
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under, texts_under
from pipelines.sources.reading.row_files import read_file

_DOCVQA_RECIPE = FinetuneRecipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=10)


def _three_epoch_recipes(lr_pg2: float, label_smoothing: float) -> dict[int, FinetuneRecipe]:
    return {
        side: FinetuneRecipe(
            batch_size=batch_size,
            lr_pg1=1e-5,
            lr_pg2=lr_pg2,
            decay=True,
            epochs=3,
            label_smoothing=label_smoothing,
        )
        for side, batch_size in ((224, 256), (448, 128))
    }


DOCVQA = Benchmark(
    name="docvqa",
    config="docvqa",
    prompt="{text}",
    text_len=32,
    antialias="always",
    metric="anls_big_vision",
    sampling="choice",
    tune_split="train[:-5%]",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("DocVQA (val)",), split="val", suite="main", size=5_349),),
    num_train=44_812,
    recipes={224: _DOCVQA_RECIPE, 448: _DOCVQA_RECIPE},
)

INFOVQA = Benchmark(
    name="infovqa",
    config="infovqa",
    prompt="answer en {text}",
    text_len=48,
    antialias="always",
    metric="anls_big_vision",
    lower=True,
    tune_split="train",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("InfoVQA (val)",), split="val", suite="main", size=2_801),),
    num_train=26_747,
    recipes=_three_epoch_recipes(3e-6, 0.4),
)

STVQA = Benchmark(
    name="stvqa",
    config="stvqa",
    prompt="answer en {text}",
    text_len=48,
    antialias="always",
    metric="anls_big_vision",
    lower=True,
    tune_split="train",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("ST-VQA (val)", "ST-VQA"), split="val", suite="main", size=2_628),),
    num_train=26_074,
    recipes=_three_epoch_recipes(6e-6, 0.1),
)

SPLITS = ("train", "val", "test")
_MOST_ITEMS = 6
_STVQA_VAL, _STVQA_ALL = 2_628, 26_074


def _read_docvqa(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    # The archives of a split may be unpacked into a folder of its name, or beside each other.
    inner = corpus.folder / split
    folder = inner if inner.is_dir() else corpus.folder
    pictures = TablePictures(corpus)

    def item_of_row(row: dict) -> Item:
        answers = [] if split == "test" else texts_under(row, "answers")
        if isinstance(row, TableRow):
            # The page's published name is in two columns of the table, so ids are the same in both
            # layouts.
            page = f"{text_under(row, 'ucsf_document_id')}_{row['ucsf_document_page_no']}.png"
            media, key = pictures.store(row, page), number_under(row, "questionId")
        else:
            key, media = row["questionId"], corpus.media(folder / text_under(row, "image"))
        meta = {"question_id": key, "question_types": row.get("question_types") or []}
        text = text_under(row, "question")
        return question_item(DOCVQA, split, media, key, text, answers, meta=meta)

    yield from read_file(corpus, file, f"docvqa/{split}", item_of_row, key="data")


def _read_infovqa(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    folder, pictures = image_folder(corpus, "images"), TablePictures(corpus)

    def item_of_row(row: dict) -> Item:
        if isinstance(row, TableRow):
            media = pictures.store(row)
        else:
            media = corpus.media(folder / text_under(row, "image_local_name"))
        key, targets = number_under(row, "questionId"), []
        if split != "test":
            targets = texts_under(row, "answers")
        # Training draws from the published answers; the metric accepts other orders of a list as
        # well.
        return question_item(
            INFOVQA,
            split,
            media,
            key,
            text_under(row, "question"),
            reorder_answers(targets),
            targets=targets,
            meta={"question_id": key},
        )

    yield from read_file(corpus, file, f"infovqa/{split}", item_of_row, key="data")


def reorder_answers(answers: Sequence[str]) -> list[str]:
    """Returns the answers, followed by every other order of the items that an answer lists."""
    accepted = dict.fromkeys(answers)
    for answer in answers:
        items = answer.split(", ")
        if len(items) <= _MOST_ITEMS:
            accepted.update(dict.fromkeys(map(", ".join, itertools.permutations(items))))
    return list(accepted)


def _read_stvqa(corpus: Corpus, split: str, file: Path) -> Listing:
    test = split == "test"
    folder = image_folder(corpus, "test_task3_images" if test else "train_images")
    coco = image_folder(corpus, "train2014", "coco")

    def item_of_row(row: dict) -> Item | None:
        name = text_under(row, "file_path")
        # One published file, two splits of ours: the hash of the picture's path decides, so
        # questions about one picture are never in both.
        if not test and in_stvqa_val(name) != (split == "val"):
            return None
        collection, _, base = name.partition("/")
        # The same picture, larger, where COCO lies beside this folder.
        path = coco / base if collection == "coco-text" and coco.is_dir() else folder / name
        answers = [] if test else texts_under(row, "answers")
        key = row["question_id"]
        return question_item(
            STVQA,
            split,
            corpus.media(path),
            key,
            text_under(row, "question"),
            answers,
            image=name,
            meta={"question_id": key},
        )

    yield from read_file(corpus, file, f"stvqa/{split}", item_of_row, key="data")


def in_stvqa_val(file_path: str) -> bool:
    """Returns whether a training image belongs to our validation split."""
    return stable_hash(f"stvqa/{file_path}") % _STVQA_ALL < _STVQA_VAL


def _docvqa_files(split: str) -> tuple[tuple[str, ...], ...]:
    names = [f"{split}_v1.0.json"]
    if split != "test":
        names.insert(0, f"{split}_v1.0_withQT.json")
    return (tuple(folder + name for folder in ("", f"{split}/") for name in names),)


_INFOVQA = {"train": "train_v1.0", "val": "val_v1.0_withQT", "test": "test_v1.0"}
_COMPETITION = "rrc.cvc.uab.es"
_ON_THE_HUB = {"train": "train", "val": "validation", "test": "test"}

SOURCES = (
    published_source(
        DOCVQA,
        splits=SPLITS,
        files=_docvqa_files,
        read=_read_docvqa,
        publisher=f"{_COMPETITION} (challenge 17, task 1)",
        tables={
            split: table_patterns(on_hub, folders=["DocVQA"])
            for split, on_hub in _ON_THE_HUB.items()
        },
    ),
    published_source(
        INFOVQA,
        splits=SPLITS,
        files=lambda split: (
            (f"infographicsVQA_{_INFOVQA[split]}.json", f"infographicsVQA_{split}_v1.0.json"),
        ),
        read=_read_infovqa,
        publisher=f"{_COMPETITION} (challenge 17, task 3)",
        tables={
            split: table_patterns(on_hub, folders=["InfographicVQA", "../docvqa/InfographicVQA"])
            for split, on_hub in _ON_THE_HUB.items()
        },
    ),
    published_source(
        STVQA,
        splits=SPLITS,
        files=lambda split: ((f"{'test' if split == 'test' else 'train'}_task_3.json",),),
        read=_read_stvqa,
        publisher=f"{_COMPETITION} (challenge 11, task 3)",
    ),
)
