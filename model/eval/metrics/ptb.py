"""Splits captions into coco_caption's words: Penn Treebank tokens, lower-cased, no punctuation."""

import functools
import re

from model.eval.metrics.ptb_rules import rules

_DROPPED = frozenset(
    [
        "''",
        "'",
        "``",
        "`",
        "-LRB-",
        "-RRB-",
        "-LCB-",
        "-RCB-",
        ".",
        "?",
        "!",
        ",",
        ":",
        "-",
        "--",
        "...",
        ";",
    ]
)
# Tokens are lower-cased before this comparison, so the list's upper-case brackets never match:
# brackets stay, as "-lrb-".

_PLAIN = re.compile(r"([A-Za-z]+)[ \n]")
_SPLIT = frozenset(["cannot", "gonna", "gotta", "lemme", "gimme", "wanna"])
_SPACE = re.compile("(?:[\\s\0\x7f\u200b\u200e\u200f\ufeff]|&nbsp;)+", re.IGNORECASE)
_DASHES = re.compile("---?-?|&(?:md|mdash|ndash);|[\x96\x97–—―]", re.IGNORECASE)
_ELLIPSIS = re.compile(r"\.{3,5}|(\.[ \xa0]){2,4}\.|[\x85…]")
_SPELLINGS = {
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": "''",
    '"': "''",
    "&apos;": "'",
    "(": "-lrb-",
    ")": "-rrb-",
    "[": "-lsb-",
    "]": "-rsb-",
    "{": "-lcb-",
    "}": "-rcb-",
    "¼": "1/4",
    "½": "1/2",
    "¾": "3/4",
    "⅓": "1/3",
    "⅔": "2/3",
    "¢": "cents",
    "£": "#",
    "\x80": "$",
    "¤": "$",
    "₠": "$",
    "€": "$",
}
_QUOTES = str.maketrans(
    {
        **dict.fromkeys("\x91‘‛‹", "`"),
        **dict.fromkeys("\x92’›", "'"),
        **dict.fromkeys("\x93“«", "``"),
        **dict.fromkeys("\x94”»", "''"),
    }
)
_SUFFIX = re.compile(
    "(?:['’\x92]|&apos;)(?:re|ve|ll|[msd])|n(?:['’‘‛\x91\x92]|&apos;)t", re.IGNORECASE
)
_QUOTED = re.compile("['`\x91-\x94‘-‟‹›«»]+")


@functools.lru_cache(maxsize=1 << 17)  # CIDEr reads every reference twice, and at each budget.
def tokenize_ptb(caption: str) -> str:
    r"""Returns the words of a caption, joined by spaces.

    >>> tokenize_ptb("A man's dog (brown) can't sit; it's 5 1/2 years old.")
    "a man 's dog -lrb- brown -rrb- ca n't sit it 's 5\xa01/2 years old"

    A space inside a token is written U+00A0, as in the example: `str.split` splits there,
    `split(" ")` does not, and the scorers of coco_caption differ in which they use.

    Source: coco_caption `pycocoevalcap/tokenizer/ptbtokenizer.py`: Stanford CoreNLP 3.4.1,
    `-preserveLines -lowerCase`, and its list of dropped punctuation.

    Args:
      caption: one caption; line breaks count as spaces [text].
    """
    # Line breaks at the end: a rule that looks at what follows its token always finds something.
    text = re.sub("[\r\n\x0b\x0c\x85\u2028\u2029]", " ", caption) + "\n\n"
    tokens: list[str] = []
    position, end = 0, len(text) - 2
    while position < end:
        # Most of a caption is plain words between spaces, which no rule would change. Only the few
        # that split ("cannot" is "can not") go the long way.
        if plain := _PLAIN.match(text, position):
            word = plain[1].lower()
            if word not in _SPLIT:
                tokens.append(word)
                position = plain.end()
                continue
        if space := _SPACE.match(text, position):
            position = space.end()
            continue
        token = _longest_ptb_token(text, position)
        if token:
            tokens.append(_format_ptb_token(token))
        # What no rule knows is skipped, a character at a time.
        position += len(token) or 1
    return " ".join(token for token in tokens if token not in _DROPPED).rstrip()


def _longest_ptb_token(text: str, position: int) -> str:
    """Returns the token that starts at a position; "" if none does."""
    best, token = 0, ""
    # All rules are tried at this place. `>` and not `>=`: of equally long matches, the first rule's
    # counts. What follows the token may decide the length, but is not part of the token.
    for rule in rules():
        match = rule.match(text, position)
        if match is not None and match.end() - position > best:
            best = match.end() - position
            token = match[match.lastindex or 0]
    return token


def _format_ptb_token(token: str) -> str:
    """Returns a token as the tokenizer prints it."""
    lowered = token.lower()
    if lowered in _SPELLINGS:
        return _SPELLINGS[lowered]
    if _DASHES.fullmatch(token):
        return "--"
    if _ELLIPSIS.fullmatch(token):
        return "..."
    if _QUOTED.fullmatch(token) or _SUFFIX.fullmatch(token):
        return lowered.replace("&apos;", "'").translate(_QUOTES)
    if token.startswith("(") or (len(token) > 1 and token.endswith(("(", ")"))):
        lowered = lowered.replace("(", "-lrb-").replace(")", "-rrb-")
    return lowered.replace("&amp;", "&").replace("\xad", "").replace(" ", "\xa0") or "-"
