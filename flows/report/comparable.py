"""Which scores may be averaged, in a table and by a sweep: same data, decoding and platform."""

import collections
from collections.abc import Iterable, Sequence

from flows.report.cells import Score
from flows.report.text_lists import abbreviate_list

_MAX_NAMES = 3
"""Largest number of scores named in a sentence."""


def check_comparable(scores: Iterable[Score]) -> None:
    """Checks that all scores of a benchmark are from the same data and the same decoding.

    Raises:
      ValueError: if two differ; the message names both scores and the difference.
    """
    # The first score of a benchmark is what the others are held against; one whose circumstances
    # are unknown is not compared.
    firsts: dict[str, Score] = {}
    for score in scores:
        if score.origin is None:
            continue
        first = firsts.setdefault(score.benchmark, score)
        assert first.origin is not None
        if score.origin.data != first.origin.data:
            raise ValueError(
                f"all scores of {score.benchmark} must come from the same evaluation split and "
                f"prompt, got data {first.origin.data[:12]} for {_score_name(first)} and "
                f"{score.origin.data[:12]} for {_score_name(score)}; evaluate both on the same "
                f"data."
            )
        if score.origin.decoding != first.origin.decoding:
            raise ValueError(
                f"all scores of {score.benchmark} must come from the same decoding settings, got "
                f"{first.origin.decoding} for {_score_name(first)} and {score.origin.decoding} for "
                f"{_score_name(score)}; evaluate both with the same settings."
            )


def comparable_scores(
    scores: Sequence[Score], *, mixed: bool = False
) -> tuple[list[Score], list[str]]:
    """Returns the scores that a report or a sweep averages, and notes on them, one line each.

    Other versions of the libraries, or another kind of accelerator, round differently all through
    a training. So without `mixed` only the scores of the commonest platform are kept; of several
    equally common, those of the first. Processors of another model round differently, too, but
    that changes a score less than the seed does: they are mixed, and a note names them.

    Args:
      scores: scores of one study.
      mixed: whether to keep the scores of all platforms.

    Raises:
      ValueError: as `check_comparable`.
    """
    # Other data or decoding is an error, since the means would mix two questions. Nothing is
    # dropped in silence: each score that is left out is in a note.
    check_comparable(scores)
    notes = []
    platforms = collections.Counter(s.origin.platform for s in scores if s.origin)
    chosen_scores = list(scores)
    if len(platforms) > 1:
        most = platforms.most_common(1)[0][0]
        others = [s for s in scores if s.origin and s.origin.platform != most]
        counts = "; ".join(f"{n} with {p}" for p, n in platforms.most_common())
        if mixed:
            notes.append(f"Scores of several platforms are mixed: {counts}.")
        else:
            chosen_scores = [s for s in scores if not s.origin or s.origin.platform == most]
            notes.append(
                f"{len(others)} of {len(scores)} scores are left out because they were made on "
                f"another platform than most: {counts}. Left out: {_score_names(others)}. "
                "`parcel results RUN --mixed` includes them."
            )
    if len(cpus := sorted({s.origin.cpu for s in chosen_scores if s.origin})) > 1:
        notes.append(f"Computed on processors of several models: {'; '.join(cpus)}.")
    return chosen_scores, notes


def _score_name(score: Score) -> str:
    return f"{score.method}/{score.budget}/{score.seed}"


def _score_names(scores: Sequence[Score]) -> str:
    return abbreviate_list([f"{s.benchmark}/{_score_name(s)}" for s in scores], _MAX_NAMES)
