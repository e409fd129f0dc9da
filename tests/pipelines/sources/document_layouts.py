"""Questions about texts and drawings, in the layouts their authors publish; all rows are invented.

Every writer makes one good row at least for each split a test reads, and one that is malformed.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.pipelines.sources.writing import put_json, put_text


def write_docvqa(root: Path) -> None:
    row = {
        "questionId": 49153,
        "question": "What is the ‘actual’ value?",
        "docId": 1,
        "image": "documents/pybv_81.png",
        "answers": ["0.28", "0.28 %"],
        "question_types": ["table/list"],
    }
    put_json(root / "docvqa/val_v1.0_withQT.json", {"data": [row, {**row, "answers": []}]})
    put_json(root / "docvqa/test_v1.0.json", {"data": [{k: row[k] for k in list(row)[:4]}]})


def write_infovqa(root: Path) -> None:
    row = {
        "questionId": 65718,
        "question": "Which platforms?",
        "image_local_name": "20471.jpeg",
        "answers": ["Email, Phone", "Fax"],
    }
    put_json(root / "infovqa/infographicsVQA_val_v1.0_withQT.json", {"data": [row, {}]})


def write_stvqa(root: Path) -> None:
    rows = [
        {
            "question_id": n,
            "question": f"What is said at {n}?",
            "answers": ["Exit", "way OUT"],
            "file_path": f"{'coco-text/COCO_' if n % 2 else 'iiit_text/img_'}{n // 4}.jpg",
        }
        for n in range(400)
    ]
    put_json(root / "stvqa/train_task_3.json", {"data": [*rows, {"question_id": 400}]})


def write_ocrvqa(root: Path) -> None:
    def book(split: int, extension: str, answers: list[str]) -> dict:
        return {
            "imageURL": f"http://ecx.example/images/I/51{extension}",
            "questions": ["Who is the author?", "What is the title?"],
            "answers": answers,
            "title": "T",
            "authorName": "A",
            "genre": "G",
            "split": split,
        }

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
            "id": number,
            "img_id": 77,
            "type": kind,
            "question": f"Q{number}?",
            "active": active,
            "answers_ids": [number + 100],
        }

    questions = [
        ask(0, "presence"),
        ask(1, "count"),
        ask(2, "comp"),
        ask(3, "comp", False),
        ask(4, "area"),
        ask(5, "comp"),
    ]
    answers = [{"id": n + 100, "question_id": n, "answer": "Yes", "active": True} for n in range(5)]
    put_json(folder / f"{prefix}_questions.json", {"questions": questions})
    put_json(folder / f"{prefix}_answers.json", {"answers": answers})


def write_ai2d(root: Path) -> None:
    folder = root / "ai2d"

    def ask(number: int, letters: bool, correct: int = 1) -> dict:
        return {
            "answerTexts": ["A", "B"] if letters else ["Sun", "Moon"],
            "correctAnswer": correct,
            "abcLabel": letters,
            "questionId": f"1.png-{number}",
        }

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


def write_science_qa(root: Path, choices: Sequence[str] = ("Ohio", "Texas")) -> None:
    row = {
        "question": "Which is north?",
        "choices": list(choices),
        "answer": 1,
        "hint": "",
        "image": "image.png",
        "split": "test",
        "subject": "social science",
    }
    problems = {
        "4": row,
        "5": {**row, "hint": "Look."},
        "6": {**row, "image": None},
        "7": {**row, "split": "train"},
        "8": {**row, "answer": 2},
    }
    put_json(root / "science_qa/problems.json", problems)
