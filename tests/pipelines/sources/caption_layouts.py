"""Captions, in the layouts their authors publish; all rows are invented.

Every writer makes one good row at least for each split a test reads, and one that is malformed.
"""

from pathlib import Path

from tests.pipelines.sources.writing import put_json, put_lines, put_table, put_text


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
            "question_id": number,
            "image_id": image,
            "question": "what brand?",
            "answers": answers,
        }

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
