"""Texts of what a dataset or a corpus holds, and of the benchmarks that can be read."""

from collections.abc import Mapping, Sequence

from flows.report.text_lists import abbreviate_list
from pipelines.prepare.check import CorpusCheck, PictureFacts, Spread
from pipelines.records.holdings import Holdings, PartHoldings, omission_lines, reject_lines
from pipelines.records.licence import LicenceCount
from pipelines.sources.check import RawFileCheck

_HEAD = ("row", "folder", "split", "files", "examples", "published", "images")
_PART_HEAD = ("part", "records", "images", "suffixes", "languages")
_MAX_LANGS = 6
_MAX_LICENCES = 8


def align_table(table: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines, their cells in columns."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]


def holdings_text(holdings: Holdings) -> str:
    """Returns the parts of a dataset or a corpus, its rejects, and what was not read."""
    # The lines of a small dataset:
    #
    #   train: 1,210 inputs = 1,200 records + 10 rejects
    #   part   records  images  suffixes  languages
    #   train  1,200    1       1,200     en
    #   licences: CC-BY-4.0 1,100, none stated 100
    #   rejected: 10 x decode: undecodable: image file is truncated
    #     web/17: undecodable: image file is truncated (web/a.tar/17.jpg)
    total = holdings.num_records + holdings.num_rejected
    parts = [
        (
            name,
            f"{part.records:,}",
            _image_counts(part),
            f"{part.suffixes:,}",
            _language_counts(part.langs),
        )
        for name, part in holdings.parts.items()
    ]
    lines = [
        f"{holdings.name}: {total:,} inputs = {holdings.num_records:,} records + "
        f"{holdings.num_rejected:,} rejects",
        *([f"{holdings.num_composed:,} over a background"] if holdings.num_composed else []),
        *align_table([_PART_HEAD, *parts]),
        *([f"clips: {_decoder_counts(holdings.decoders)}"] if holdings.decoders else []),
        *([f"licences: {_licence_counts(holdings.licences)}"] if holdings.num_records else []),
        *reject_lines(holdings.rejects),
        *omission_lines(holdings.omissions),
    ]
    return "\n".join(lines) + "\n"


def _decoder_counts(decoders: Mapping[str, int]) -> str:
    return ", ".join(f"{num:,} decoded by {name}" for name, num in sorted(decoders.items()))


def corpus_check_text(check: CorpusCheck) -> str:
    """Returns the findings of a check of a corpus as lines; the last one says what to do."""
    lines = [_opened_line(check)]
    for duplicate in check.duplicates:
        lines.append(f"same id: {duplicate.id}: {', '.join(duplicate.places)}")
    if check.num_duplicates > len(check.duplicates):
        lines.append(f"same id: {check.num_duplicates - len(check.duplicates):,} more")
    if check.pictures:
        lines += _picture_lines(check.pictures)
    if check.clip_seconds:
        lines.append(f"clips: {_spread_text(check.clip_seconds)} s long")
    if check.num_dropped:
        total = check.num_records + check.num_rejected
        lines.append(f"licences.allow drops {check.num_dropped:,} of {total:,} inputs")
    lines.append(_advice_line(check))
    return holdings_text(check) + "\n".join(lines) + "\n"


def _opened_line(check: CorpusCheck) -> str:
    # opened: 200 of 12,345 pictures, 20 of 31 clips; --all opens every one
    counts = (
        (check.num_opened_pictures, check.num_pictures, "pictures"),
        (check.num_opened_clips, check.num_clips, "clips"),
    )
    texts = [f"{opened:,} of {total:,} {what}" for opened, total, what in counts if total]
    hint = "; --all opens every one" if check.is_sample else ""
    return f"opened: {', '.join(texts) or 'nothing, no input names a picture or a clip'}{hint}"


def _picture_lines(facts: PictureFacts) -> list[str]:
    modes = ", ".join(f"{mode} {num:,}" for mode, num in facts.modes.items())
    special = [
        f"{num:,} {what}"
        for num, what in (
            (facts.num_alpha, "with alpha"),
            (facts.modes.get("CMYK", 0), "in CMYK"),
            (facts.num_16_bit, "of more than 8 bits"),
            (sum(facts.modes.get(mode, 0) for mode in ("P", "PA")), "with a palette"),
        )
        if num
    ]
    return [
        f"modes: {modes}{'; ' * bool(special)}{', '.join(special)}",
        f"sizes: {_spread_text(facts.width)} wide, {_spread_text(facts.height)} high "
        f"(smallest, median, largest)",
    ]


def _spread_text(spread: Spread) -> str:
    return ", ".join(f"{value:,g}" for value in (spread.least, spread.median, spread.most))


def _advice_line(check: CorpusCheck) -> str:
    about = "by the sample, " if check.is_sample else ""
    if check.failure:
        cure = "repair what is named above"
        if check.num_records:
            cure += ", or raise prepare.max_reject_rate"
        return f"preparing would fail: {about}{check.failure}; {cure}"
    if check.is_sample:
        return "nothing in the sample would fail the preparation; --all looks at the rest"
    if check.num_rejected:
        return "ready to prepare; what is rejected is left out"
    return "ready to prepare"


def _image_counts(part: PartHoldings) -> str:
    """Returns the images per record, as "1+2" where records differ, and windows if several."""
    images, windows = ("+".join(map(str, sorted(of))) for of in (part.images, part.windows))
    return images if windows in ("", "1") else f"{images} in {windows} windows"


def _licence_counts(licences: Sequence[LicenceCount]) -> str:
    """Returns the most frequent licences, each with its record count."""
    ordered = sorted(licences, key=lambda count: (-count.records, count.licence))
    return abbreviate_list([f"{c.title} {c.records:,}" for c in ordered], _MAX_LICENCES)


def _language_counts(langs: Mapping[str, int]) -> str:
    """Returns the most frequent languages, each with its record count if there are several."""
    if len(langs) == 1:
        return next(iter(langs))
    ordered = sorted(langs.items(), key=lambda item: (-item[1], item[0]))
    return abbreviate_list([f"{lang} {num:,}" for lang, num in ordered], _MAX_LANGS)


def benchmark_rows_text(rows: Sequence[RawFileCheck], *, looked: bool) -> str:
    """Returns a table of benchmarks' rows, what is missing or unreadable, and a summary.

    Args:
      rows: the rows to print.
      looked: whether a data root was searched; else the files are listed as needed.
    """
    lines = align_table([_HEAD, *(_row_cells(row, looked) for row in rows)])
    lines += ["", *dict.fromkeys(note for row in rows for note in _row_notes(row, looked))]
    if looked:
        ready = sum(row.all_present and not row.problem for row in rows)
        same = sum(bool(row.as_published) for row in rows)
        lines.append(f"{ready} of {len(rows)} rows can be read, {same} hold the published number")
    return "\n".join(lines) + "\n"


def _row_cells(row: RawFileCheck, looked: bool) -> tuple[str, ...]:
    # A cell says what was found, and stays empty where nothing was looked for: 0 would be a claim.
    present = sum(bool(file.found) for file in row.files)
    files = f"{present} of {len(row.files)}" if looked else str(len(row.files))
    examples = "" if row.num is None else f"{row.num:,}"
    if row.as_published is False:
        examples += " (differs)"
    if row.num_rejected:
        examples += f", {row.num_rejected:,} malformed"
    return (
        row.title,
        row.benchmark,
        row.split,
        files if row.files else "no reader",
        "unreadable" if row.problem else examples,
        "not known" if row.published is None else f"{row.published:,}",
        "" if row.num is None else f"{row.num_present:,} of {row.num_images:,}",
    )


def _row_notes(row: RawFileCheck, looked: bool) -> list[str]:
    """Returns a line per file that is needed or missing, and one if the row is unreadable."""
    # One list under two words: what is missing, or, where nothing was looked for, what is needed.
    missing = [file.path for file in row.files if not file.found]
    word = "missing" if looked else "needs"
    notes = [f"{word} {path} (published at {row.publisher})" for path in missing]
    if row.problem:
        notes.append(f"unreadable {row.benchmark} {row.split}: {row.problem}")
    return notes
