"""Contractions that VQA's official scorer writes with their apostrophes."""

_ONE = """
    ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd
    how'll how's isn't it'd it'll ma'am mightn't might've mustn't must've needn't not've o'clock
    oughtn't shan't should've shouldn't somebody'll somebody's someone'd someone'll someone's
    something'd something'll that's there'd there're there's they'd they'll they're they've 'twas
    wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd
    who'll who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're you've
"""
_TWO = """
    couldn't've hadn't've he'd've it'd've mightn't've she'd've shouldn't've somebody'd've
    someone'd've something'd've there'd've they'd've we'd've who'd've wouldn't've you'd've
    y'all'll y'all'd've 'ow's'at
"""


def _drop_one_apostrophe(word: str) -> list[str]:
    """Returns the variants of a word that lack one of its apostrophes."""
    # "couldn't've" gives "couldnt've" and "couldn'tve".
    places = [i for i, character in enumerate(word) if character == "'"]
    return [word[:i] + word[i + 1 :] for i in places]


CONTRACTIONS: dict[str, str] = {
    **{wrong: word for word in _ONE.split() for wrong in _drop_one_apostrophe(word)},
    **{wrong: word for word in _TWO.split() for wrong in _drop_one_apostrophe(word)},
    "somebody'd": "somebodyd",  # So in the official scorer.
}
"""Word as written to word as compared. Words that lack both apostrophes are left alone."""
