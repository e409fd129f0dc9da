"""CIDEr-D, BLEU and ROUGE-L by hand-made numbers and by what must hold for any captions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.eval.metrics.ngrams import count_ngrams
from model.eval.metrics.rouge import longest_common_subsequence
from model.eval.scorer import Scorer

WORD = st.sampled_from(["red", "dog", "on", "grass", "runs", "ball"])
CAPTION = st.lists(WORD, min_size=1, max_size=7).map(" ".join)
ROWS = st.lists(
    st.tuples(CAPTION, st.lists(CAPTION, min_size=1, max_size=3)), min_size=2, max_size=6
)


def score(metric: str, rows, **fields):
    scorer = Scorer(metric)
    for prediction, references in rows:
        scorer.add(prediction, {"answers": references, **fields})
    return scorer.finish()


def test_counts_of_ngrams():
    counts = count_ngrams(["a", "b", "a", "b"])
    assert counts[0] == {("a",): 2, ("b",): 2}
    assert counts[1] == {("a", "b"): 2, ("b", "a"): 1}
    assert [c.total() for c in counts] == [4, 3, 2, 1]


def test_cider_of_two_images_by_hand():
    rows = [("a cat sat", ["a cat sat"]), ("a dog", ["a bird flew off"])]
    scored = score("cider", rows)
    # Image 1: "a" is everywhere, so weighs nothing; 1-, 2- and 3-grams agree, there is no 4-gram.
    assert scored.items[0].score == pytest.approx(10 * 3 / 4)
    assert scored.items[1].score == 0.0
    assert scored.result.total.score == pytest.approx(100 * 7.5 / 2)


def test_cider_counts_length_in_bigrams_and_clips():
    rows = [("cat cat cat", ["cat"]), ("x", ["dog"])]
    # log 2 cancels: min(3, 1) * 1 / (3 * 1), times exp(-2^2 / 72), of 4 n-gram orders.
    expected = 10 / 4 * (1 / 3) * math.exp(-4 / 72)
    assert score("cider", rows).items[0].score == pytest.approx(expected)


def test_cider_of_one_image_is_zero_as_every_ngram_is_everywhere():
    assert score("cider", [("a cat", ["a cat"])]).result.total.score == 0.0


def test_bleu_by_hand():
    rows = [("the cat is here", ["the cat is there now", "a cat"])]
    parts = score("bleu", rows).result.parts
    brevity = math.exp(1 - 5 / 4)  # 5 words are closer to 4 than 2 are
    assert parts["bleu_1"].score == pytest.approx(100 * 3 / 4 * brevity)
    assert parts["bleu_2"].score == pytest.approx(100 * math.sqrt(3 / 4 * 2 / 3) * brevity)
    assert parts["bleu_3"].score == pytest.approx(100 * (1 / 4) ** (1 / 3) * brevity)
    assert parts["bleu_4"].score == pytest.approx(0, abs=0.02)
    assert score("bleu", rows).result.total.score == parts["bleu_4"].score


def test_bleu_of_a_corpus_is_of_summed_counts():
    rows = [("a b c d", ["a b c d"]), ("x y", ["p q"])]
    parts = score("bleu", rows).result.parts
    assert parts["bleu_1"].score == pytest.approx(100 * 4 / 6)
    assert parts["bleu_4"].score == pytest.approx(100 * (4 / 6 * 3 / 4) ** 0.25)


@pytest.mark.parametrize(
    ("prediction", "references", "bleu_1"),
    [
        ("a b c d", ["a b c d e", "a b c"], 1.0),  # 3 and 5 words are equally close: the shorter
        ("a b c d", ["a b"], 1 / 2),  # longer than the reference: no bonus
        ("a a", ["a", "a c"], 1 / 2),  # as often as in one reference, not in all together
    ],
)
def test_bleu_of_one_caption(prediction: str, references: list[str], bleu_1: float):
    parts = score("bleu", [(prediction, references)]).result.parts
    assert parts["bleu_1"].score == pytest.approx(100 * bleu_1)


def test_rouge_by_hand():
    done = score("rouge_l", [("the cat sat", ["the black cat", "on the mat"])])
    # Two words in order with the first: precision 2/3 and recall 2/3.
    assert done.items[0].score == pytest.approx(2 / 3)
    recalled = score("rouge_l", [("the cat", ["the cat sat down"])]).items[0].score
    assert recalled == pytest.approx(2.44 * 0.5 / (0.5 + 1.44))
    assert score("rouge_l", [("", [""])]).items[0].score == 1.0  # as the official code has it
    assert score("rouge_l", [("", ["a"])]).items[0].score == 0.0


@given(st.lists(WORD, max_size=7), st.lists(WORD, max_size=7))
def test_common_subsequence_is_symmetric_and_bounded(left, right):
    common = longest_common_subsequence(left, right)
    assert common == longest_common_subsequence(right, left)
    assert len(set(left) & set(right)) >= (1 if common else 0)
    assert 0 <= common <= min(len(left), len(right))
    assert longest_common_subsequence(left, left + right) == len(left)


@given(ROWS)
def test_captions_score_within_bounds_and_a_reference_scores_best(rows):
    for metric, most in (("cider", 10), ("bleu", 1), ("rouge_l", 1)):
        assert all(-1e-9 <= i.score <= most + 1e-6 for i in score(metric, rows).items)
    copies = [(references[0], references) for _, references in rows]
    assert score("rouge_l", copies).result.total.score == pytest.approx(100)


@pytest.mark.slow
@given(ROWS, st.randoms())
def test_order_of_images_and_references_does_not_matter(rows, random):
    shuffled = [(p, random.sample(r, len(r))) for p, r in random.sample(rows, len(rows))]
    for metric in ("cider", "bleu", "rouge_l"):
        before = score(metric, rows).result.total.score
        assert score(metric, shuffled).result.total.score == pytest.approx(before, abs=1e-9)
