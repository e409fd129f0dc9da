"""Finds records that show a picture of an evaluation set, or the pictures of an earlier record."""

import collections
import dataclasses
from collections.abc import Collection, Mapping

from pipelines.hygiene.index import PictureIndex, SimilarPicture
from pipelines.hygiene.matches import CONTAMINATION, DUPLICATE, TRAINED, Match
from pipelines.hygiene.pictures import Pictures, RecordPictures


def find_matches(
    pictures: Pictures,
    evaluation: Mapping[str, Pictures],
    *,
    kinds: Collection[str],
    min_likeness: float,
    candidates: int,
) -> list[Match]:
    """Returns at most one match of each kind per record, contamination first."""
    matches: list[Match] = []
    if CONTAMINATION in kinds:
        matches += _find_contamination(pictures, evaluation, min_likeness, candidates)
    if DUPLICATE in kinds:
        matches += _find_duplicates(pictures, min_likeness, candidates)
    return matches


def _find_contamination(
    pictures: Pictures,
    evaluation: Mapping[str, Pictures],
    min_likeness: float,
    candidates: int,
) -> list[Match]:
    """Returns matches with evaluation sets; one shared image, such as a clip's frame, is enough."""
    best: dict[str, Match] = {}
    for dataset, held_out in evaluation.items():
        # Same file first: no picture has to be compared, and the verdict is certain. `reversed`
        # lets the first of several records of a file win.
        files = {record.sha256: record.id for record in reversed(held_out.records)}
        index = PictureIndex(held_out.prints, held_out.image, candidates=candidates)
        similar = index.search(pictures.prints, pictures.image, min_likeness=min_likeness)
        for record in pictures.records:
            match = None
            if other := files.get(record.sha256):
                match = _make_match(record, CONTAMINATION, other, dataset, 1.0, exact=True)
            elif near_matches := [
                similar[row][0] for row in record.rows if row >= 0 and similar[row]
            ]:
                top = max(near_matches, key=lambda picture: picture.likeness)
                other = held_out.records[held_out.owners[top.row]].id
                match = _make_match(
                    record, CONTAMINATION, other, dataset, top.likeness, exact=False
                )
            # Of several sets, the same file wins over any likeness, then the greater likeness.
            if match and (
                record.id not in best or _rank_match(match) > _rank_match(best[record.id])
            ):
                best[record.id] = match
    return [best[record.id] for record in pictures.records if record.id in best]


def _rank_match(match: Match) -> tuple[bool, bool, float]:
    # First the splits that are scored on: of their matches, tables tell what was not seen.
    return not match.dataset.endswith(TRAINED), match.exact, match.likeness


def _find_duplicates(pictures: Pictures, min_likeness: float, candidates: int) -> list[Match]:
    """Returns matches of records with earlier ones; the first of several equal records has none.

    A clip is a duplicate if more than half of its frames are.
    """
    index = PictureIndex(pictures.prints, pictures.image, candidates=candidates)
    rows = list(range(len(pictures.prints)))
    # Each row is compared with the rows before it only: of two that look alike, the later one
    # matches.
    similar = index.search(
        pictures.prints, pictures.image, min_likeness=min_likeness, row_limits=rows
    )
    # Verdicts are per file, in the order of the dataset:
    #
    #   a.jpg  first of its kind      stays
    #   b.jpg  same bytes as a.jpg    exact duplicate of a.jpg
    #   c.jpg  looks like a.jpg       near duplicate of a.jpg
    #   c.jpg  another record of it   the same verdict, since the pixels are the same
    files: dict[str, RecordPictures] = {}
    verdicts: dict[str, Match | None] = {}
    for record in pictures.records:
        first = files.setdefault(record.sha256, record)
        if record.source in verdicts:  # All records of a file share one verdict.
            continue
        if first.source != record.source:
            verdicts[record.source] = _make_match(record, DUPLICATE, first.id, "", 1.0, exact=True)
        else:
            verdicts[record.source] = _match_near_duplicate(pictures, record, similar)
    # The verdict of a file, once for each of its records.
    return [
        dataclasses.replace(match, id=record.id)
        for record in pictures.records
        if (match := verdicts[record.source])
    ]


def _match_near_duplicate(
    pictures: Pictures, record: RecordPictures, similar: list[list[SimilarPicture]]
) -> Match | None:
    # Per earlier file, the likeness of each of this record's images that the file shows, too.
    likeness_by_source: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
    ids: dict[str, str] = {}
    for row in (row for row in record.rows if row >= 0):
        best: dict[str, float] = {}
        # A row stores an image once, so the row itself may belong to an earlier record.
        for picture in (SimilarPicture(row, 1.0), *similar[row]):
            owner = pictures.records[pictures.owners[picture.row]]
            if owner.source != record.source:
                ids.setdefault(owner.source, owner.id)
                best[owner.source] = max(best.get(owner.source, 0.0), picture.likeness)
        for source, value in best.items():
            likeness_by_source[source].append(value)
    # Blank frames count in the whole but never match, so a mostly blank clip is no duplicate.
    majority = {s: v for s, v in likeness_by_source.items() if 2 * len(v) > len(record.rows)}
    if not majority:
        return None
    source = max(majority, key=lambda s: (len(majority[s]), max(majority[s])))
    return _make_match(record, DUPLICATE, ids[source], "", max(majority[source]), exact=False)


def _make_match(
    record: RecordPictures,
    kind: str,
    matched_id: str,
    dataset: str,
    likeness: float,
    *,
    exact: bool,
) -> Match:
    return Match(
        id=record.id,
        kind=kind,
        match=matched_id,
        dataset=dataset,
        likeness=round(likeness, 4),
        exact=exact,
    )
