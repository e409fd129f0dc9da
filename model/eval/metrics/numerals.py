"""The table of number words and their digits, which two metrics treat as equal."""

_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty
"""

NUMERALS = {"none": "0", **{word: str(number) for number, word in enumerate(_WORDS.split())}}
"""Lower-case word to digits, none to twenty."""
