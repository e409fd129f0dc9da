"""Readers on rows their authors published, compared with the rows read by hand."""

import collections
import json
from pathlib import Path

import pytest

from pipelines.sources.captions.scicap import CAPTION
from tests.pipelines.sources.writing import put_json, put_table

DATA = Path(__file__).parents[3] / ".." / "shared" / "data"

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data, published sample files"),
]


def lines(path: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / path).read_text().splitlines() if line.strip()]


@pytest.fixture
def linked(tmp_path):
    """Returns a function: puts a published file where its full release has it."""

    def link(published: str, name: str) -> Path:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to((DATA / published).resolve())
        return target

    return link


def test_docvqa(read_source):
    items, rejects = read_source("docvqa", "val", DATA)
    rows = json.loads((DATA / "docvqa/val/val_v1.0.json").read_text())["data"]
    assert not rejects
    assert [(i.prefix, list(i.answers)) for i in items] == [
        (row["question"], row["answers"]) for row in rows
    ]
    assert len(items) == 12
    assert {i.media[0].path for i in items} == {f"docvqa/val/{row['image']}" for row in rows}


@pytest.mark.parametrize("lang", ["en", "de", "bn"])
def test_xgqa(read_source, lang, linked, tmp_path):
    items, rejects = read_source("xgqa", f"dev_{lang}", DATA)
    published = f"xgqa/data/few_shot/{lang}/dev.json"
    rows = json.loads((DATA / published).read_text())
    assert not rejects
    assert len(items) == len(rows) == 120
    asked = {i.meta["question_id"]: (i.prefix, i.answers) for i in items}
    assert asked == {
        key: (f"answer en {row['question']}", (row["answer"],)) for key, row in rows.items()
    }
    linked(published, f"xgqa/annotations/zero_shot/testdev_balanced_questions_{lang}.json")
    whole, _ = read_source("xgqa", lang, tmp_path)
    assert [(i.prefix, i.answers) for i in whole] == [(i.prefix, i.answers) for i in items]


def test_gqa_has_the_same_layout(read_source, linked, tmp_path):
    linked("xgqa/data/few_shot/en/train_5.json", "gqa/train_balanced_questions.json")
    items, rejects = read_source("gqa", "train_balanced", tmp_path)
    assert (len(items), rejects) == (155, [])
    assert items[0].media[0].path == f"gqa/images/{items[0].id.split('/')[2].split('#')[0]}"


@pytest.mark.parametrize("lang", ["id", "sw"])
def test_marvl(read_source, lang):
    items, rejects = read_source("marvl", lang, DATA)
    rows = lines(f"marvl/data/{lang}/annotations/marvl-{lang}.jsonl")
    assert not rejects
    assert [(i.prefix, i.answers) for i in items] == [
        (f"answer en {row['caption']}", (str(row["label"]),)) for row in rows
    ]
    assert len({i.id for i in items}) == len(rows) == 150
    assert all(len(i.media) == 2 for i in items)


def test_nlvr2(read_source):
    items, rejects = read_source("nlvr", "dev", DATA, path="nlvr2")
    rows = lines("nlvr2/nlvr2/data/dev.json")
    assert not rejects
    assert collections.Counter(i.answers[0] for i in items) == {"True": 155, "False": 145}
    assert [i.prefix for i in items] == [f"answer en {row['sentence']}" for row in rows]
    assert items[0].media[1].path == "nlvr2/nlvr2/images/dev/dev-850-0-img1.png"


@pytest.mark.parametrize(("split", "total"), [("random", 600), ("popular", 300)])
def test_pope(read_source, split, total):
    items, rejects = read_source("pope", split, DATA)
    assert not rejects
    assert collections.Counter(i.answers[0] for i in items) == {"yes": total / 2, "no": total / 2}
    rows = lines(f"pope/output/coco/coco_pope_{split}.json")
    assert [(i.prefix, Path(i.media[0].path).name) for i in items] == [
        (f"answer en {row['text']}", row["image"]) for row in rows
    ]


@pytest.mark.parametrize(("name", "num_answers"), [("aokvqa_da", 10), ("aokvqa_mc", 1)])
def test_aokvqa(read_source, name, num_answers):
    (item,), rejects = read_source(name, "val", DATA)
    assert not rejects
    assert item.answers == ("cigarette",) * num_answers
    assert item.media[0].path == "aokvqa/val2017/000000461751.jpg"


def test_vqav2_answers_of_ten_people(read_source, tmp_path):
    given = json.loads((DATA / "metric_parity/vqa_accuracy/cases.json").read_text())["annotations"]
    rows = [{**row, "question_id": int(key)} for key, row in given.items()]
    asked = [
        {"question_id": r["question_id"], "image_id": r["image_id"], "question": "?"} for r in rows
    ]
    folder = tmp_path / "vqav2"
    put_json(folder / "v2_mscoco_val2014_annotations.json", {"annotations": rows})
    put_json(folder / "v2_OpenEnded_mscoco_val2014_questions.json", {"questions": asked})
    items, rejects = read_source("vqav2", "val", tmp_path)
    assert (len(items), rejects) == (len(given), [])
    assert [list(i.answers) for i in items] == [[a["answer"] for a in r["answers"]] for r in rows]
    assert items[0].media[0].path.endswith("COCO_val2014_000000262148.jpg")


def test_scicap(read_source, linked, tmp_path):
    name = "1001.0025v1-Figure2-1"
    row = json.loads((DATA / f"scicap/SciCap-Caption-All/Train/{name}.json").read_text())
    linked(
        f"scicap/SciCap-Caption-All/Train/{name}.json",
        f"scicap/SciCap-Caption-All/Train/{name}.json",
    )
    lists = "List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig/train"
    put_json(tmp_path / "scicap" / lists / "file_idx.json", [row["figure-ID"]])
    (item,), rejects = read_source("scicap", "train", tmp_path)
    assert not rejects
    assert item.suffixes == (row[CAPTION]["caption"],)
    assert item.suffixes[0].startswith("impact of the replay attack ,")


@pytest.mark.parametrize(("split", "total"), [("train", 15_743), ("dev", 2_364), ("test", 4_310)])
def test_screen2words_splits(read_source, linked, tmp_path, split, total):
    published = f"screen2words/split/{split}_screens.txt"
    screens = (DATA / published).read_text().split()
    linked(published, published)
    rows = [(screen, "a screen") for screen in screens]
    put_table(tmp_path / "screen2words/screen_summaries.csv", "screenId summary", *rows)
    items, rejects = read_source("screen2words", split, tmp_path)
    assert (len(items), rejects) == (total, [])


@pytest.mark.parametrize(("split", "total"), [("train", 14_878), ("dev", 1_292), ("test", 1_265)])
def test_widgetcap_splits(read_source, linked, tmp_path, split, total):
    published = f"widget_caption/split/{split}.txt"
    linked(published, f"widgetcap/split/{split}.txt")
    screens = (DATA / published).read_text().split()
    rows = [(screen, "0", "a widget") for screen in screens]
    put_table(tmp_path / "widgetcap/widget_captions.csv", "screenId nodeId captions", *rows)
    items, rejects = read_source("widgetcap", split, tmp_path)
    assert items == []  # The screens themselves are not here: each is a reject that says so.
    assert len(rejects) == total
    assert all(r.reason.endswith(".json is missing") for r in rejects)


def test_countbenchqa_questions(read_source, linked, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    published = "countbenchqa/data/countbench_paired_questions.json"
    linked(published, published)
    rows = json.loads((DATA / published).read_text())
    pixels = {"bytes": b"not decoded here"}
    table = pa.table({"image": [pixels] * len(rows), "number": list(range(len(rows)))})
    parquet.write_table(table, tmp_path / "countbenchqa/data/a.parquet")
    items, rejects = read_source("countbenchqa", "huggingface", tmp_path)
    assert (len(items), rejects) == (540, [])
    assert [i.prefix for i in items] == [f"answer en {row['question']}" for row in rows]


def test_chartqa_kinds(read_source):
    human, rejects = read_source("chartqa", "val_human", DATA)
    assert (len(human), rejects) == (20, [])
    with pytest.raises(FileNotFoundError, match=r"val_augmented\.json is missing.*vis-nlp/ChartQA"):
        read_source("chartqa", "val_augmented", DATA)


@pytest.mark.parametrize(
    ("split", "published"),
    [("train", "train"), ("val", "anet_entities_val_1"), ("test", "anet_entities_val_2")],
)
def test_activitynet_captions(read_source, linked, tmp_path, split, published):
    names = {"train": "train", "val": "val_1", "test": "val_2"}
    path = f"activitynet_captions/anet_data/{published}.json"
    linked(path, f"activitynet_cap/{names[split]}.json")
    items, rejects = read_source("activitynet_cap", split, tmp_path)
    videos = json.loads((DATA / path).read_text())
    assert not rejects
    assert [(i.media[0].path, i.media[0].start, i.media[0].end, i.suffixes) for i in items] == [
        (f"activitynet_cap/videos/{video}.mp4", start, end, (said.strip(),))
        for video, told in videos.items()
        for (start, end), said in zip(told["timestamps"], told["sentences"], strict=True)
    ]
    assert len({i.id for i in items}) == len(items) > 400
    assert all(said == said.strip() for i in items for said in i.answers)


@pytest.mark.parametrize(("split", "total"), [("train", 600), ("val", 1_200)])
def test_activitynet_qa(read_source, split, total):
    items, rejects = read_source("activitynet_qa", split, DATA)
    asked, told = (
        json.loads((DATA / f"activitynet_qa/dataset/{split}_{part}.json").read_text())
        for part in "qa"
    )
    answers = {row["question_id"]: row for row in told}
    assert (len(items), rejects) == (total, [])
    assert [(i.prefix, i.answers, i.meta["question_type"]) for i in items] == [
        (f"answer en {q['question']}", (a["answer"],), a["type"])
        for q, a in ((q, answers[q["question_id"]]) for q in asked)
    ]
    assert items[0].media[0].path == f"activitynet_qa/videos/v_{asked[0]['video_name']}.mp4"
    assert all(i.id.partition("#")[2].startswith(Path(i.media[0].path).stem) for i in items)
