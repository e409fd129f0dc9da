"""Merging, breakdowns, and what `score.json` holds."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.eval.chance import blind_baseline
from model.eval.metrics.registry import METRICS, Metric
from model.eval.metrics.scores import ItemScore, Sums
from model.eval.scorer import Scorer, fields_of
from tests.model.tiny_data import color_record, mask_record, write_dataset

ANSWERS = {
    "science_qa": ["The answer is A.", "The answer is B."],
    "pope": ["yes", "no"],
    "pope_big_vision": ["yes", "no"],
    "nlvr": ["True", "False"],
    "mme": ["yes", "no"],
    "mmbench": ["A", "B"],
    "mmmu": ["A", "B"],
}
LANGS, KINDS = ["en", "de", "sw"], ["human", "augmented", ""]


def _rows(metric: str):
    texts = ANSWERS.get(metric, ["a red dog", "two", "3.0", "a Red dog runs"])
    text = st.sampled_from(texts)
    fewest = 2 if metric == "vqav2" else 1
    alone = metric in (*ANSWERS, "relaxed_accuracy", "tallyqa", "gqa_llava")
    answers = st.lists(text, min_size=fewest, max_size=fewest if alone else 3)
    drawn = {
        "answers": answers,
        "lang": st.sampled_from(LANGS),
        "kind": st.sampled_from(KINDS),
        "answer_type": st.sampled_from(["yes/no", "other"]),
        "question_type": st.sampled_from(["comp", "presence"]),
        "issimple": st.sampled_from([-1, 0, 1]),
        "identifier": st.sampled_from(["dev-1-0-0", "dev-1-1-0", "dev-1-0-1"]),
    }
    if metric in ("mme", "mmbench", "mmmu"):
        drawn |= {
            "task": st.sampled_from(["count", "OCR"]),
            "image": st.sampled_from(["count/1", "OCR/2"]),
            "question": st.sampled_from([7, 8, 9]),
            "options": st.just(["a cat", "a red dog"]),
            "id": st.sampled_from(["x/1", "x/2"]),
        }
    fields = st.fixed_dictionaries(drawn)
    return st.lists(st.tuples(text, fields), min_size=1, max_size=8)


def _scorer(metric: str, rows) -> Scorer:
    scorer = Scorer(metric)
    for prediction, fields in rows:
        scorer.add(prediction, fields)
    return scorer


@pytest.mark.slow
@pytest.mark.parametrize("metric", [name for name in METRICS if name != "miou"])
@settings(max_examples=25)
@given(data=st.data())
def test_merged_parts_are_the_whole(metric: str, data: st.DataObject):
    rows = data.draw(_rows(metric))
    cut = data.draw(st.integers(0, len(rows)))
    whole, first, second = (_scorer(metric, part) for part in (rows, rows[:cut], rows[cut:]))
    first.merge(second)
    assert first.num == len(rows)
    assert first.finish() == whole.finish()
    second.merge(_scorer(metric, rows[:cut]))  # the other way round: to the last digit the same
    assert second.finish().result.as_json(metric) == whole.finish().result.as_json(metric)


@pytest.mark.parametrize("metric", [name for name in METRICS if name != "miou"])
@settings(max_examples=25)
@given(data=st.data())
def test_counts_of_parts_add_up(metric: str, data: st.DataObject):
    rows = data.draw(_rows(metric))
    result = _scorer(metric, rows).finish().result
    for field in METRICS[metric].by:
        parts = [part for name, part in result.parts.items() if name.startswith(f"{field}/")]
        if parts:
            assert sum(part.num for part in parts) == len(rows) == result.total.num


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.integers(0, 20))
def test_sums_are_exact(values: list[float], cut: int):
    left, right = Sums(), Sums()
    for position, value in enumerate(values):
        (left if position < cut else right).add(ItemScore(score=value))
    right.merge(left)
    assert right.total() == math.fsum(values)
    assert right.num == len(values)


def test_breakdowns_are_named_by_field_and_value():
    rows = [("1", {"answers": ["1"], "kind": "human"}), ("1", {"answers": ["2"], "kind": "human"})]
    rows.append(("x", {"answers": ["x"], "kind": "augmented"}))
    assert _scorer("relaxed_accuracy", rows).finish().result.as_json("relaxed_accuracy") == {
        "metric": "relaxed_accuracy",
        "score": pytest.approx(200 / 3),
        "num": 3,
        "sum": 2.0,
        "parts": {
            "kind/augmented": {"score": 100.0, "num": 1, "sum": 1.0},
            "kind/human": {"score": 50.0, "num": 2, "sum": 1.0},
        },
    }


def test_one_part_is_no_breakdown():
    rows = [("1", {"answers": ["1"], "lang": "en"})] * 2
    assert _scorer("vqa", rows).finish().result.as_json("vqa") == {
        "metric": "vqa",
        "score": 100.0,
        "num": 2,
        "sum": 2.0,
    }


def test_languages_are_averaged_and_english_is_one_of_them():
    right, wrong = ("True", {"answers": ["True"]}), ("True", {"answers": ["False"]})
    rows = [
        (p, {**f, "lang": lang})
        for lang, many in (("en", [wrong] * 5), ("id", [right]), ("sw", [right, wrong, wrong]))
        for p, f in many
    ]
    result = _scorer("nlvr", rows).finish().result
    assert result.total.score == pytest.approx((0 + 100 + 100 / 3) / 3)
    assert result.parts["lang/en"].score == 0.0
    assert (result.total.num, result.total.sum) == (9, 2.0)


def test_languages_have_their_own_document_frequencies():
    german = [("ein Hund", ["ein Hund"]), ("eine Katze", ["eine Katze schläft"])]
    english = [("a dog", ["a dog"]), ("a cat", ["a cat sleeps"]), ("a bird", ["a bee"])]
    mixed, alone = Scorer("cider"), {}
    for lang, rows in (("de", german), ("en", english)):
        alone[lang] = Scorer("cider")
        for prediction, references in rows:
            for scorer in (mixed, alone[lang]):
                scorer.add(prediction, {"answers": references, "lang": lang})
    result = mixed.finish().result
    for lang, scorer in alone.items():
        assert result.parts[f"lang/{lang}"] == scorer.finish().result.total
    parts = [result.parts[f"lang/{lang}"].score for lang in ("de", "en")]
    assert result.total.score == pytest.approx(sum(parts) / 2)


@pytest.mark.parametrize(
    ("metric", "field"),
    [(name, metric.mean_over) for name, metric in METRICS.items() if metric.mean_over],
)
@settings(max_examples=25)
@given(
    rows=st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from(["en", "de ", 0, False, None, " \t", float("nan"), "absent"]),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_every_item_counts_for_the_mean_whatever_its_group(metric: str, field: str, rows):
    right, wrong = ANSWERS.get(metric, ("a b c d", "x"))
    scorer, groups = Scorer(metric), {}
    for is_right, value in rows:
        fields = {"answers": [right]} | ({} if value == "absent" else {field: value})
        is_none = value in (None, " \t", "absent") or value != value
        name = "(none)" if is_none else str(value).strip()
        groups.setdefault(name, []).append((right if is_right else wrong, {"answers": [right]}))
        scorer.add(right if is_right else wrong, fields)
    result = scorer.finish().result
    # Each group alone, by the same metric: the score is the plain mean of these scores.
    alone = {name: _scorer(metric, of).finish().result.total.score for name, of in groups.items()}
    assert result.total.num == len(rows)
    if metric != "cider":  # It weighs the words by all the documents.
        assert result.total.score == pytest.approx(math.fsum(alone.values()) / len(alone))
    if len(groups) > 1:
        parts = {n.partition("/")[2]: p.num for n, p in result.parts.items() if n.startswith(field)}
        assert parts == {name: len(of) for name, of in groups.items()}


def test_a_metric_of_ones_own_loses_no_item_without_its_group(monkeypatch):
    def score(prediction: str, fields) -> ItemScore:
        kind = fields.get("kind")
        return ItemScore(score=float(prediction == "x"), groups={"kind": kind} if kind else {})

    monkeypatch.setitem(METRICS, "own", Metric(score=score, mean_over="kind"))
    rows = [("x", {"kind": "a"}), ("y", {}), ("y", {}), ("y", {"kind": "a"})]
    result = _scorer("own", rows).finish().result
    assert (result.total.score, result.total.num) == (25.0, 4)
    assert {name: part.num for name, part in result.parts.items()} == {
        "kind/(none)": 2,
        "kind/a": 2,
    }


def test_question_types_count_the_same_whatever_their_size():
    rows = [("yes", {"answers": ["yes"], "question_type": "comp"})] * 9
    rows += [("yes", {"answers": ["no"], "question_type": "presence"})]
    assert _scorer("rsvqa", rows).finish().result.total.score == 50.0


@pytest.mark.slow
@pytest.mark.parametrize("metric", [name for name in METRICS if name != "miou"])
@settings(max_examples=25)
@given(data=st.data())
def test_the_score_is_the_plain_mean_of_what_its_items_count_for(metric: str, data: st.DataObject):
    scored = _scorer(metric, data.draw(_rows(metric))).finish()
    values = [row.get("pseudo_value", row["score"]) for row in scored.rows()]
    found = 100 * math.fsum(values) / len(values)
    # BLEU has no derivative where its brevity penalty begins: differences are not exact there.
    rel = 1e-4 if metric == "bleu" else 1e-5
    assert found == pytest.approx(scored.result.total.score, abs=1e-3, rel=rel)


def test_pseudo_values_of_a_mean_over_parts_are_those_worked_out_by_hand():
    rows = [("yes", {"answers": [answer], "question_type": "comp"}) for answer in ("yes", "no")]
    rows += [("yes", {"answers": ["yes"], "question_type": "presence"})] * 4
    # Parts have means 1/2 and 1. Of 6 items, one in two parts of 2 weighs 6 / (2 · 2); those of a
    # part that are all alike pull nowhere.
    found = _scorer("rsvqa", rows).finish().pseudo_values
    assert found == pytest.approx((0.75 + 1.5 * 0.5, 0.75 - 1.5 * 0.5, *[0.75] * 4), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["rsvqa", "bleu", "vqa"])
def test_pseudo_values_spread_as_the_score_does_with_other_items(metric: str):
    rng = np.random.default_rng(0)

    def draw(num: int) -> list:
        rows = []
        for _ in range(num):
            said, said_of = rng.choice(["a red dog runs here", "two", "a cat on a mat"], 2)
            kind = "comp" if rng.random() < 0.2 else "presence"
            lang = "sw" if metric == "bleu" else kind
            answers = [str(said_of), "a dog runs here"] if metric == "bleu" else [str(said_of)]
            rows.append((str(said), {"answers": answers, "question_type": kind, "lang": lang}))
        return rows

    scores, squares = [], []
    for _ in range(300):
        scored = _scorer(metric, draw(80)).finish()
        assert scored.pseudo_values is not None
        scores.append(scored.result.total.score)
        squares.append((100 * np.std(scored.pseudo_values, ddof=1)) ** 2 / 80)
    assert 0.8 < np.mean(squares) / np.var(scores) < 1.2


def test_a_unit_is_consistent_if_all_of_it_is_right():
    said = {"dev-1-0-0": "True", "dev-1-1-0": "True", "dev-1-0-1": "True", "dev-1-1-1": "False"}
    rows = [(text, {"answers": ["True"], "identifier": name}) for name, text in said.items()]
    parts = _scorer("nlvr", rows).finish().result.parts
    assert (parts["consistency"].score, parts["consistency"].num) == (50.0, 2)


def test_an_image_of_mme_counts_if_both_of_its_questions_are_right():
    right, wrong = ("Yes, it is.", {"answers": ["yes"]}), ("no", {"answers": ["yes"]})
    rows = [
        (said, {**fields, "task": task, "image": image})
        for task, image, (said, fields) in (
            ("count", "count/1", right),
            ("count", "count/1", right),
            ("count", "count/2", right),
            ("count", "count/2", wrong),
            ("OCR", "OCR/1", wrong),
            ("OCR", "OCR/1", right),
        )
    ]
    scored = _scorer("mme", rows).finish()
    # count: acc 3/4 and acc+ 1/2; OCR: 1/2 and 0. Their means are 5/8 and 1/4.
    parts = {name: part.score for name, part in scored.result.parts.items()}
    assert (parts["task/count"], parts["task/OCR"]) == (62.5, 25.0)
    assert scored.result.total.score == 43.75
    # More of the first question of count/1: its acc rises by (1 - 3/4) / 4, its acc+ by half of
    # (1 - 1/2) / 2. The mean of both is half of the score, and there are 6 questions.
    assert scored.pseudo_values is not None
    assert scored.pseudo_values[0] == pytest.approx(0.4375 + 6 / 2 * (1 / 16 + 1 / 8) / 2, abs=1e-6)


def test_a_question_of_mmbench_counts_if_each_of_its_rotations_is_right():
    said = {(7, "A"): "A", (7, "B"): "B.", (8, "A"): "A", (8, "B"): "A", (9, "C"): "(C)"}
    rows = [
        (text, {"answers": [letter], "question": name, "options": ["x", "y", "z"]})
        for (name, letter), text in said.items()
    ]
    scored = _scorer("mmbench", rows).finish()
    assert scored.result.total.score == pytest.approx(200 / 3)
    assert scored.result.parts["rotations"].score == 80.0
    # More of a rotation of question 7 is half as much of one of three questions.
    assert scored.pseudo_values is not None
    assert scored.pseudo_values[0] == pytest.approx(2 / 3 + 5 * (1 - 2 / 3) / 3 / 2, abs=1e-5)


def test_scorers_of_other_metrics_do_not_merge():
    with pytest.raises(ValueError, match=r"metric .*'vqa'.* got 'anls'"):
        Scorer("vqa").merge(Scorer("anls"))


@pytest.mark.parametrize("metric", ["vqa", "cider", "bleu"])
def test_nothing_has_no_score(metric: str):
    with pytest.raises(ValueError, match="at least one prediction, got none"):
        Scorer(metric).finish()


def test_chance_is_the_guess_scored_by_the_metric(tmp_path: Path):
    data = write_dataset(tmp_path / "data", {"color": [color_record(i) for i in range(4)]})
    # "red" is asked for in 2 of 4; of the texts it is the most common.
    for metric in ("exact_match", "vqa", "rsvqa", "anls"):
        assert blind_baseline(data, data, metric).score == 50.0, metric
    # One word of one n-gram order of four, in 2 of 4 images: 10 / 4 / 2, times 100.
    assert blind_baseline(data, data, "cider").score == pytest.approx(125.0)
    json.dumps(blind_baseline(data, data, "rouge_l").score)


def test_chance_knows_every_prefix_that_a_suffix_answers(tmp_path: Path):
    asked = [dataclasses.replace(color_record(i), prefix=f"is it {i}?") for i in range(3)]
    prefixes = (("is it 0?", "is it 1?"), ("is it 2?",))
    train = dataclasses.replace(color_record(7), prefixes=prefixes, suffixes=("red", "blue"))
    folders = [
        write_dataset(tmp_path / name, {"color": records})
        for name, records in (("train", [train]), ("eval", asked))
    ]
    # Said: red, red, blue. True: red, green, blue.
    assert blind_baseline(*folders, "exact_match").score == pytest.approx(200 / 3)


def test_of_several_objects_the_first_is_scored():
    one, other = mask_record(0), mask_record(1)
    both = dataclasses.replace(
        one,
        prefixes=((one.prefix,), ("that",)),
        suffixes=(*one.suffixes, *other.suffixes),
        masks=(*one.masks, *other.masks),
    )
    assert fields_of(both)["masks"] == fields_of(one)["masks"] == one.masks


def test_tallyqa_counts_questions_of_no_kind_as_well():
    kinds = (True, 0, -1, None, "simple", [1], {})
    rows = [("1", {"answers": ["1"], "issimple": kind}) for kind in kinds]
    result = _scorer("tallyqa", [*rows, ("2", {"answers": ["1"]})]).finish().result
    nums = {name: part.num for name, part in result.parts.items()}
    assert nums == {"kind/simple": 1, "kind/complex": 1, "kind/(none)": 6}
    assert result.total.num == 8
