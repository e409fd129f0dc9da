"""Small benchmarks in the layouts their authors publish, written for tests; all rows are invented.

Every writer makes one good row at least for each split a test reads, and one that is malformed.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image


def put_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def put_lines(path: Path, rows: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def put_table(path: Path, header: str, *rows: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(), *rows])


def put_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def put_image(path: Path, width: int = 40, height: int = 30, colour: str = "navy") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), colour).save(path)


def ten(first: str, other: str = "no") -> list[dict]:
    words = [first] * 4 + [other] * 6
    return [{"answer": w, "answer_confidence": "yes", "answer_id": i} for i, w in enumerate(words)]


def _karpathy(path: Path) -> None:
    def image(number: int, split: str, folder: str, *captions: str) -> dict:
        return {
            "cocoid": number,
            "filepath": folder,
            "filename": f"COCO_{folder}_{number:012d}.jpg",
            "split": split,
            "sentences": [{"raw": c, "tokens": c.lower().split()} for c in captions],
        }

    images = [
        image(9, "train", "train2014", "A red kite.", "Kites fly"),
        image(25, "restval", "val2014", "A dog."),
        image(42, "val", "val2014", "Two Cats sit.", "Cats."),
        {**image(43, "val", "val2014", " "), "sentences": [{"tokens": []}]},
        image(44, "test", "val2014", "A bird.", " "),
        image(45, "test", "val2014", ""),
    ]
    put_json(path, {"dataset": "coco", "images": images})


def write_cococap(root: Path) -> None:
    _karpathy(root / "cococap/dataset_coco.json")


def write_nocaps(root: Path) -> None:
    images = [
        {"id": 0, "file_name": "0013ea.jpg", "domain": "near-domain", "coco_url": "x"},
        {"id": 1, "file_name": "bare.jpg", "domain": "in-domain", "coco_url": "x"},
    ]
    said = [{"image_id": 0, "id": n, "caption": f"A baby {n}."} for n in range(10)]
    put_json(root / "nocaps/nocaps_val_4500_captions.json", {"images": images, "annotations": said})
    put_json(root / "nocaps/nocaps_test_image_info.json", {"images": images})


def write_coco35l(root: Path) -> None:
    _karpathy(root / "coco/dataset_coco.json")

    def row(image: str, lang: str, text: str) -> dict:
        return {
            "image_id": image,
            "caption_tokenized": f"english {image}",
            "translation_tokenized": text,
            "trg_lang": lang,
        }

    rows = [
        row("42_0", "de", "Zwei Katzen sitzen"),
        row("42_0", "sw", "Paka wawili"),
        row("42_1", "de", "Katzen"),
        {"image_id": "42_2", "trg_lang": "de"},
        row("77_0", "de", "Unbekannt"),
    ]
    put_lines(root / "coco35l/coco_mt_dev.jsonl", rows)


def write_xm3600(root: Path) -> None:
    rows = [
        {
            "image/key": "00a1",
            "image/locale": "quz",
            "en": {"caption": ["A Street.", "A town"], "caption/tokenized": ["a street"]},
            "quz": {"caption": ["Ñan"], "caption/tokenized": ["ñan"]},
        },
        {"image/key": "00a2", "en": {"caption": []}},
    ]
    put_lines(root / "xm3600/captions.jsonl", rows)


def write_textcaps(root: Path) -> None:
    rows = [
        {"image_id": "a1", "image_name": "a1", "caption_str": "A sign that says STOP"},
        {"image_id": "b2", "image_name": "b2", "caption_str": "A Bottle"},
        {"image_id": "a1", "image_name": "a1", "caption_str": "Red sign"},
        {"image_name": "c3", "caption_str": "no id"},
    ]
    put_json(root / "textcaps/TextCaps_0.1_val.json", {"data": rows})
    put_json(
        root / "textcaps/TextCaps_0.1_test.json", {"data": [{"image_id": "t", "image_name": "t"}]}
    )


def write_textvqa(root: Path) -> None:
    def row(image: str, number: int) -> dict:
        answers = ["nokia"] * 8 + ["Nokia", "phone"]
        return {
            "question_id": number, "image_id": image, "question": "what brand?", "answers": answers,
        }  # fmt: skip

    rows = [row("a1", 5), row("b2", 6), {**row("b2", 7), "answers": "nokia"}]
    put_json(root / "textvqa/TextVQA_0.5.1_val.json", {"data": rows})
    bare = {"question_id": 8, "image_id": "t", "question": "who?"}
    put_json(root / "textvqa/TextVQA_0.5.1_test.json", {"data": [bare]})
    turned = [("b2", "270.0"), ("a1", "0.0"), ("zz", "nan")]
    put_table(root / "textvqa/train_images/rotation.csv", "ImageID Rotation", *turned)


def write_scicap(root: Path) -> None:
    home = root / "scicap/scicap_data"
    lists = home / "List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig"
    names = ["1001.0001v1-Figure2-1.png", "1001.0002v1-Figure1-1.png"]
    put_json(lists / "train/file_idx.json", names)
    row = {
        "0-originally-extracted": "Figure 2: Loss.",
        "1-lowercase-and-token-and-remove-figure-index": {"caption": "loss over time ."},
    }
    put_json(home / "SciCap-Caption-All/Train/1001.0001v1-Figure2-1.json", row)


def write_screen2words(root: Path) -> None:
    rows = [(7, f"screen of an app {n}") for n in range(5)] + [(8, "Login page")]
    put_table(root / "screen2words/screen_summaries.csv", "screenId summary", *rows)
    put_text(root / "screen2words/split/test_screens.txt", "7\n99\n")
    put_text(root / "screen2words/split/dev_screens.txt", "8")


def write_widgetcap(root: Path) -> None:
    button = {"bounds": [288, 640, 576, 1280]}
    tree = {"activity": {"root": {"bounds": [0, 0, 1440, 2560], "children": [{}, button]}}}
    put_json(root / "rico/combined/7.json", tree)
    rows = [(7, "0.1", "go back|Return"), (7, "0.5", "off the tree"), (8, "0.1", "elsewhere")]
    put_table(root / "widgetcap/widget_captions.csv", "screenId nodeId captions", *rows)
    put_text(root / "widgetcap/split/test.txt", "7\n")


def _coco_questions(folder: Path, prefix: str, part: str) -> None:
    questions = [
        {"image_id": 42, "question": "Is it red?", "question_id": 42000},
        {"image_id": 42, "question": "How many?", "question_id": 42001},
        {"image_id": 43, "question": "Why?", "question_id": 43000},
    ]
    put_json(folder / f"{prefix}OpenEnded_mscoco_{part}_questions.json", {"questions": questions})
    kinds = {"question_type": "is it", "answer_type": "yes/no"}
    rows = [
        {"question_id": 42000, "image_id": 42, "answers": ten("yes"), **kinds},
        {"question_id": 42001, "image_id": 42, "answers": ten("2", "Two"), **kinds},
    ]
    put_json(folder / f"{prefix}mscoco_{part}_annotations.json", {"annotations": rows})


def write_vqav2(root: Path) -> None:
    _coco_questions(root / "vqav2", "v2_", "val2014")
    asked = {"questions": [{"image_id": 1, "question": "What?", "question_id": 10}]}
    put_json(root / "vqav2/v2_OpenEnded_mscoco_test-dev2015_questions.json", asked)


def write_okvqa(root: Path) -> None:
    _coco_questions(root / "okvqa", "", "val2014")


def write_aokvqa(root: Path) -> None:
    row = {
        "split": "val",
        "image_id": 461751,
        "question_id": "22jb",
        "question": "What is in the mouth?",
        "choices": ["pick", "food", "stick", "cigarette"],
        "correct_choice_idx": 3,
        "direct_answers": ["cigarette"] * 9 + ["smoke"],
        "difficult_direct_answer": False,
    }
    put_json(
        root / "aokvqa/aokvqa_v1p0_val.json",
        [row, {**row, "question_id": "33", "correct_choice_idx": 4}],
    )
    bare = {k: row[k] for k in ("image_id", "question_id", "question", "choices")}
    put_json(root / "aokvqa/aokvqa_v1p0_test.json", [bare])


def write_vizwizvqa(root: Path) -> None:
    answers = [*ten("coke", "soda")[:9], {"answer": "", "answer_confidence": "no"}]
    row = {
        "image": "VizWiz_val_00000017.jpg",
        "question": "What is this?",
        "answers": answers,
        "answer_type": "other",
        "answerable": 1,
    }
    put_json(root / "vizwizvqa/annotations/val.json", [row, {**row, "answers": [{"answer": ""}]}])


def _gqa(path: Path, question: str) -> None:
    row = {"imageId": "n235", "question": question, "answer": "women", "isBalanced": True}
    put_json(path, {"2016": row, "2017": {**row, "imageId": "../n1"}, "2018": {"imageId": "n1"}})


def write_gqa(root: Path) -> None:
    _gqa(root / "gqa/testdev_balanced_questions.json", "Who wears it?")


def write_xgqa(root: Path) -> None:
    folder = root / "xgqa/annotations"
    _gqa(folder / "zero_shot/testdev_balanced_questions_de.json", "Wer trägt das?")
    _gqa(folder / "few_shot/bn/dev.json", "কে?")


def write_nlvr(root: Path) -> None:
    row = {"sentence": "Two dogs.", "label": "False", "identifier": "test1-850-0-1"}
    put_lines(root / "nlvr/data/test1.json", [row, {"identifier": "x"}])


def write_marvl(root: Path) -> None:
    row = {
        "id": "sw-1", "concept": "39-Sufuria", "language": "sw", "caption": "Sufuria mbili.",
        "left_img": "39-0.jpg", "right_img": "39-11.jpg", "label": False,
    }  # fmt: skip
    put_lines(root / "marvl/marvl-annotations/marvl-sw.jsonl", [row, {**row, "label": "maybe"}])
    (root / "marvl/marvl-images/sw/images/39-Sufuria").mkdir(parents=True)


def write_tallyqa(root: Path) -> None:
    row = {
        "image": "VG_100K_2/1.jpg", "image_id": 1, "question": "How many men?", "question_id": 5,
        "answer": 2, "data_source": "imported_genome",
    }  # fmt: skip
    hard = {**row, "question_id": 6, "image": "val2014/COCO_val2014_000000000042.jpg"}
    rows = [
        {**row, "issimple": True}, {**hard, "issimple": False}, row, {**row, "answer": "few"},
    ]  # fmt: skip
    put_json(root / "tallyqa/test.json", rows)
    put_json(root / "tallyqa/train.json", [row])
    (root / "visual_genome/VG_100K_2").mkdir(parents=True)


def write_countbenchqa(root: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def encoded(mode: str) -> bytes:
        buffer = io.BytesIO()
        Image.new(mode, (20, 16)).save(buffer, "PNG")
        return buffer.getvalue()

    images = [{"bytes": encoded("RGB")}, None, {"bytes": encoded("L")}, {"bytes": encoded("RGB")}]
    table = pa.table({"image": images, "text": ["t"] * 4, "number": [3, 4, 5, None]})
    (root / "countbenchqa/data").mkdir(parents=True)
    parquet.write_table(table, root / "countbenchqa/data/train-00000-of-00001.parquet")
    asked = [{"question": f"How many things {n}?"} for n in range(4)]
    put_json(root / "countbenchqa/countbench_paired_questions.json", asked)


def write_pope(root: Path) -> None:
    row = {
        "question_id": 1, "image": "COCO_val2014_000000000042.jpg", "text": "Is there a snowboard?",
        "label": "yes",
    }  # fmt: skip
    put_lines(root / "pope/coco_pope_random.json", [row, {**row, "label": "perhaps"}])


def write_docvqa(root: Path) -> None:
    row = {
        "questionId": 49153, "question": "What is the ‘actual’ value?", "docId": 1,
        "image": "documents/pybv_81.png", "answers": ["0.28", "0.28 %"],
        "question_types": ["table/list"],
    }  # fmt: skip
    put_json(root / "docvqa/val_v1.0_withQT.json", {"data": [row, {**row, "answers": []}]})
    put_json(root / "docvqa/test_v1.0.json", {"data": [{k: row[k] for k in list(row)[:4]}]})


def write_infovqa(root: Path) -> None:
    row = {
        "questionId": 65718, "question": "Which platforms?", "image_local_name": "20471.jpeg",
        "answers": ["Email, Phone", "Fax"],
    }  # fmt: skip
    put_json(root / "infovqa/infographicsVQA_val_v1.0_withQT.json", {"data": [row, {}]})


def write_stvqa(root: Path) -> None:
    rows = [
        {
            "question_id": n, "question": f"What is said at {n}?", "answers": ["Exit", "way OUT"],
            "file_path": f"{'coco-text/COCO_' if n % 2 else 'iiit_text/img_'}{n // 4}.jpg",
        }
        for n in range(400)
    ]  # fmt: skip
    put_json(root / "stvqa/train_task_3.json", {"data": [*rows, {"question_id": 400}]})


def write_ocrvqa(root: Path) -> None:
    def book(split: int, extension: str, answers: list[str]) -> dict:
        return {
            "imageURL": f"http://ecx.example/images/I/51{extension}",
            "questions": ["Who is the author?", "What is the title?"],
            "answers": answers, "title": "T", "authorName": "A", "genre": "G", "split": split,
        }  # fmt: skip

    books = {
        "0761": book(3, ".jpg", ["Ann Lee", "Trees"]),
        "0762": book(1, ".gif", ["B", "C"]),
        "0763": book(3, ".jpg", ["one"]),
        "0764": book(4, ".jpg", []),
    }
    put_json(root / "ocrvqa/dataset.json", books)


def write_rsvqa_lr(root: Path) -> None:
    _rsvqa(root / "rsvqa_lr", "LR_split_test")


def write_rsvqa_hr(root: Path) -> None:
    _rsvqa(root / "rsvqa_hr", "USGS_split_test_phili")


def _rsvqa(folder: Path, prefix: str) -> None:
    def ask(number: int, kind: str, active: bool = True) -> dict:
        return {
            "id": number, "img_id": 77, "type": kind, "question": f"Q{number}?", "active": active,
            "answers_ids": [number + 100],
        }  # fmt: skip

    questions = [ask(0, "presence"), ask(1, "count"), ask(2, "comp"), ask(3, "comp", False),
                 ask(4, "area"), ask(5, "comp")]  # fmt: skip
    answers = [{"id": n + 100, "question_id": n, "answer": "Yes", "active": True} for n in range(5)]
    put_json(folder / f"{prefix}_questions.json", {"questions": questions})
    put_json(folder / f"{prefix}_answers.json", {"answers": answers})


def write_ai2d(root: Path) -> None:
    folder = root / "ai2d"

    def ask(number: int, letters: bool, correct: int = 1) -> dict:
        return {
            "answerTexts": ["A", "B"] if letters else ["Sun", "Moon"],
            "correctAnswer": correct, "abcLabel": letters, "questionId": f"1.png-{number}",
        }  # fmt: skip

    asked = {
        "Which is a leaf?": ask(0, True),
        "What shines?": ask(1, False),
        "Bad?": ask(2, False, 7),
    }
    put_json(folder / "questions/1.png.json", {"imageName": "1.png", "questions": asked})
    put_json(folder / "questions/2.png.json", {"imageName": "2.png", "questions": {}})
    label = {"rectangle": [[10, 5], [22, 15]], "replacementText": "B", "value": "leaf"}
    put_json(folder / "annotations/1.png.json", {"text": {"T0": label}})
    put_text(folder / "ai2d_test_ids.csv", "1\n")


def write_science_qa(root: Path) -> None:
    row = {
        "question": "Which is north?", "choices": ["Ohio", "Texas"], "answer": 1, "hint": "",
        "image": "image.png", "split": "test", "subject": "social science",
    }  # fmt: skip
    problems = {
        "4": row, "5": {**row, "hint": "Look."}, "6": {**row, "image": None},
        "7": {**row, "split": "train"}, "8": {**row, "answer": 2},
    }  # fmt: skip
    put_json(root / "science_qa/problems.json", problems)


WRITERS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("write_"): writer
    for name, writer in globals().items()
    if name.startswith("write_")
}
"""Folder -> what writes it."""
