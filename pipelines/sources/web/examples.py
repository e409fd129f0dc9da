"""Corpora of `tf.train.Example` records: TFRecord files, and folders of TensorFlow Datasets.

    tfrecord  *.tfrecord, *.tfrecord-00000-of-00010, *.tfrec, plain or packed with gzip or zlib
    tfds      [{name}/[{config}/]{version}/]features.json, dataset_info.json
              {name}-{split}.tfrecord-00000-of-00010

`features` maps a field to the feature that holds it; a nested one is written "captions/text":

    {image: image/encoded, caption: captions/text, id: image/id}
    {image: image, question: question, answer: answers}
    {image: image, prefix: prefix, suffix: suffix, task: task}    (and mask: COCO run lengths)

The split of a file is a word of its name, between dots, dashes and underscores; a file without one
belongs to "train". Pictures are not copied: a record's bytes are found again by offset. Only those
of a packed file are unpacked, once. TensorFlow is not needed.

Source: TensorFlow Datasets, `core/features/feature.proto` and `core/proto/dataset_info.proto`.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from google_crc32c import value as crc32c

from pipelines.records.example import features_of
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput, Reject, is_of_machine
from pipelines.records.tfrecord import HEADER_SIZE, is_header, read_frames
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item, Media, checked_task
from pipelines.sources.spec import SourceSpec, read_units
from pipelines.sources.web.tasks import STAGE, WebImage, web_image_items

SPLITS = ("train", "validation", "val", "test", "dev", "testdev", "restval", "minival")
_FILE = re.compile(r"\.(tfrecord|tfrecords|tfrec)([.-]|$)")
_GZIP = b"\x1f\x8b"
_MAX_IMAGES = 2
_JSON = ("ocr", "objects", "qa", "captions")
"""Fields that hold annotations of web images, as JSON."""

Values = tuple[bytes | int | float, ...]

_DAMAGE = (ValueError, OSError, EOFError, zlib.error)
"""Errors of reading a damaged file, packed or not."""


def _tfrecord_units(corpus: Corpus, split: str) -> Iterator[str]:
    """Yields the names of a split's files below the folder, in order."""
    files = [path for path in corpus.files() if _FILE.search(path.name)]
    if not files:
        raise FileNotFoundError(f"{corpus.folder} holds no .tfrecord file.")
    files_of_split = [path for path in files if split_of(path) == split]
    if not files_of_split:
        splits = ", ".join(sorted({split_of(path) for path in files}))
        raise FileNotFoundError(f"{corpus.folder} holds no file of split {split}; it has {splits}.")
    if "image" not in corpus.features:
        with (
            corpus.annotation(files_of_split[0]).open("rb") as file,
            _open_records(file) as (frames, _),
        ):
            first = next((features_of(data) for _, data in frames), {})
        _check_image_feature(corpus, files_of_split[0], sorted(first))
    for path in files_of_split:
        yield path.relative_to(corpus.folder).as_posix()


def _read_tfrecord(corpus: Corpus, name: str) -> Iterator[Item | Reject]:
    """Yields the would-be records of one file."""
    path = corpus.folder / name
    # Opened outside of the `try`: a file that cannot be opened may well be whole.
    with corpus.annotation(path).open("rb") as file:
        try:
            for items in _read_file(corpus, path, file, "tfrecord", _plain_text):
                yield from items
        except _DAMAGE as error:
            if is_of_machine(error):
                raise
            yield _reject_example(corpus, path, "tfrecord", f"damaged file: {_damage_of(error)}")


def _damage_of(error: BaseException) -> str:
    """Returns what is damaged; the words of `read_frames` are its own."""
    return str(error) if isinstance(error, ValueError) else reason_of(error)


def split_of(path: Path) -> str:
    """Returns the split in a file's name; "train" if it has none."""
    words = re.split(r"[._-]", path.name)
    return next((word for word in words if word in SPLITS), "train")


def _tfds_units(corpus: Corpus, split: str) -> Iterator[str]:
    """Yields the names of a split's files below the folder, in order."""
    folder = _tfds_folder(corpus)
    _check_feature_names(corpus, folder)
    name, lengths = _tfds_lengths(corpus, folder)
    if split not in lengths:
        splits = ", ".join(lengths) or "none"
        raise FileNotFoundError(f"{folder} has no split {split}; it has {splits}.")
    num_shards = len(lengths[split])
    for number in range(num_shards):
        path = folder / f"{name}-{split}.tfrecord-{number:05d}-of-{num_shards:05d}"
        yield path.relative_to(corpus.folder).as_posix()


def _tfds_own_files(corpus: Corpus, name: str) -> list[Path]:
    path = corpus.folder / name
    metadata_files = [path.parent / "dataset_info.json", path.parent / "features.json"]
    labels = (_class_names_file(path.parent, feature) for feature in corpus.features.values())
    return [path, *metadata_files, *filter(corpus.has, labels)]


def _class_names_file(folder: Path, feature: str) -> Path:
    """Returns the path of the names of a feature's classes; the file exists if there are any."""
    return folder / f"{feature.replace('/', '-')}.labels.txt"


def _tfds_lengths(corpus: Corpus, folder: Path) -> tuple[str, dict[str, list[str]]]:
    """Returns the data set's name and, for each split, the numbers of records in its files."""
    info: Any = corpus.load_json(folder / "dataset_info.json")
    if (form := info.get("fileFormat", "tfrecord")) != "tfrecord":
        raise ValueError(f"{folder} must hold files of format tfrecord, got {form}.")
    splits = info.get("splits") or ()
    return info["name"], {
        split_info["name"]: split_info.get("shardLengths") or [] for split_info in splits
    }


def _read_tfds(corpus: Corpus, name: str) -> Iterator[Item | Reject]:
    """Yields the would-be records of one file; a wrong number of records adds a reject."""
    path = corpus.folder / name
    corpus.annotation(path.parent / "features.json")
    data_set, lengths = _tfds_lengths(corpus, path.parent)
    # "name-train.tfrecord-00003-of-00010" is file 3 of split "train".
    split, _, number = path.name.removeprefix(f"{data_set}-").partition(".tfrecord-")
    length = lengths[split][int(number.partition("-")[0])]
    count, damage = 0, ""
    with corpus.annotation(path).open("rb") as file:
        try:
            for items in _read_file(corpus, path, file, "tfds", _class_names(corpus, path.parent)):
                count += 1
                yield from items
        except _DAMAGE as error:
            if is_of_machine(error):
                raise
            damage = f", then damage: {_damage_of(error)}"
    # Damage, or another number of records than announced, is one reject for the whole file.
    if count != int(length) or damage:
        reason = f"{count} records, dataset_info.json says {length}{damage}"
        yield _reject_example(corpus, path, "tfds", reason)


def _tfds_folder(corpus: Corpus) -> Path:
    folders = [path.parent for path in corpus.files() if path.name == "features.json"]
    if len(folders) != 1:
        folder_names = ", ".join(corpus.relative(folder) for folder in folders) or "none"
        raise FileNotFoundError(
            f"{corpus.folder} must hold one folder with features.json, got {folder_names}; give "
            f"its path."
        )
    return folders[0]


def _check_feature_names(corpus: Corpus, folder: Path) -> None:
    """Refuses `features` that name none of the folder's features."""
    features = sorted(_feature_names("", corpus.load_json(folder / "features.json")))
    _check_image_feature(corpus, folder, features)
    for field, name in corpus.features.items():
        if name not in features:
            raise ValueError(
                f"features.{field} must be one of {', '.join(features)} of {folder}, got {name!r}."
            )


def _check_image_feature(corpus: Corpus, path: Path, feature_names: list[str]) -> None:
    if "image" not in corpus.features:
        raise ValueError(
            f"features must name the feature of the image at least, as {{image: image/encoded, "
            f"caption: caption}}, got {dict(corpus.features)}; {path} has "
            f"{', '.join(feature_names)}."
        )


def _feature_names(prefix: str, feature: Any) -> Iterator[str]:
    """Yields the flat names of the features in features.json, as an Example has them."""
    if "sequence" in feature:
        yield from _feature_names(prefix, feature["sequence"]["feature"])
    elif "featuresDict" in feature:
        for name, inner in feature["featuresDict"]["features"].items():
            yield from _feature_names(f"{prefix}/{name}" if prefix else name, inner)
    else:
        yield prefix


def _plain_text(name: str, value: object) -> str:
    del name
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _class_names(corpus: Corpus, folder: Path) -> Callable[[str, object], str]:
    """Returns a function (feature, value) -> text, which names classes instead of their numbers."""
    names_of: dict[str, list[str]] = {}

    def text(name: str, value: object) -> str:
        # A class is stored as its number; texts and other numbers are taken as they are.
        if not isinstance(value, int):
            return _plain_text(name, value)
        # Names are read when a feature of that name first comes, and kept.
        if name not in names_of:
            path = _class_names_file(folder, name)
            has_names = path.is_file()
            names_of[name] = (
                corpus.annotation(path).read_text("utf-8").splitlines() if has_names else []
            )
        names = names_of[name]
        return names[value] if 0 <= value < len(names) else str(value)

    return text


def _read_file(
    corpus: Corpus, path: Path, file: BinaryIO, kind: str, text: Callable[[str, object], str]
) -> Iterator[list[Item | Reject]]:
    """Yields the items of each record of an open file.

    Raises:
      ValueError: at the first damaged record.
    """
    # In a plain file a picture is found again by its offset in the record, so nothing is copied; in
    # a packed one there are no such offsets, and the picture is unpacked.
    with _open_records(file) as (frames, packed):
        for number, (offset, data) in enumerate(frames):

            def place(value: bytes, data=data, offset=offset) -> dict[str, Any]:
                if packed:
                    return corpus.unpacked.append(value)
                place_fields: dict[str, Any] = {
                    "offset": offset + data.find(value),
                    "size": len(value),
                }
                return place_fields if corpus.is_local else place_fields | {"crc32c": crc32c(value)}

            try:
                features = features_of(data)
                yield list(_example_items(corpus, path, kind, number, features, place, text))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                yield [_reject_example(corpus, path, kind, reason_of(error), number)]


@contextlib.contextmanager
def _open_records(file: BinaryIO) -> Iterator[tuple[Iterator[tuple[int, bytes]], bool]]:
    """Yields the records of an open file, and whether it is packed."""
    head = file.read(HEADER_SIZE)
    file.seek(0)
    # A plain record's length may have the bytes with which packed files begin; its checksum tells.
    if is_header(head):
        unpack = None
    elif head.startswith(_GZIP):
        unpack = gzip.GzipFile(fileobj=file)
    elif len(head) > 1 and head[0] & 15 == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0:
        unpack = io.BufferedReader(_ZlibFile(file))
    else:
        unpack = None
    with unpack or contextlib.nullcontext(file) as plain:
        yield read_frames(plain), unpack is not None  # type: ignore[arg-type]


class _ZlibFile(io.RawIOBase):
    """Reads a file that is packed with zlib, which TensorFlow calls ZLIB."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._unpacker = file, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail or self._file.read(io.DEFAULT_BUFFER_SIZE)
            if data := self._unpacker.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)
            if not packed and not self._unpacker.eof:
                raise EOFError("the file ends before its packed data do")
        return 0


def _example_items(
    corpus: Corpus,
    path: Path,
    kind: str,
    number: int,
    features: Mapping[str, Values],
    place: Callable[[bytes], dict[str, Any]],
    text: Callable[[str, object], str],
) -> Iterator[Item | Reject]:
    def values(field: str) -> tuple[str, ...]:
        name = corpus.features.get(field, "")
        return tuple(text(name, value) for value in features.get(name, ()))

    def text_of(field: str, default: str = "") -> str:
        texts = values(field)
        if len(texts) > 1:
            raise BadInput(f"{corpus.features[field]} holds {len(texts)} texts, one is read")
        return texts[0] if texts else default

    # The corpus's own id, or else file and number: both stay the same when files are added.
    key = text_of("id") or f"{path.relative_to(corpus.folder).as_posix()}/{number:09d}"
    images = [v for v in features.get(corpus.features["image"], ()) if isinstance(v, bytes) and v]
    if not 1 <= len(images) <= _MAX_IMAGES:
        raise BadInput(f"{corpus.features['image']} holds {len(images)} pictures, 1 or 2 are read")
    source = corpus.relative(path)
    # A record with two pictures has members 000000012.0 and 000000012.1, one picture is 000000012.
    media = tuple(
        Media(path=source, member=f"{number:09d}" + f".{i}" * (len(images) > 1), **place(image))
        for i, image in enumerate(images)
    )
    # With a suffix the record is complete; otherwise its annotations make up to seven kinds.
    lang = text_of("lang", "en")
    if "suffix" in corpus.features:
        task = checked_task(text_of("task", kind))
        yield Item(
            id=f"{kind}/{key}",
            part=task,
            media=media,
            prefix=text_of("prefix"),
            suffixes=values("suffix") or ("",),
            task=task,
            lang=lang,
            masks=values("mask"),
            answers=values("answer") or values("suffix"),
        )
        return
    if len(media) > 1:
        raise BadInput(f"a record with {len(media)} pictures needs the features prefix and suffix")
    yield from _as_web_image(corpus, f"{kind}/{key}", next(iter(media)), lang, values)


def _as_web_image(
    corpus: Corpus,
    identity: str,
    media: Media,
    lang: str,
    values: Callable[[str], tuple[str, ...]],
) -> Iterator[Item | Reject]:
    """Yields the items of a web image; several captions become suffixes of one item."""
    metadata: dict[str, Any] = {"LANGUAGE": lang}
    for field in _JSON:
        if len(texts := values(field)) > 1:
            raise BadInput(f"{corpus.features[field]} holds {len(texts)} texts, one is read")
        if texts:
            metadata[field] = json.loads(texts[0])
    questions, answers = values("question"), values("answer")
    # As many answers as questions are pairs. One question may have several people's answers: the
    # item is made of the first, and gets all of them below. No other numbers say what belongs
    # together; texts without any question or any answer are of no pair.
    if questions and answers and len(questions) not in (1, len(answers)):
        raise BadInput(
            f"{corpus.features['question']} holds {len(questions)} texts and "
            f"{corpus.features['answer']} {len(answers)}; accepted are as many answers as "
            f"questions, or one question and several people's answers"
        )
    pairs = [
        {"question": q, "answer": a, "lang": lang} for q, a in zip(questions, answers, strict=False)
    ]
    if pairs:
        metadata["qa"] = [*metadata.get("qa", ()), *pairs]
    captions = [" ".join(caption.split()) for caption in values("caption") if caption.strip()]
    sample = WebImage(
        id=identity, media=media, text=captions[0] if captions else "", metadata=metadata
    )
    for item in web_image_items(sample, per_task=corpus.per_task, tasks=corpus.tasks):
        # Items are made of one caption and one answer; here they get the others as further targets.
        if isinstance(item, Item) and item.task == "caption" and item.lang == lang and captions:
            item = dataclasses.replace(item, suffixes=tuple(captions))
        if isinstance(item, Item) and item.task == "vqa" and len(questions) == 1 and answers:
            item = dataclasses.replace(item, suffixes=answers, answers=answers)
        yield item


def _reject_example(
    corpus: Corpus, path: Path, kind: str, reason: str, number: int | None = None
) -> Reject:
    identity = f"{kind}/{path.relative_to(corpus.folder).as_posix()}"
    if number is not None:
        identity += f"/{number:09d}"
    return Reject(id=identity, stage=STAGE, reason=reason, source=corpus.relative(path))


SOURCES = tuple(
    SourceSpec(
        name=name,
        folder=name,
        splits=SPLITS,
        read=read_units(units, list_unit),
        antialias=True,
        antialias_eval=True,
        units=units,
        list_unit=list_unit,
        unit_files=unit_files,
    )
    for name, units, list_unit, unit_files in (
        ("tfrecord", _tfrecord_units, _read_tfrecord, lambda corpus, unit: [corpus.folder / unit]),
        ("tfds", _tfds_units, _read_tfds, _tfds_own_files),
    )
)
