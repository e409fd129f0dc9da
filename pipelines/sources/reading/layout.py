"""Helpers of the readers of published layouts: finding files and folders, building items."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.benchmarks.row import Benchmark
from pipelines.records.schema import BadInput
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.values import answer_of, text_of


def find_annotation(corpus: Corpus, *names: str) -> Path:
    """Returns the first of `names` that exists below the corpus, and notes it as an input.

    Raises:
      FileNotFoundError: if none exists, naming them all.
    """
    if path := find_file(corpus.folder, *names):
        return corpus.annotation(path)
    alternatives = f", and there is no {' or '.join(names[1:])} either" if names[1:] else ""
    raise FileNotFoundError(f"{corpus.folder / names[0]} is missing{alternatives}.")


def find_file(folder: Path, *names: str) -> Path | None:
    """Returns the first of `names` that exists below a folder; "*" stands for any text."""
    for name in names:
        path = resolve_parents(folder, name)
        if "*" in name:
            path = min(path.parent.glob(path.name), default=path)
        if path.is_file():
            return path
    return None


def resolve_parents(folder: Path, name: str) -> Path:
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
    # For "combined" and "rico", in this order; the first that exists counts:
    #
    #     screen2words/combined  screen2words/images/combined  rico/combined  rico/images/combined
    homes = [corpus.folder, *(corpus.data_root / shared_folder for shared_folder in shared)]
    places = [home / sub for home in homes for sub in (name, f"images/{name}")]
    return next((place for place in places if place.is_dir()), corpus.folder / name)


def scene_text_folder(corpus: Corpus, split: str) -> Path:
    """Returns the folder of the images that TextVQA and TextCaps share."""
    name = "test_images" if split == "test" else "train_images"
    return image_folder(corpus, name, "textvqa", "textcaps")


def question_item(
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
    # A test split publishes no answers. Its records have one empty suffix, as every record has one.
    target_texts = answers if targets is None else targets
    return Item(
        id=f"{benchmark.name}/{split}/{image}#{key}",
        part=benchmark.name,
        media=media,
        prefix=benchmark.prefix(text, lang=lang, **fields),
        suffixes=tuple(benchmark.target(target) for target in target_texts or [""]),
        task=benchmark.name,
        lang=lang,
        answers=tuple(answers),
        meta=dict(meta or {}),
        fields={"text": text, "lang": lang, **fields},
    )


def text_under(row: Mapping, key: str) -> str:
    """Returns the text under `key`.

    Raises:
      BadInput: if it is not a text, or is empty.
    """
    value = text_of(row[key], key)
    if not value.strip():
        raise BadInput(f"{key} must be a text, got {value!r}"[:120])
    return value


def choice_under(row: Mapping, key: str, choices: Sequence[str]) -> int:
    """Returns the index of a choice, which is under `key`.

    Raises:
      BadInput: if it is not the index of a choice, or that choice is empty.
    """
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(choices):
        raise BadInput(f"{key} must be in 0..{len(choices) - 1}, got {value!r}")
    if not choices[value].strip():
        raise BadInput(f"{key} must be that of a choice with a text, got {value}, which is empty")
    return value


def texts_under(row: Mapping, key: str) -> list[str]:
    """Returns the texts under `key`; numbers among them become texts.

    Raises:
      BadInput: if it is not a list of texts, or is empty.
    """
    values = row[key]
    if not isinstance(values, list) or not values:
        raise BadInput(f"{key} must be a list of texts, got {values!r}"[:120])
    return [answer_of(value, key) for value in values]
