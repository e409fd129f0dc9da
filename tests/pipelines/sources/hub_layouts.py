"""The questions of `question_layouts` and its fellows as the Hub's tables have them.

Columns are those of the repositories' cards; the malformed rows are left out.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from tests.pipelines.sources.question_layouts import ten


def picture(colour: str = "navy", path: str | None = None) -> dict:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": path}


def put_parquet(path: Path, *rows: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)


def _coco_rows(*, image_id: bool, answers: Sequence[list]) -> list[dict]:
    kinds = {"question_type": "is it", "answer_type": "yes/no", "image": picture()}
    asked = (("Is it red?", 0), ("How many?", 1))
    rows = []
    for (text, number), given in zip(asked, answers, strict=True):
        row = {"question": text, "answers": given, **kinds}
        if image_id:
            rows.append({**row, "image_id": 42, "question_id": 42000 + number})
        else:
            rows.append({**row, "question_id": str(420 + number)})
    return rows


def write_vqav2(root: Path) -> None:
    rows = _coco_rows(image_id=True, answers=[ten("yes"), ten("2", "Two")])
    put_parquet(root / "vqav2/data/validation-00000-of-00002.parquet", rows[0])
    put_parquet(root / "vqav2/data/validation-00001-of-00002.parquet", rows[1])


def write_okvqa(root: Path) -> None:
    said = [["yes"] * 4 + ["no"] * 6, ["2"] * 4 + ["Two"] * 6]
    rows = _coco_rows(image_id=False, answers=said)
    put_parquet(root / "okvqa/data/val2014-00000-of-00001.parquet", *rows)


def write_aokvqa(root: Path) -> None:
    row = {
        "question_id": "22jb",
        "question": "What is in the mouth?",
        "choices": ["pick", "food", "stick", "cigarette"],
        "correct_choice_idx": 3,
        "direct_answers": str(["cigarette"] * 9 + ["smoke"]),
        "image": picture(path="000000461751.jpg"),
    }
    put_parquet(root / "aokvqa/data/validation-00000-of-00001-b2bd0de231b6326a.parquet", row)


def write_vizwizvqa(root: Path) -> None:
    row = {
        "question_id": "VizWiz_val_00000017",
        "question": "What is this?",
        "image": picture(),
        "answers": ["coke"] * 4 + ["soda"] * 5 + [""],
        "category": "other",
    }
    put_parquet(root / "vizwizvqa/data/val-00000-of-00005-7775fd61bc6a3d98.parquet", row)


def write_gqa(root: Path) -> None:
    row = {"id": "2016", "imageId": "n235", "question": "Who wears it?", "answer": "women"}
    home = root / "gqa"
    put_parquet(home / "testdev_balanced_instructions/testdev-00000-of-00001.parquet", row)
    image = {"id": "n235", "image": picture()}
    put_parquet(home / "testdev_balanced_images/testdev-00000-of-00001.parquet", image)


def write_pope(root: Path) -> None:
    row = {
        "id": "0",
        "question_id": "1",
        "question": "Is there a snowboard?",
        "answer": "yes",
        "image_source": "COCO_val2014_000000000042",
        "image": picture(),
        "category": "random",
    }
    put_parquet(root / "pope/data/test-00000-of-00003.parquet", row, {**row, "category": "popular"})


def write_mme(root: Path) -> None:
    rows = [
        {
            "question_id": f"{task}/000000006040.jpg",
            "image": picture(),
            "question": text,
            "answer": answer,
            "category": task,
        }
        for task in ("count", "code_reasoning")
        for text, answer in (
            ("Is it one? Please answer yes or no.", "Yes"),
            ("Are there two?", "No"),
        )
    ]
    put_parquet(root / "mme/data/test-00000-of-00004-a25dbe3b44c4fda6.parquet", *rows)


def write_nocaps(root: Path) -> None:
    row = {
        "image": picture(),
        "image_file_name": "0013ea.jpg",
        "image_id": 0,
        "annotations_ids": list(range(10)),
        "annotations_captions": [f"A baby {n}." for n in range(10)],
    }
    put_parquet(root / "nocaps/data/validation-00000-of-00003-aaaa.parquet", row)


def write_textcaps(root: Path) -> None:
    def row(image: str, *captions: str) -> dict:
        return {
            "question_id": f"{image}.jpg",
            "image": picture(),
            "image_id": image,
            "image_name": image,
            "caption_str": list(captions),
        }

    rows = row("a1", "A sign that says STOP", "Red sign"), row("b2", "A Bottle")
    put_parquet(root / "textcaps/data/val-00000-of-00002.parquet", *rows)


def write_textvqa(root: Path) -> None:
    rows = [
        {
            "image_id": image,
            "question_id": number,
            "question": "what brand?",
            "image": picture(),
            "answers": ["nokia"] * 8 + ["Nokia", "phone"],
        }
        for image, number in (("a1", 5), ("b2", 6))
    ]
    put_parquet(root / "textvqa/data/validation-00000-of-00003.parquet", *rows)


def write_docvqa(root: Path) -> None:
    row = {
        "questionId": "49153",
        "question": "What is the ‘actual’ value?",
        "docId": 1,
        "ucsf_document_id": "pybv",
        "ucsf_document_page_no": "81",
        "image": picture(),
        "answers": ["0.28", "0.28 %"],
        "question_types": ["table/list"],
    }
    put_parquet(root / "docvqa/DocVQA/validation-00000-of-00006.parquet", row)


def write_infovqa(root: Path) -> None:
    row = {
        "questionId": "65718",
        "question": "Which platforms?",
        "answers": ["Email, Phone", "Fax"],
        "image": picture(path="20471.jpeg"),
    }
    put_parquet(root / "docvqa/InfographicVQA/validation-00000-of-00004.parquet", row)
    (root / "infovqa").mkdir()


def write_ocrvqa(root: Path) -> None:
    row = {
        "image": picture(),
        "image_id": "0761",
        "image_url": "http://ecx.example/images/I/51.jpg",
        "questions": ["Who is the author?", "What is the title?"],
        "answers": ["Ann Lee", "Trees"],
    }
    put_parquet(root / "ocrvqa/data/test-00000-of-00002-45d65f5057dd1a9e.parquet", row)


def write_ai2d(root: Path) -> None:
    rows = [
        {
            "question": "What shines?",
            "options": ["Sun", "Moon"],
            "answer": answer,
            "image": picture(),
        }
        for answer in ("1", "7")
    ]
    put_parquet(root / "ai2d/data/test-00000-of-00001.parquet", *rows)


def write_science_qa(root: Path) -> None:
    row = {
        "image": picture(),
        "question": "Which is north?",
        "choices": ["Ohio", "Texas"],
        "answer": 1,
        "hint": "",
        "subject": "social science",
    }
    rows = row, {**row, "hint": "Look."}, {**row, "image": None}
    put_parquet(root / "science_qa/ScienceQA-IMG/test-00000-of-00001.parquet", *rows)


def write_chartqa(root: Path) -> None:
    def row(query: str, label: str, kind: int) -> dict:
        image = picture(path="two.png")
        return {"image": image, "query": query, "label": [label], "human_or_machine": kind}

    rows = row("How many?", "3", 0), row("Which year?", "2009", 0), row("Highest?", "Iran", 1)
    put_parquet(root / "chartqa/data/test-00000-of-00001-e2cd0b7a0f9eb20d.parquet", *rows)


def write_countbenchqa(root: Path) -> None:
    row = {"image": picture(), "text": "t", "question": "How many things 0?", "number": 3}
    put_parquet(root / "countbenchqa/data/test-00000-of-00001.parquet", row)
