"""Notes the names of the raw files of some units."""

import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence

from pipelines.prepare.job import WorkFolder, parse_receipt
from pipelines.records.lines import sorted_lines
from pipelines.sources.reading.corpus import UnpackedMedia
from pipelines.sources.reading.item import Item


def note_file_names(work_folder: WorkFolder, number: int, units: Sequence[str]) -> int:
    """Notes the names of the files that some units are read from; returns their number."""
    num_names = parse_receipt(work_folder.receipt(names_receipt(number)))
    if num_names is not None:
        return num_names
    corpus, job, count = work_folder.corpus(UnpackedMedia()), work_folder.job, 0

    def names() -> Iterator[str]:
        for unit in units:
            # Archives are known by name. What a list of annotations refers to shows only in its
            # rows.
            archives = job.spec.files_of_unit(corpus, unit)
            if archives:
                yield from map(corpus.relative, archives)
                continue
            for item in job.spec.read_unit(corpus, job.split, unit):
                if isinstance(item, Item):
                    yield from (media.path for media in item.media)
        # Last: the annotation files are those that reading the rows has opened.
        yield from corpus.annotations

    # Several items show one file, so the names are sorted and runs of equal lines become one.
    with (
        tempfile.TemporaryDirectory(prefix="parcel-") as folder,
        work_folder.files.atomic_write(names_file(number)) as path,
        path.open("w", encoding="utf-8", newline="\n") as out,
    ):
        lines = (f"{json.dumps(name)}\n" for name in names())
        for line, _ in itertools.groupby(sorted_lines(lines, str, folder)):
            out.write(line)
            count += 1
    work_folder.files.put(names_receipt(number), json.dumps(count).encode())
    return count


def names_file(number: int) -> str:
    """Returns the file with the names that a group of units is read from, in the work folder."""
    return f"names/{number:05d}"


def names_receipt(number: int) -> str:
    """Returns the receipt of that file, which holds the number of names."""
    return f"names/{number:05d}.json"
