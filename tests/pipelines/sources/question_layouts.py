"""Questions about photographs, in the layouts their authors publish; all rows are invented.

Every writer makes one good row at least for each split a test reads, and one that is malformed.
"""

import base64
import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from pipelines.sources.registry import SOURCES
from tests.pipelines.sources.writing import put_image, put_json, put_lines, put_text

MMMU_SUBJECTS = [names[0].partition("/")[0] for names in SOURCES["mmmu"].files("validation")]


def ten(first: str, other: str = "no") -> list[dict]:
    words = [first] * 4 + [other] * 6
    return [{"answer": w, "answer_confidence": "yes", "answer_id": i} for i, w in enumerate(words)]


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
        "id": "sw-1",
        "concept": "39-Sufuria",
        "language": "sw",
        "caption": "Sufuria mbili.",
        "left_img": "39-0.jpg",
        "right_img": "39-11.jpg",
        "label": False,
    }
    put_lines(root / "marvl/marvl-annotations/marvl-sw.jsonl", [row, {**row, "label": "maybe"}])
    (root / "marvl/marvl-images/sw/images/39-Sufuria").mkdir(parents=True)


def write_tallyqa(root: Path) -> None:
    row = {
        "image": "VG_100K_2/1.jpg",
        "image_id": 1,
        "question": "How many men?",
        "question_id": 5,
        "answer": 2,
        "data_source": "imported_genome",
    }
    hard = {**row, "question_id": 6, "image": "val2014/COCO_val2014_000000000042.jpg"}
    rows = [
        {**row, "issimple": True},
        {**hard, "issimple": False},
        row,
        {**row, "answer": "few"},
    ]
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
        "question_id": 1,
        "image": "COCO_val2014_000000000042.jpg",
        "text": "Is there a snowboard?",
        "label": "yes",
    }
    put_lines(root / "pope/coco_pope_random.json", [row, {**row, "label": "perhaps"}])


def write_mme(root: Path) -> None:
    release = root / "mme/MME_Benchmark_release_version"
    asked = ("Is it one? Please answer yes or no.\tYes\n", "Are there two?\tNo\n")
    for task in ("existence", "count", "position", "color", "OCR"):
        put_text(release / task / "000000006040.txt", "".join(asked))
        put_image(release / task / "000000006040.jpg")
    for task in ("posters", "celebrity", "scene", "landmark", "artwork"):
        put_text(release / task / "questions_answers_YN/tt0048028.txt", "".join(asked))
        put_image(release / task / "images/tt0048028.jpg")
    put_text(release / "count/000000000001.txt", "Is it two?\tMaybe\nIs it?\n")
    for task in ("commonsense_reasoning", "numerical_calculation", "text_translation"):
        put_text(release / task / "0001.txt", "".join(asked))
        put_image(release / task / "0001.png")
    put_text(release / "code_reasoning/0001.txt", asked[0])


def write_mmbench(root: Path) -> None:
    picture = picture_text()
    rows = [
        [7, "What is it?", 'Look, it says\t"x".', "sand", "None", "", "", "A", "ocr", picture],
        [1_000_007, "What is it?", "", "None", "sand", "", "", "B", "ocr", "7"],
        [8, "Which?", "nan", "a", "b", "c", "", "D", "ocr", picture],
        [9, "Which?", "", "a", "b", "c", "d", "C", "ocr", "99"],
    ]
    put_mmbench(root, "ABCD", rows)


def picture_text() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), "navy").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def put_mmbench(root: Path, letters: str, rows: Sequence[Sequence[object]]) -> None:
    header = ["index", "question", "hint", *letters, "answer", "category", "image"]
    path = root / "mmbench/mmbench_dev_20230712.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerows([header, *rows])


def write_mmmu(root: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), "navy").save(buffer, "PNG")
    row = {
        "question": "Which <image 1>?",
        "options": "['$6', 'none of \"these\"']",
        "answer": "B",
        "question_type": "multiple-choice",
        "image_1": {"bytes": buffer.getvalue(), "path": None},
        "image_2": None,
    }
    for subject in MMMU_SUBJECTS:
        name = f"validation_{subject}"
        open_row = {**row, "options": "[]", "answer": "['3', 'three']", "question_type": "open"}
        rows = [{**row, "id": f"{name}_1"}, {**open_row, "id": f"{name}_2"}]
        rows += [{**row, "id": f"{name}_3", "answer": "E"}] * (subject == "Art")
        path = root / f"mmmu/{subject}/validation-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(rows), path)
