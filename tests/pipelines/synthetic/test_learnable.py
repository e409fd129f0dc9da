"""Answers are in the pixels, and cannot be had without them."""

import collections
import json

import av
import numpy as np
import pytest
from PIL import Image

from pipelines.synthetic import chartqa, msvdqa
from pipelines.synthetic.charts import augmented_questions, human_questions, make_chart
from pipelines.synthetic.clips import DIRECTIONS, make_clip
from pipelines.synthetic.config import CorpusConfig, rng_for, split_items
from pipelines.synthetic.drawing import COLORS
from pipelines.synthetic.scenes import expressions, make_scene, scene_questions

MOST_BLIND = 0.4


def blind_score(train, test):
    """Share of test answers that are the most common training answer to the same question."""
    per_question = collections.defaultdict(collections.Counter)
    overall = collections.Counter(answer for _, answer in train)
    for question, answer in train:
        per_question[question][answer] += 1
    hits = [
        (per_question[question] or overall).most_common(1)[0][0] == answer
        for question, answer in test
    ]
    return sum(hits) / len(hits)


def chart_questions(config, indices, ask):
    rows = []
    for index in indices:
        rng = rng_for(config.seed, "chart", index)
        chart = make_chart(rng)
        asked = {human_questions: human_questions(chart, rng)}
        asked[augmented_questions] = augmented_questions(chart, rng)
        rows += asked[ask]
    return rows


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ask", [human_questions, augmented_questions])
def test_blind_guess_is_poor_on_charts(ask, seed):
    config = CorpusConfig(seed=seed)
    parts = split_items(config.num_charts, chartqa.SPLITS)
    train, test = (chart_questions(config, parts[name], ask) for name in ("train", "test"))
    assert blind_score(train, test) <= MOST_BLIND
    colors = [row for row in test if row[1] in COLORS]
    assert len(colors) >= 0.5 * len(test)


@pytest.mark.parametrize("seed", [0, 1])
def test_blind_guess_is_poor_on_clips(seed):
    config = CorpusConfig(seed=seed)
    parts = split_items(config.num_videos, msvdqa.SPLITS)
    train, test = (
        [
            row
            for index in parts[name]
            for row in make_clip(config, index, rng_for(seed, "video", index)).questions
        ]
        for name in ("train", "test")
    )
    assert blind_score(train, test) <= MOST_BLIND


@pytest.mark.slow
def test_bars_in_the_picture_answer_their_questions(corpus):
    folder = corpus / "chartqa" / "ChartQA Dataset" / "train"
    asked = collections.Counter()
    for kind in ("human", "augmented"):
        for row in json.loads((folder / f"train_{kind}.json").read_text()):
            path = folder / "png" / row["imgname"]
            if not path.exists():
                continue
            image = np.asarray(Image.open(path))
            area = {name: (image == rgb).all(axis=-1) for name, rgb in COLORS.items()}
            area = {name: where for name, where in area.items() if where.sum() > 50}
            if row["label"] in COLORS:
                assert row["label"] in area
            expected = answer_from_pixels(row["query"], area)
            if expected is not None:
                assert row["label"] == expected, row
                asked[row["query"]] += 1
    assert len(asked) >= 6


def answer_from_pixels(query, area):
    top = {name: np.nonzero(where)[0].min() for name, where in area.items()}
    left = {name: np.nonzero(where)[1].min() for name, where in area.items()}
    size = {name: int(where.sum()) for name, where in area.items()}
    rules = {
        "tallest bar": lambda: min(top, key=top.__getitem__),
        "shortest bar": lambda: max(top, key=top.__getitem__),
        "leftmost bar": lambda: min(left, key=left.__getitem__),
        "rightmost bar": lambda: max(left, key=left.__getitem__),
        "largest slice": lambda: max(size, key=size.__getitem__),
        "smallest slice": lambda: min(size, key=size.__getitem__),
        "color of the line": lambda: next(iter(area)),
        "How many": lambda: str(len(area)),
    }
    return next((rule() for words, rule in rules.items() if words in query), None)


def read_clips(root):
    lines = (root / "youtube_mapping.txt").read_text().splitlines()
    names = {int(line.split(" vid")[1]): line.split(" vid")[0] for line in lines}
    rows = collections.defaultdict(dict)
    for split in ("train", "val", "test"):
        for row in json.loads((root / f"{split}_qa.json").read_text()):
            rows[row["video_id"]][row["question"]] = row["answer"]
    for video, answers in rows.items():
        path = root / "YouTubeClips" / f"{names[video]}.mp4"
        if path.stat().st_size:
            yield path, answers


def spots(frame, color):
    where = np.abs(frame.astype(int) - COLORS[color]).max(axis=-1) < 60
    return np.argwhere(where)


def test_clips_are_h264_and_show_what_is_asked(corpus, small):
    stories = collections.Counter()
    for path, answers in read_clips(corpus / "msvd_qa"):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.name == "h264"
            assert stream.average_rate == small.video_fps
            frames = [f.to_ndarray(format="rgb24") for f in container.decode(stream)]
            assert len(frames) == stream.frames in (15, 20, 25)
        if "what color is the moving shape?" in answers:
            color = answers["what color is the moving shape?"]
            (shape,) = {q.split()[4] for q in answers if q.startswith("which way")}
            dx, dy = DIRECTIONS[answers[f"which way does the {shape} move?"]]
            first, last = (spots(frame, color).mean(axis=0) for frame in (frames[0], frames[-1]))
            assert np.sign(np.round((last - first) / 4)).tolist() == [dy, dx]
            stories["moving"] += 1
        elif "which shape appears first?" in answers:
            early = answers["what color is the shape that appears first?"]
            late = answers["what color is the shape that appears last?"]
            assert len(spots(frames[0], early)) > 100 > len(spots(frames[0], late))
            assert len(spots(frames[-1], early)) > 100 < len(spots(frames[-1], late))
            stories["ordering"] += 1
        else:
            color = next(answer for answer in answers.values() if answer in COLORS)
            columns = spots(frames[0], color)[:, 1] * 3 // small.video_width
            count = int((np.bincount(columns, minlength=3) > 20).sum())
            assert str(count) == answers["how many shapes are there?"]
            stories["counting"] += 1
    assert stories.keys() == {"moving", "ordering", "counting"}
    assert stories.total() == small.num_videos


def test_scenes_are_told_apart_and_boxes_take_few_values():
    edges = set()
    for index in range(200):
        rng = rng_for(3, "scene", index)
        scene = make_scene(rng, height=120, width=132)
        edges |= {item.box[0] for item in scene.items}
        said = [s for item in scene.items for s in set(expressions(item, scene, rng))]
        assert len(said) == len(set(said))
        for asked in scene_questions(scene, rng, count=3):
            assert asked["answer"]
    assert len(edges) == 2
