"""Tokens of captions. What is expected here was printed by Stanford's tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.eval.metrics.ptb import tokenize_ptb


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man's dog (brown) can't sit.", "a man 's dog -lrb- brown -rrb- ca n't sit"),
        ("I cannot; 'tis gonna rain", "i can not 't is gon na rain"),
        ('"Well-known", he said...', "well-known he said"),
        ("wow! wow!! what?!", "wow wow !! what ?!"),
        ("the U.S. at 5 p.m. in St. Louis", "the u.s. at 5 p.m. in st. louis"),
        ("He sat. In Oct. it rained.", "he sat in oct. it rained"),
        ("No. 5 is no.", "no. 5 is no"),
        ("type S. The next", "type s the next"),
        ("type S. the next", "type s. the next"),
        ("a cat.The dog", "a cat.the dog"),
        ("$5, £6, 7€, 8¢ and 9%", "$ 5 # 6 7 $ 8 cents and 9 %"),
        ("5 1/2 inches", "5\xa01/2 inches"),
        ("½ cup", "1/2 cup"),
        ("call (555) 555-1234", "call -lrb-555-rrb-\xa0555-1234"),
        ("10/10/2014 12:30 1,000.5 -5 10-12", "10/10/2014 12:30 1,000.5 -5 10-12"),
        ("A/C and/or w/o w/", "a/c and/or w/o w /"),
        ("AT&T &amp; R&D b&b", "at&t & r&d b & b"),
        ("rock 'n' roll o'clock O'Brien 'em", "rock 'n' roll o'clock o'brien 'em"),
        ("he ’ s and don’t “quoted”", "he s and do n't quoted"),
        ("a – b — c -- d - e ----- f", "a b c d e ----- f"),
        ("http://foo.com/bar?x=1 www.foo.com. a@b.c", "http://foo.com/bar?x=1 www.foo.com a@b.c"),
        ("@user #tag #1", "@user #tag # 1"),
        (":) happy :-( sad", ":-rrb- happy :--lrb- sad"),
        ("<b>x</b> < y", "<b> x </b> < y"),
        ("[x] {y}", "-lsb- x -rsb- -lcb- y -rcb-"),
        ("90's '90s 1990s", "90 's '90s 1990s"),
        ("v1.0 1.a img.jpg 12.jpg", "v1 .0 1 a img.jpg 12.jpg"),
        ("12.jpg x", "12.jpg x"),
        ("日本語 café naïve-x", "日本語 café naïve-x"),
        ("सुंदर हिन्दी", "सुंदर हिन्दी"),
        ("a dog 😀 runs ❤", "a dog runs ❤"),
        ("soft\xadhyphen", "softhyphen"),
        ("", ""),
        (" . ", ""),
        ("two\nlines", "two lines"),
    ],
)
def test_tokens(caption: str, words: str):
    assert tokenize_ptb(caption) == words


@given(st.lists(st.text(alphabet="bcdefgh", min_size=2, max_size=7), max_size=8))
def test_plain_words_are_left_alone(words: list[str]):
    assert tokenize_ptb(" ".join(words)) == " ".join(words)


@given(st.text(max_size=40))
def test_any_text_is_taken_and_comes_out_lower_case_without_punctuation(text: str):
    words = tokenize_ptb(text).split(" ")
    assert not {".", ",", "!", "?", ":", ";", "'", "''", "``", "`", "-", "--", "..."} & set(words)
    assert all(word == word.lower() for word in words)


@given(st.text(alphabet="abcXYZ12 .,'\"-/&$#@:;()[]<>!?%", max_size=25))
def test_space_around_a_caption_says_nothing(text: str):
    assert tokenize_ptb(f"  {text} ") == tokenize_ptb(text)


def test_long_texts_without_spaces_take_no_time():
    for text in ("a" * 3000, "<a " * 1000, "1." * 1500, "a-" * 1500, "www." * 700, "'" * 3000):
        assert tokenize_ptb(text) is not None
