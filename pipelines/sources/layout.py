"""Helpers of the readers of published layouts: finding files, reading rows, building items."""

import bz2
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.benchmarks.row import Benchmark
from pipelines.records.schema import BadInput, Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item, Media

Found = Iterator[Item | Reject]

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


def find(corpus: Corpus, *names: str) -> Path:
    """Returns the first of `names` that exists below the corpus, and notes it as an input.

    Raises:
      FileNotFoundError: if none exists, naming them all.
    """
    if path := look_up(corpus.folder, *names):
        return corpus.annotation(path)
    others = f", and there is no {' or '.join(names[1:])} either" if names[1:] else ""
    raise FileNotFoundError(f"{corpus.folder / names[0]} is missing{others}.")


def look_up(folder: Path, *names: str) -> Path | None:
    """Returns the first of `names` that exists below a folder; "*" stands for any text."""
    for name in names:
        path = below(folder, name)
        if "*" in name:
            path = min(path.parent.glob(path.name), default=path)
        if path.is_file():
            return path
    return None


def below(folder: Path, name: str) -> Path:
    """Returns `folder / name` with each leading "../" resolved, since a bucket does not do that."""
    while name.startswith("../"):
        folder, name = folder.parent, name.removeprefix("../")
    return folder / name


SHARED = (
    "activitynet",
    "coco",
    "docvqa",
    "gqa",
    "msrvtt",
    "openimages",
    "rico",
    "textcaps",
    "textvqa",
    "vatex",
    "visual_genome",
)
"""Folders beside a benchmark's folder that may hold its images; `SourceSpec.folders` names them
among the folders that a source reads."""


def image_folder(corpus: Corpus, name: str, *shared: str) -> Path:
    """Returns the folder of images: in the corpus, or in a shared folder below the data root.

    Args:
      corpus: the benchmark's own folder.
      name: name of the folder of images, for example "train2014".
      shared: folders that several benchmarks share, for example "coco"; some of `SHARED`.
    """
    if not set(shared) <= set(SHARED):
        raise ValueError(f"shared must be of {', '.join(SHARED)}, got {', '.join(shared)}.")
    homes = [corpus.folder, *(corpus.data_root / one for one in shared)]
    places = [home / sub for home in homes for sub in (name, f"images/{name}")]
    return next((place for place in places if place.is_dir()), corpus.folder / name)


def scene_text_folder(corpus: Corpus, split: str) -> Path:
    """Returns the folder of the images that TextVQA and TextCaps share."""
    name = "test_images" if split == "test" else "train_images"
    return image_folder(corpus, name, "textvqa", "textcaps")


def load_list(
    corpus: Corpus, path: Path, key: str = "", *, compact: Callable[[dict], object] | None = None
) -> list:
    """Returns the list in a JSON file, or under `key` in it.

    Args:
      corpus: the corpus, which notes the file.
      path: the file.
      key: key of the list in the file; "" if the file is the list.
      compact: function that replaces every object as it is parsed, innermost first.

    Raises:
      ValueError: if there is no list, naming the file.
    """
    return _typed(corpus, path, key, list, "a list", compact)


def load_dict(corpus: Corpus, path: Path, key: str = "") -> dict:
    """Returns the object in a JSON file, or under `key` in it.

    Raises:
      ValueError: if there is no object, naming the file.
    """
    return _typed(corpus, path, key, dict, "an object")


def _typed(corpus: Corpus, path: Path, key: str, kind: type, what: str, compact=None) -> Any:
    content: Any = corpus.load_json(path, compact)
    if key:
        if not isinstance(content, dict) or key not in content:
            raise ValueError(f"{path} must hold {what} under {key!r}.")
        content = content[key]
    if not isinstance(content, kind):
        under = f" under {key!r}" if key else " of rows"
        raise ValueError(f"{path} must hold {what}{under}, got a {type(content).__name__}.")
    return content


def indexed(path: Path, rows: Iterable[Any], key: str) -> dict[Any, Any]:
    """Returns the rows of a file as a dict, indexed by their values under `key`.

    Raises:
      ValueError: if a row lacks `key`, naming the file.
    """
    found = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or key not in row:
            raise ValueError(f"{path}: row {number} lacks {key!r}.")
        found[row[key]] = row
    return found


def grouped(rows: Iterable[Any], key: str) -> list[list[Any]]:
    """Groups rows by their value under `key`, in order of appearance; rows without it are alone."""
    groups: dict[object, list[Any]] = {}
    for number, row in enumerate(rows):
        shared = row.get(key) if isinstance(row, Mapping) else None
        groups.setdefault(("alone", number) if shared is None else str(shared), []).append(row)
    return list(groups.values())


def json_lines(path: Path) -> Iterator[Callable[[], Mapping]]:
    """Yields, for each line, a function that parses it; the file may be packed with bzip2."""
    with path.open("rb") as file, bz2.open(file) if path.suffix == ".bz2" else file as lines:
        for line in lines:
            if line.strip():
                yield lambda line=line: json.loads(line)


def csv_rows(path: Path, *columns: str) -> Iterator[dict[str, str]]:
    """Yields the rows of a table.

    Raises:
      ValueError: if a column is missing, naming the file.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if missing := set(columns) - set(reader.fieldnames or ()):
            raise ValueError(f"{path} lacks the column {min(missing)!r}.")
        yield from reader


def read_rows(
    corpus: Corpus,
    path: Path,
    name: str,
    rows: Iterable[Any],
    make: Callable[[Any], Item | Iterable[Item | Reject] | None],
) -> Found:
    """Yields the items that `make` returns for each row, or a reject if it fails.

    Args:
      corpus: the rows' corpus.
      path: the file that holds the rows.
      name: prefix of the ids of rejects, for example "docvqa/val".
      rows: the rows.
      make: one row -> its items, or None if the row is not an input; it need not catch the errors
        that a malformed row causes.
    """
    for number, row in enumerate(rows):
        try:
            made = make(row)
            items = [made] if isinstance(made, Item) else list(made or ())
        except BadInput as error:
            yield _reject(corpus, path, f"{name}/row-{number}", str(error))
        except _MALFORMED as error:
            reason = f"malformed row: {type(error).__name__}: {error}"
            yield _reject(corpus, path, f"{name}/row-{number}", reason)
        else:
            yield from items


def _reject(corpus: Corpus, path: Path, identity: str, reason: str) -> Reject:
    return Reject(id=identity, stage="read", reason=reason, source=corpus.relative(path))


def question(
    benchmark: Benchmark,
    split: str,
    media: Media | tuple[Media, ...],
    key: object,
    text: str,
    answers: Sequence[str],
    *,
    targets: Sequence[str] | None = None,
    lang: str = "en",
    image: str = "",
    meta: Mapping[str, object] | None = None,
    **fields: str,
) -> Item:
    """Returns the would-be record of one question, or of one image's captions.

    Args:
      benchmark: the benchmark it belongs to.
      split: name of the split, as it appears in the id.
      media: its image or images.
      key: number or name that distinguishes it from other questions about the same image.
      text: question, sentence or expression; "" for captions.
      answers: accepted answers, as published.
      targets: texts that training may draw; None takes the answers. If there are none, as in a
        test split, the only target is "". Lower-cased if the benchmark's targets are.
      lang: language of the targets.
      image: name of its pixels in the id; "" takes the file's name.
      meta: further values that the metric needs.
      fields: further fields of the prompt.
    """
    media = (media,) if isinstance(media, Media) else media
    image = image or Path(media[0].member or media[0].path).name
    drawn = answers if targets is None else targets
    return Item(
        id=f"{benchmark.name}/{split}/{image}#{key}",
        part=benchmark.name,
        media=media,
        prefix=benchmark.prefix(text, lang=lang, **fields),
        suffixes=tuple(benchmark.target(target) for target in drawn or [""]),
        task=benchmark.name,
        lang=lang,
        answers=tuple(answers),
        meta=dict(meta or {}),
    )


def text_of(row: Mapping, key: str) -> str:
    """Returns the text under `key`.

    Raises:
      BadInput: if it is not a text, or is empty.
    """
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{key} must be a text, got {value!r}"[:120])
    return value


def index_of(row: Mapping, key: str, choices: Sequence[str]) -> int:
    """Returns the index of a choice, which is under `key`.

    Raises:
      BadInput: if it is not the index of a choice.
    """
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(choices):
        raise BadInput(f"{key} must be in 0..{len(choices) - 1}, got {value!r}")
    return value


def texts_of(row: Mapping, key: str) -> list[str]:
    """Returns the texts under `key`; numbers among them become texts.

    Raises:
      BadInput: if it is not a list of texts, or is empty.
    """
    values = row[key]
    if not isinstance(values, list) or not values:
        raise BadInput(f"{key} must be a list of texts, got {values!r}"[:120])
    if any(isinstance(v, bool) or not isinstance(v, str | int | float) for v in values):
        raise BadInput(f"{key} must hold texts only, got {values!r}"[:120])
    return [str(v) for v in values]
