"""Metrics of single answers: the rules, case by case."""

import hashlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.eval.metrics.anls import anls, anls_big_vision, edit_distance
from model.eval.metrics.choice import mmmu
from model.eval.metrics.contractions import CONTRACTIONS
from model.eval.metrics.mme import mme
from model.eval.metrics.nlvr import nlvr
from model.eval.metrics.pope import pope_big_vision
from model.eval.metrics.registry import METRICS, get_metric
from model.eval.metrics.relaxed_accuracy import relaxed_accuracy
from model.eval.metrics.rsvqa import rsvqa
from model.eval.metrics.science_qa import science_qa
from model.eval.metrics.scores import ItemScore
from model.eval.metrics.tallyqa import tallyqa
from model.eval.metrics.vqa import vqa, vqa_lower
from model.eval.metrics.vqav2 import normalize_answer, vqav2
from pipelines.sources.registry import BENCHMARKS

WORDS = st.text(alphabet="ab 1.,'-", max_size=6)


@pytest.mark.parametrize(
    ("prediction", "answer", "score"),
    [
        ("Red", "red", 1.0),
        ("10.5", "10", 1.0),
        ("10.51", "10", 0.0),
        ("12%", "0.12", 1.0),
        ("-10", "10", 0.0),
        ("0.0", "0", 0.0),  # a target of zero is compared as text
        ("0", "0", 1.0),
        ("2001 ", "2001", 1.0),
        ("red ", "red", 0.0),
    ],
)
def test_relaxed_accuracy(prediction: str, answer: str, score: float):
    assert relaxed_accuracy(prediction, {"answers": (answer,)}) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("yes", ["yes"], 1.0),
        ("Yes", ["yes"], 0.0),
        ("yes", ["yes", "no", "no"], 1 / 3),
        ("no", ["no"] * 5, 1.0),
    ],
)
def test_vqa(prediction: str, answers: list[str], score: float):
    assert vqa(prediction, {"answers": answers}) == pytest.approx(score)
    assert METRICS["exact_match"].score(prediction, {"answers": answers}) == pytest.approx(score)


def test_vqa_lower_ignores_case_and_nothing_else():
    assert vqa_lower("YES", {"answers": ["yes", "Yes", "no"]}) == pytest.approx(2 / 3)
    assert vqa_lower("yes ", {"answers": ["yes"]}) == 0.0


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The two red-white flags.", "2 red white flags"),
        ("a - b", "b"),  # next to a space: the mark goes, and with it the article
        ("x-y - z", "xy z"),  # a mark next to a space goes everywhere
        ("1,000 m/s", "1000 ms"),
        ("dont", "don't"),
        ("let's", "let's"),
        ("eleven", "eleven"),
        ("None", "0"),
        ("3.5", "3.5"),
        ("3.", "3"),
        ("4:30 o'clock", "4:30 o'clock"),
    ],
)
def test_vqav2_normalizes(text: str, normal: str):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(("agreeing", "score"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1)])
def test_vqav2_leaves_each_annotator_out(agreeing: int, score: float):
    answers = ["yes"] * agreeing + [f"other {i}" for i in range(10 - agreeing)]
    assert vqav2("Yes.", {"answers": answers}) == pytest.approx(score, abs=1e-12)


def test_vqav2_does_not_normalize_what_all_agree_on():
    assert vqav2("the cat", {"answers": ["cat"] * 10}) == 0.0
    assert vqav2(" cat\n", {"answers": ["cat"] * 10}) == 1.0


@given(st.sampled_from(sorted(CONTRACTIONS)))
def test_a_contraction_lacks_an_apostrophe_or_has_one_too_many(word: str):
    assert CONTRACTIONS[word].replace("'", "") == word.replace("'", "")
    assert abs(CONTRACTIONS[word].count("'") - word.count("'")) == 1


def test_contractions_are_those_of_the_official_scorer():
    # Of its map, without what maps to itself and what begins with a capital, never looked up.
    text = json.dumps(CONTRACTIONS, sort_keys=True)
    digest = "9540dcfd9682782c55fd90fcc8aa5106862b098d4dfd79dfb273593941405690"
    assert (len(CONTRACTIONS), hashlib.sha256(text.encode()).hexdigest()) == (114, digest)


def test_vqav2_needs_another_annotator():
    with pytest.raises(ValueError, match=r"at least 2 .*\['yes'\]"):
        vqav2("yes", {"answers": ["yes"]})


@pytest.mark.parametrize(
    ("prediction", "answers", "challenge", "big_vision"),
    [
        ("Paul", ["paul"], 1.0, 1.0),
        ("Pa", ["Paul"], 0.5, 0.0),  # exactly half
        ("P", ["Paul"], 0.0, 0.0),
        ("san  diego", ["san diego"], 1.0, 0.9),
        ("san  diego", ["san diexo"], 0.9, 0.8),  # the length is of the text as written
        ("cat", ["dog", "cut"], 2 / 3, 2 / 3),
        ("", [""], 1.0, 1.0),
        ("x", [""], 0.0, 0.0),
        ("", ["x"], 0.0, 0.0),
    ],
)
def test_anls(prediction: str, answers: list[str], challenge: float, big_vision: float):
    assert anls(prediction, {"answers": answers}) == pytest.approx(challenge)
    assert anls_big_vision(prediction, {"answers": answers}) == pytest.approx(big_vision)


@given(WORDS, WORDS, WORDS)
def test_edit_distance_is_a_distance(a: str, b: str, c: str):
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


@given(WORDS, st.lists(WORDS, min_size=2, max_size=12), st.randoms())
def test_order_of_answers_does_not_matter(prediction: str, answers: list[str], random):
    shuffled = random.sample(answers, len(answers))
    for metric in (vqa, vqa_lower, vqav2, anls, anls_big_vision, rsvqa):
        score = metric(prediction, {"answers": answers})
        assert 0 <= score <= 1
        assert metric(prediction, {"answers": shuffled}) == pytest.approx(score, abs=1e-12)


def test_tallyqa_reads_words_and_tells_simple_from_complex():
    done = tallyqa("Two", {"answers": ["2"], "issimple": 1})
    assert (done.score, done.groups) == (1.0, {"kind": "simple"})
    done = tallyqa("twenty-one", {"answers": ["21"], "issimple": False})
    assert (done.score, done.groups) == (0.0, {"kind": "complex"})
    assert tallyqa("0", {"answers": ["none"], "issimple": -1}).groups == {}


@pytest.mark.parametrize(
    ("prediction", "score", "unparsed"),
    [
        ("The answer is B.", 1.0, 0.0),
        ("the ANSWER is b. Because", 1.0, 0.0),
        ("The answer is A.", 0.0, 0.0),
        ("The answer is B", 0.0, 1.0),
        ("So the answer is B.", 0.0, 1.0),
        ("", 0.0, 1.0),
    ],
)
def test_science_qa(prediction: str, score: float, unparsed: float):
    done = science_qa(prediction, {"answers": ["The answer is B."]})
    assert (done.score, done.also["unparsed"]) == (score, unparsed)


def test_pope_of_big_vision_lowers_the_prediction():
    assert pope_big_vision("YES", {"answers": ["yes"]}).score == 1.0
    done = pope_big_vision("maybe", {"answers": ["no"]})
    assert (done.score, done.also["invalid"]) == (0.0, 1.0)
    assert pope_big_vision("yes", {"answers": ["no"]}).also["invalid"] == 0.0


def test_rsvqa_takes_any_answer():
    assert rsvqa("Urban", {"answers": ["rural", "urban"]}) == 1.0
    assert rsvqa("urban ", {"answers": ["urban"]}) == 0.0


def test_nlvr_knows_the_unit_of_a_sentence():
    done = nlvr("True", {"answers": ["True"], "id": "ignored", "identifier": "dev-850-2-1"})
    assert (done.score, done.unit) == (1.0, "dev-850-1")
    other = nlvr("true", {"answers": ["True"], "identifier": "dev-850-3-1"})
    assert (other.score, other.unit) == (0.0, "dev-850-1")
    assert nlvr("True", {"answers": ["False"], "id": "sw-17"}).unit == ""


@pytest.mark.parametrize(
    ("metric", "answers", "complaint"),
    [
        ("vqa", [], "answers must hold at least one text, got none"),
        ("relaxed_accuracy", ["1", "2"], r"answers must hold one text, got 2: \['1', '2'\]"),
        ("science_qa", ["B"], "answers must hold 'The answer is X.' for a letter X, got 'B'"),
        ("pope", ["Yes"], "answers must hold 'yes' or 'no', got 'Yes'"),
        ("pope_big_vision", ["no", "yes"], r"answers must hold one text, got 2: \['no', 'yes'\]"),
        ("nlvr", ["true"], "answers must hold 'True' or 'False', got 'true'"),
        ("cider", [], "answers must hold at least one text, got none"),
    ],
)
def test_what_a_metric_cannot_use_is_refused(metric: str, answers: list[str], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        METRICS[metric].score("x", {"answers": answers})


def test_unknown_metric_lists_those_there_are():
    with pytest.raises(ValueError, match=r"metric .*exact_match, vqa, .*'bleu4'"):
        get_metric("bleu4")


OWN = """
from model.eval.metrics.registry import Metric
from model.eval.metrics.scores import ItemScore

class Judge:
    def __call__(self, prediction, fields):
        return ItemScore(score=1.0 if prediction else 0.0, also={"length": len(prediction)})

judge = Judge()
by_kind = Metric(score=judge, by=("kind",))
odd = lambda prediction, fields: {"nan": float("nan"), "text": "1"}.get(prediction, True)
lone = lambda prediction: 1.0
"""


def test_a_metric_of_ones_own_is_a_function_or_a_metric(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_judges.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert get_metric("own_judges:judge").score("abc", {"id": "1"}) == ItemScore(
        score=1.0, also={"length": 3}
    )
    assert get_metric("own_judges:by_kind").by == ("kind",)
    odd = get_metric("own_judges:odd").score
    assert odd("", {}) == 1.0
    for said, told in (("nan", "got nan for 'x'"), ("text", "got '1' for 'x'")):
        with pytest.raises(ValueError, match=f"own_judges:odd .*finite.*{told}"):
            odd(said, {"id": "x"})
    with pytest.raises(ValueError, match=r"own_judges:lone .*\(prediction, fields"):
        get_metric("own_judges:lone")
    with pytest.raises(ValueError, match="own_judges has no 'nobody'"):
        get_metric("own_judges:nobody")


def test_the_benchmarks_metrics_exist():
    rules = {rule for row in BENCHMARKS.values() for rule in (row.metric, row.zero_shot_metric)}
    assert rules - {""} <= set(METRICS)
    assert {m for m in METRICS if METRICS[m].reads_masks} == {"miou"}


def test_metrics_need_no_jax():
    code = "import sys; sys.modules['jax'] = None; import model.eval.scorer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-800:]


@pytest.mark.parametrize(
    ("prediction", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        ("(B) a pile of sand", "B"),
        ("Not A but B", "B"),
        ("(A) or, rather, B", "A"),
        ("It is surely a pile of sand", "B"),
        ("Of a heap of stones and a pile of sand, a heap of stones", "A"),
    ],
)
def test_the_letter_of_a_choice(prediction: str, letter: str):
    fields = {"options": ["a heap of stones", "a pile of sand"], "id": "mmmu/1"}
    for answer in "AB":
        scored = mmmu(prediction, {**fields, "answers": [answer]})
        assert isinstance(scored, ItemScore)
        assert scored.score == float(answer == letter)
        assert scored.also == {"unparsed": 0.0}


def test_a_prediction_that_names_no_choice_is_a_guess_that_its_question_draws():
    options = ["w", "x", "y", "z"]
    scores = [
        mmmu("?", {"options": options, "id": f"mmmu/{n}", "answers": ["C"]}) for n in range(400)
    ]
    assert 70 < sum(item.score for item in scores) < 130
    assert all(item.also == {"unparsed": 1.0} for item in scores)
    again = mmmu("I cannot", {"options": options, "id": "mmmu/7", "answers": ["C"]})
    assert again == scores[7]


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("3.5", ["3.50"], 1.0),
        ("So the speed is 3.5 m/s.", ["3.5"], 1.0),
        ("The answer is 1,200", ["1200"], 1.0),
        ("v = 12", ["12", "twelve"], 1.0),
        ("v = 12", ["2"], 0.0),
        ("The Ionic order", ["ionic"], 1.0),
        ("Doric", ["ionic"], 0.0),
        ("because", ["b"], 0.0),
        ("It is b", ["b"], 1.0),
    ],
)
def test_open_questions(prediction: str, answers: list[str], score: float):
    assert mmmu(prediction, {"answers": answers}).score == score


@pytest.mark.parametrize(
    ("prediction", "score", "invalid"),
    [
        ("Yes", 1.0, 0.0),
        ("yes, it is", 1.0, 0.0),
        ("No.", 0.0, 0.0),
        ("It is, yes", 0.0, 1.0),
        ("", 0.0, 1.0),
    ],
)
def test_mme_reads_the_first_four_characters(prediction: str, score: float, invalid: float):
    item = mme(prediction, {"answers": ["yes"], "task": "count", "image": "count/1"})
    assert (item.score, item.also["invalid"], item.unit) == (score, invalid, "count/1")


@pytest.mark.parametrize("options", [None, [], "A cat", [1, 2]])
def test_choices_that_are_no_texts_are_named(options: object):
    fields = {"answers": ["A"], "question": "q", "options": options}
    with pytest.raises(ValueError, match=r"^options .*, got "):
        get_metric("mmbench").score("A", fields)
    if options:  # Without choices, MMMU's question is an open one.
        with pytest.raises(ValueError, match=r"^options "):
            get_metric("mmmu").score("A", {**fields, "id": "1"})


def test_rotations_without_their_question_are_named():
    with pytest.raises(ValueError, match=r"^question must name the question"):
        get_metric("mmbench").score("A", {"answers": ["A"], "options": ["cat", "dog"]})
