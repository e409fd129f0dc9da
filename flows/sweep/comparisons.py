"""The comparisons that a study's sweeps have looked at, and the chance of error that each has.

<store>/comparisons/<study>/1.json   {"comparisons": ["m3 - parcel: chartqa 16, 64; 1 pretraining"]}

Whoever compares at other budgets, on other benchmarks or with other methods looks at the same seeds
again: with six choices, one of them decides wrongly three times as often as a single one would. So
what was compared is kept, and file k spends a share of the 5 %, which its comparisons divide:

    5 % / (k (k + 1)) = 2.5 %, 0.83 %, 0.42 %, …      5 % in all, however many there will be
"""

import errno
import json
from collections.abc import Sequence

from flows.report.spread import LEVEL
from infra.store.store import Store
from infra.typed_json import parse_typed

COMPARISONS = "comparisons"
"""Folder of the store with a folder for each study; and the one key of its files."""


def spend_error(store: Store, study: str, comparisons: Sequence[str]) -> dict[str, float]:
    """Returns comparison -> bound on the chance that it is decided wrongly; keeps the new ones.

    A comparison that is asked for again has the bound that it had.

    Args:
      store: the store of the study.
      study: the study's name.
      comparisons: what one sweep compares, each in words that are always the same.
    """
    folder, files = f"{COMPARISONS}/{study}", store.files
    while True:
        numbers = sorted(
            int(stem)
            for name in files.listing(folder)
            if (stem := name[:-5]).isdecimal() and int(stem)
        )
        errors: dict[str, float] = {}
        for number in numbers:
            name = f"{folder}/{number}.json"
            try:
                known = parse_typed(dict[str, list[str]], files.read(name), name)[COMPARISONS]
            except (ValueError, KeyError):
                continue  # Damaged: its share stays spent, and what it named gets another.
            for comparison in known:
                errors.setdefault(comparison, LEVEL / (number * (number + 1)) / len(known))
        new = [comparison for comparison in comparisons if comparison not in errors]
        if not new:
            return {comparison: errors[comparison] for comparison in comparisons}
        number = max(numbers, default=0) + 1
        text = json.dumps({COMPARISONS: new}, indent=2, ensure_ascii=False)
        # Two sweeps at once take the same number: the file is only created where there is none, and
        # both read again what it holds.
        try:
            files.create_if_absent(f"{folder}/{number}.json", text.encode())
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            # Who may only read the store is told what the comparison would have.
            error_of_new = LEVEL / (number * (number + 1)) / len(new)
            return {each: errors.get(each, error_of_new) for each in comparisons}
