"""LLaVA's captions and instructions: a row is a record, a reject with its reason, or named."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipelines.records.example import decode_example, encode_example
from pipelines.records.schema import BadInput, Record
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.registry import source_spec
from pipelines.transforms.render import render_record
from tests.pipelines.sources.writing import put_json

FILE = "llava_instruct/llava_v1_5_mix665k.json"


def said(*texts: str, first: str = "human") -> list[dict[str, str]]:
    roles = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": roles[n % 2], "value": text} for n, text in enumerate(texts)]


def row(*texts: str, image: str | None = "coco/train2017/1.jpg", **more: Any) -> dict[str, Any]:
    return {"id": "1", "image": image, "conversations": said(*texts), **more}


def test_a_conversation_is_one_item_whatever_its_turns(tmp_path: Path, read_source):
    rows = [
        row("<image>\nWhat is it?", "A cup.", "Why?", " To drink."),
        row("What is it?\n<image>", "A cup."),
        row("", "", conversations=said("Hello", "<image>\nIs it?", "yes", first="gpt")),
    ]
    put_json(tmp_path / FILE, rows)
    items, rejects = read_source("llava_instruct", "train", tmp_path)
    assert not rejects
    assert [(i.prefix, i.suffixes, i.turns) for i in items] == [
        ("What is it?", ("A cup.",), (("Why?", " To drink."),)),
        ("What is it?", ("A cup.",), ()),
        ("Is it?", ("yes",), ()),
    ]
    assert {i.media[0].path for i in items} == {"llava_instruct/coco/train2017/1.jpg"}
    # All have one id and one picture in the file.
    assert len({i.id for i in items}) == 3
    assert len({i.id.partition("#")[0] for i in items}) == 1
    assert [Item.from_json(item.to_json()) for item in items] == items


def test_captions_lie_in_a_folder_of_their_own(tmp_path: Path, read_source):
    put_json(
        tmp_path / "llava_pretrain/blip_laion_cc_sbu_558k.json",
        [row("Describe it.\n<image>", "a cup", image="0000/1.jpg")],
    )
    for folder, path in (("images/", "llava_pretrain/images/0000/1.jpg"), ("", "llava_pretrain/")):
        picture = tmp_path / f"llava_pretrain/{folder}0000/1.jpg"
        picture.parent.mkdir(parents=True)
        picture.touch()
        ((item,), rejects) = read_source("llava_pretrain", "train", tmp_path)
        assert item.media[0].path == (path if folder else f"{path}0000/1.jpg")
        assert not rejects


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (row("What?", "A cup."), "<image> must be once in a conversation, in its first question"),
        (row("<image> a <image>", "A cup."), "<image> must be once"),
        (row("<image>", "A.", "and <image>?", "B."), "<image> must be once"),
        (row("<image>", "The <image> shows red."), "<image> must be once"),
        (row("<image>\nWhat?"), "conversations must be of human and gpt in turn, got ['human']"),
        (row(conversations=[]), "conversations must be of human and gpt in turn, got []"),
        (row(conversations=said("<image>", "a")[:1] * 2), "must be of human and gpt in turn"),
        (row("<image>", 3), "value must be a text, got 3"),  # type: ignore[arg-type]
        (row("<image>", "a", image=""), "image must be a text, got ''"),
        (row("<image>", "a", image="../../x.jpg"), "path leaves the data root: 'x.jpg'"),
        ({"id": 1, "image": "1.jpg"}, "malformed row: 'conversations' is missing"),
        (row("<image>", "a", image=["1.jpg", None]), "image must be a text, got None"),  # type: ignore[arg-type]
        (row("<image>", "a", images=[*"abc"], image=None), "images must name one or two pictures"),
        (row("<image> or <image>?", "a", image=[*"ab"]), "<image> must be 2 times, side by side,"),  # type: ignore[arg-type]
        (row("<image>", "a", image=[*"ab"]), "<image> must be 2 times, side by side, in a"),  # type: ignore[arg-type]
        (row("<image>", "a", video="1.mp4"), "image and video must name one or two pictures, or"),
        (row("<video>", "a", image=None, videos=[*"ab"]), "videos must name one or two pictures"),
        (row("<video>", "a", image=None, video=""), "video must be a text, got ''"),
        (row("<video>", "a", image=None, video={"path": "1"}), "video must be a text, got {'path"),
        (row("<video><video>", "a", image=None, video="1"), "<video> must be once in a"),
        (row("<image><video>", "a", image=None, video="1"), "<video> must be once in a"),
        (row("<image> <video>", "a"), "<image> must be once in a"),
        (row("<image>", "a", "<audio>?", "b"), "<image> must be once in a"),
        (row("<audio> What?", "a", image=None), "audio must name the medium of <audio>, got none"),
        (row("Is <video> it?", "a", image=None), "video must name the medium of <video>, got none"),
        (row("?", "a", image=None, audio="1"), "audio is none of the media image, images, v"),
        (row("?", "a", image=None, Audios=[[0.1, 0.2]]), "Audios is none of the media"),
        (row("?", "a", image=None, image_url="https://x.org/y"), "image_url is none of the media"),
        (row("?", "a", image=None, file={"name": "x/1.MP4"}), "file is none of the media"),
        (row("?", "a", image=None, heard=["1.wav"]), "heard is none of the media"),
        (row("<image>", "a", speech="1.wav"), "speech is none of the media"),
        ("text", "malformed row: "),
    ],
)
def test_a_row_that_is_none_is_a_reject(tmp_path: Path, read_source, wrong: Any, reason: str):
    put_json(tmp_path / FILE, [row("<image>\nWhat?", "A cup."), wrong])
    items, rejects = read_source("llava_instruct", "train", tmp_path)
    assert len(items) == 1
    assert [reason in reject.reason for reject in rejects] == [True], rejects


@pytest.mark.parametrize("more", [{"weight": 0}, {"loss": False}])
def test_what_a_turn_states_beside_its_text_is_in_the_account(tmp_path: Path, more: dict):
    talk = row("<image>\nWhat?", "A cup.")
    talk["conversations"][1] |= more
    put_json(tmp_path / FILE, [talk])
    corpus = Corpus(tmp_path, "llava_instruct", UnpackedMedia())
    (item,) = source_spec("llava_instruct").read_splits(corpus, "train")
    assert isinstance(item, Item)
    (omission,) = corpus.omissions()
    (name,) = more
    assert omission.reason == f"field {name} of a turn, which llava_instruct does not read"


def test_an_instruction_without_a_picture_is_text_alone(tmp_path: Path, read_source):
    texts = [
        row(" What?\n", "A cup.", "And <image>?", "A tag.", image=None),
        {"id": "b", "conversations": said("What?", "No.")},
    ]
    put_json(tmp_path / FILE, [*texts, row("<image>\nWhat?", "A cup.")])
    (first, second, other), rejects = read_source("llava_instruct", "train", tmp_path)
    assert not rejects
    # As it is: nothing of LLaVA's strips it or looks for marks in it.
    assert (first.prefix, first.suffixes) == (" What?\n", ("A cup.",))
    assert first.turns == (("And <image>?", "A tag."),)
    for item in (first, second):
        assert (item.media, item.source, item.part) == ((), FILE, other.part)
        assert Item.from_json(item.to_json()) == item
    assert other.source == "llava_instruct/coco/train2017/1.jpg"
    # Its record has no picture, and the digest of its text.
    records = [render_record(item, []) for item in (first, second)]
    assert [decode_example(encode_example(record)) for record in records] == records
    assert {record.images for record in records} == {()}
    assert len({record.source_sha256 for record in records}) == 2
    put_json(tmp_path / FILE, [row("<image>\nWhat?", "A cup.", image=None)])
    _, (reject,) = read_source("llava_instruct", "train", tmp_path)
    assert re.search("image .*<image>, got none", reject.reason)


def test_a_row_has_the_media_that_it_names(tmp_path: Path, read_source):
    rows = [
        row("<image>\nWhat?", "A.", image=None, images=["coco/2.jpg"]),
        row("<image>\nWhat?", "B.", image=["coco/3.jpg"], images=["coco/3.jpg"], video=None),  # type: ignore[arg-type]
        row("<image>\n<image>\nWhich?", "C.", image=["coco/4.jpg", "coco/5.jpg"], images=[]),  # type: ignore[arg-type]
        row("Which? <image><image>", "D.", "Sure?", "Yes.", image=None, images=["6.jpg", "7.jpg"]),
        row("What happens?\n<video>", "E.", image=None, video="clips/8.mp4"),
        row("<image>\nWhat happens?", "F.", image=None, videos=["9.mp4"], audio=None),
        row("What?", "H.", image=None, video="10.mp4"),
        row("What?", "G.", image=None, images=[], video=None, has_image=False, audio=0),
    ]
    put_json(tmp_path / FILE, rows)
    (tmp_path / "llava_instruct/videos/clips").mkdir(parents=True)
    (tmp_path / "llava_instruct/videos/clips/8.mp4").touch()
    items, rejects = read_source("llava_instruct", "train", tmp_path)
    assert not rejects
    assert [(i.prefix, [m.path for m in i.media], [m.video for m in i.media]) for i in items] == [
        ("What?", ["llava_instruct/coco/2.jpg"], [False]),
        ("What?", ["llava_instruct/coco/3.jpg"], [False]),
        ("Which?", ["llava_instruct/coco/4.jpg", "llava_instruct/coco/5.jpg"], [False, False]),
        ("Which?", ["llava_instruct/6.jpg", "llava_instruct/7.jpg"], [False, False]),
        ("What happens?", ["llava_instruct/videos/clips/8.mp4"], [True]),
        ("What happens?", ["llava_instruct/9.mp4"], [True]),
        ("What?", ["llava_instruct/10.mp4"], [True]),
        ("What?", [], []),
    ]
    assert items[3].id.startswith("llava_instruct/train/6.jpg#1-")


def test_fields_that_are_not_read_are_named(tmp_path: Path):
    rows = [
        row("<image>", "a", width=31, url="https://x.org/1.jpg"),
        row("Say hello.", "Hello.", image=None, model="", width=None),
        row("<image>", "b", id="0", width=29),
    ]
    put_json(tmp_path / FILE, rows)
    spec = source_spec("llava_instruct")
    corpus = Corpus(tmp_path, "llava_instruct", UnpackedMedia())
    for _ in range(2):  # A part of a split is read twice.
        assert all(isinstance(item, Item) for item in spec.read_splits(corpus, "train"))
    assert [(o.reason, o.num, o.example) for o in corpus.omissions()] == [
        ("field model, which llava_instruct does not read", 1, "1"),
        ("field url, which llava_instruct does not read", 1, "1"),
        ("field width, which llava_instruct does not read", 2, "0"),
    ]


def test_a_row_without_id_is_no_other_row(tmp_path: Path, read_source):
    words = row("<image>\nWhat?", "A cup.")
    keys = [1, None, float("nan"), "line-1", 2, "x"]
    rows = [{**words, "id": key} for key in keys] + [{k: words[k] for k in words if k != "id"}]
    put_json(tmp_path / FILE, rows)
    items, rejects = read_source("llava_instruct", "train", tmp_path)
    assert not rejects
    found = [i.id.partition("#")[2].rpartition("-")[0] for i in items]
    assert found == ["1", "line-line-1", "line-2", "line-1", "2", "x", "6"]


def test_an_item_has_media_or_says_where_its_text_is_from():
    fields: dict[str, Any] = {"id": "a", "part": "p", "prefix": "q", "suffixes": ("a",)}
    with pytest.raises(BadInput, match=r"media .*got none"):
        Item(**fields, media=(), task="t")
    boxed = Item(**fields, media=(), text_file="x.json", task="t", boxes=((0, 0, 9, 9),))
    with pytest.raises(BadInput, match=r"boxes and masks .*got none"):
        render_record(boxed, [])


def test_a_caption_without_a_picture_and_other_files_are_named(tmp_path: Path):
    texts = [row("What?", "A cup.", image=None), {"id": "b", "conversations": said("What?", "No.")}]
    file = "llava_pretrain/blip_laion_cc_sbu_558k.json"
    put_json(tmp_path / file, [*texts, row("<image>\nWhat?", "A cup.")])
    put_json(tmp_path / "llava_pretrain/other.json", [])
    spec = source_spec("llava_pretrain")
    corpus = Corpus(tmp_path, "llava_pretrain", UnpackedMedia())
    for _ in range(2):  # A part of a split is read twice.
        assert len(list(spec.read_splits(corpus, "train"))) == 1
    (omission,) = corpus.omissions()
    assert (omission.source, omission.num, omission.example) == (file, 2, "1")
    assert omission.reason == "conversations without a picture"
    (other,) = spec.omissions_of(corpus, "train")
    assert other.source == "llava_pretrain/other.json"


def test_turns_are_kept_and_other_records_have_none():
    fields: dict[str, Any] = {"id": "a", "images": (b"x",), "prefix": "q", "suffixes": ("a",)}
    fields |= {"task": "conversation", "source": "s", "source_sha256": "0"}
    plain = Record(**fields)
    talk = Record(**fields, turns=(("why é?", "so"), ("", "b")))
    assert decode_example(encode_example(talk)) == talk
    assert decode_example(encode_example(plain)) == plain
    assert b"turns" not in encode_example(plain)
    with pytest.raises(ValueError, match="turns must come with"):
        Record(**{**fields, "suffixes": ("a", "b")}, turns=(("q", "a"),))
