"""Answers of other forms than were asked for, read as the benchmarks' own code reads them.

`official_answers.json` has made-up answers, each with what the official code made of it:

    gqa_llava    haotian-liu/LLaVA c121f04, `scripts/convert_gqa_for_eval.py`, run whole: the text
                 that GQA's `eval.py` compares with the answer
    pope         AoiDragon/POPE 08d957b, `evaluate.py`, run whole with its two paths filled in: the
                 "yes" or "no" that it counts
    vqav2        GT-Vision-Lab/VQA a013f00, `PythonEvaluationTools/vqaEvaluation/vqaEval.py`, its
                 print statements written as calls: an answer's accuracy, of 100, by annotators'
    mme          BradyFU/Awesome-Multimodal-Large-Language-Models 1c1d69e, `tools/eval_tool.zip`,
                 `calculate_metrics.parse_pred_ans` of the text in lower case
    mmbench      open-compass/VLMEvalKit e8e78f0, `vlmeval/utils/matching_util.py`, `can_infer`: of
                 a text and the number of its "options", the letter, "Z" for none of them, or ""
    mmmu         MMMU-Benchmark/MMMU bb0b95a, `mmmu/utils/eval_utils.py`,
                 `parse_multi_choice_response`, likewise; "drawn" where it draws a letter
    mmmu_open    the same file's `parse_open_response` and `eval_open`: whether it is accepted

Answers are drawn from lists of forms (letters with every mark around them, choices' texts, two
letters, negations, refusals, several lines, other scripts, nothing) and from words in any order.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from model.eval.metrics.registry import get_metric
from model.eval.metrics.scores import ItemScore

TABLE = json.loads(Path(__file__).with_name("official_answers.json").read_text("utf-8"))


def score(metric: str, prediction: str, answer: str, **fields: Any) -> float:
    item = get_metric(metric).score(prediction, {"answers": [answer], **fields})
    return item.score if isinstance(item, ItemScore) else item


def test_gqa_as_llava_converts_it():
    for prediction, converted in TABLE["gqa_llava"]:
        for answer in {converted, "red", "no"}:
            assert score("gqa_llava", prediction, answer) == (converted == answer), prediction


@pytest.mark.parametrize(
    ("prediction", "right"),
    [("On the left.", True), ("ON THE LEFT..", True), ("left", False), ("On the left. ", False)],
)
def test_zero_shot_gqa_puts_case_and_final_stops_aside(prediction: str, right: bool):
    assert score("gqa_llava", prediction, "on the left") == right
    assert not score("vqa", prediction, "on the left")


def test_pope():
    for prediction, read in TABLE["pope"]:
        for answer in ("yes", "no"):
            assert score("pope", prediction, answer) == (read == answer), prediction


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        ("No, there isn't.", "no"),
        ("There is not a dog in it", "no"),
        ("Yes, and no other. There is not", "no"),
        ("Yes. No.", "yes"),
        ("", "yes"),
        ("NO", "yes"),
        ("Not at all", "yes"),
        ("No!", "yes"),
        ("There isn't", "yes"),
        ("\nNo", "yes"),
        ("Nein", "yes"),
    ],
)
def test_pope_looks_for_three_words_in_the_first_sentence(prediction: str, says: str):
    item = get_metric("pope").score(prediction, {"answers": ["yes"]})
    assert item == ItemScore(score=float(says == "yes"), also={"yes_ratio": float(says == "yes")})


def test_vqav2():
    for prediction, answers, accuracy in TABLE["vqav2"]:
        found = get_metric("vqav2").score(prediction, {"answers": answers})
        assert 100 * found == pytest.approx(accuracy, abs=0.006), (prediction, answers)


def test_vqav2_takes_32_stops_out_as_its_code_does():
    answers = ["a", "b", "b", "b", "b"]
    assert score("vqav2", "b" + 32 * ".", "a", answers=answers) == 1.0
    assert score("vqav2", "b" + 33 * ".", "a", answers=answers) == 0.0


def test_mme():
    for prediction, read in TABLE["mme"]:
        for answer in ("yes", "no"):
            assert score("mme", prediction, answer) == (read == answer), prediction


def mmbench_letter(prediction: str, options: list[str]) -> str:
    """Returns the one letter that is right for a prediction; "" for none."""
    right = {
        letter: score("mmbench", prediction, letter, options=options, question=1)
        for letter in "ABCDE"[: len(options)]
    }
    return "".join(letter for letter in right if right[letter])


def test_mmbench():
    for prediction, number, letter in TABLE["mmbench"]:
        found = mmbench_letter(prediction, TABLE["options"][number])
        assert found == letter.replace("Z", ""), (prediction, number)


@pytest.mark.parametrize(
    ("prediction", "letter"),
    [
        ("[B]", "B"),
        ("B: fish", "B"),
        ("**B**", "B"),
        ("B\n\nIt swims", "B"),
        ("A large fish.", "A"),
        ("It is a FISH", "B"),
        ("b", ""),
        ("A or B", ""),
        ("not a cat", "A"),
        ("cat or fish", ""),
        ("A fish is what I see here", ""),
        ("The answer is a fish, since it has fins", "A"),
        ("Z", ""),
        ("Cannot determine the answer: B", ""),
        ("答案：B", ""),
        ("", ""),
        ("I am quite sure that this must be a fish", ""),
    ],
)
def test_mmbench_reads_letters_and_then_choices(prediction: str, letter: str):
    assert mmbench_letter(prediction, ["cat", "fish"]) == letter


@pytest.mark.parametrize(
    ("prediction", "options", "letter"),
    [
        ("a cat sat", ["cat", "a cat sat"], ""),
        ("cat", ["cat", "a cat sat"], "A"),
        ("B", ["B", "A"], "B"),
        ("b", ["B", "A"], "A"),
        ("none", ["", "none"], ""),
    ],
)
def test_choices_that_are_letters_or_hold_another(prediction, options, letter):
    assert mmbench_letter(prediction, options) == letter


def test_mmmu_but_for_the_letters_that_are_drawn():
    for prediction, number, letter in TABLE["mmmu"]:
        options = TABLE["options"][number]
        for answer in "ABCDE"[: len(options)]:
            fields = {"answers": [answer], "options": options, "id": "mmmu/1"}
            item = get_metric("mmmu").score(prediction, fields)
            assert isinstance(item, ItemScore)
            assert item.also["unparsed"] == (letter == "drawn"), prediction
            assert letter == "drawn" or item.score == (answer == letter), prediction


def test_open_questions_of_mmmu():
    for prediction, answers, is_accepted in TABLE["mmmu_open"]:
        item = get_metric("mmmu").score(prediction, {"answers": answers})
        assert isinstance(item, ItemScore)
        assert item.score == is_accepted, (prediction, answers)
