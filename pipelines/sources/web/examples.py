"""Corpora of `tf.train.Example` records: TFRecord files, and folders of TensorFlow Datasets.

    tfrecord  *.tfrecord, *.tfrecord-00000-of-00010, *.tfrec, plain or packed (gzip, zlib,
              bzip2, xz)
    tfds      [{name}/[{config}/]{version}/]features.json, dataset_info.json
              {name}-{split}.tfrecord-00000-of-00010

`features` maps a field to the feature that holds it; a nested one is written "captions/text":

    {image: image/encoded, caption: captions/text, id: image/id}
    {image: image, question: question, answer: answers}
    {image: image, prefix: prefix, suffix: suffix, task: task}    (and mask: COCO run lengths)

A sequence within a sequence (ragged in TensorFlow Datasets) may only be the answers: those of each
of several questions. Features that no field names are in the account of what was passed over.

The split of a file is a word of its name, between dots, dashes and underscores; a file without one
belongs to "train". Pictures are not copied: a record's bytes are found again by offset. Only those
of a packed file are unpacked, once. TensorFlow is not needed.

Source: TensorFlow Datasets, `core/features/feature.proto` and `core/proto/dataset_info.proto`.
"""

import contextlib
import io
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google_crc32c import value as crc32c

from pipelines.records.example import features_of
from pipelines.records.nearest import with_nearest
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput, Omission, Reject, is_of_machine
from pipelines.records.tfrecord import HEADER_SIZE, is_header, read_frames
from pipelines.sources.reading.corpus import Corpus, OmissionCounts, with_partition
from pipelines.sources.reading.item import Item, Media, checked_task, with_licence
from pipelines.sources.reading.licences import licence_fields, stated_licence
from pipelines.sources.reading.omissions import data_files, is_hidden, note_empty, unfollowed
from pipelines.sources.reading.row_files import load_dict
from pipelines.sources.reading.spec import SourceSpec, read_units
from pipelines.sources.reading.unpacking import DAMAGE, unpack
from pipelines.sources.reading.values import answer_of, is_absent, rows_under, without_absent
from pipelines.sources.web.tasks import STAGE, WebImage, web_image_items

SPLITS = ("train", "validation", "val", "test", "dev", "testdev", "restval", "minival")
_FILE = re.compile(r"\.(tfrecord|tfrecords|tfrec)([.-]|$)", re.IGNORECASE)
_MAX_IMAGES = 2
_RAGGED = re.compile(r"/ragged_(flat_values|row_lengths_\d+)$")
"""What TensorFlow Datasets adds to the name of a sequence of sequences."""
_JSON = ("ocr", "objects", "qa", "captions")
"""Fields that hold annotations of web images, as JSON."""

_WORDS = ("caption", "question", "lang", "prefix")
"""Fields that are texts wherever they are read, and never numbers."""

Values = tuple[bytes | int | float, ...]


def _tfrecord_units(corpus: Corpus, split: str) -> Iterator[str]:
    """Yields the names of a split's files below the folder, in order."""
    files = [path for path in corpus.files() if _is_record_file(corpus, path)]
    if not files:
        raise FileNotFoundError(f"{corpus.folder} holds no .tfrecord file.")
    files_of_split = [path for path in files if split_of(path) == split]
    if not files_of_split:
        splits = ", ".join(sorted({split_of(path) for path in files}))
        raise FileNotFoundError(f"{corpus.folder} holds no file of split {split}; it has {splits}.")
    if "image" not in corpus.features:
        _check_image_feature(corpus, files_of_split[0], _first_features(corpus, files_of_split[0]))
    for path in files_of_split:
        yield path.relative_to(corpus.folder).as_posix()


def _first_features(corpus: Corpus, path: Path) -> list[str]:
    """Returns the names of the first record's features."""
    with corpus.annotation(path).open("rb") as file:
        try:
            with _open_records(file) as (frames, _):
                return sorted(next((features_of(data) for _, data in frames), {}))
        except (ValueError, *DAMAGE) as error:
            if is_of_machine(error):
                raise
            raise ValueError(f"{path} is damaged: {_damage_of(error)}.") from None


def _is_record_file(corpus: Corpus, path: Path) -> bool:
    return bool(_FILE.search(path.name)) and not is_hidden(str(path.relative_to(corpus.folder)))


def _tfrecord_omissions(corpus: Corpus, split: str) -> Iterator[Omission]:
    """Yields the files that look like data and are of no split."""
    del split
    names = (
        path.relative_to(corpus.folder).as_posix()
        for path in corpus.files()
        if not _is_record_file(corpus, path)
    )
    yield from data_files(corpus, "tfrecord", names)
    yield from unfollowed(corpus)


def _tfds_omissions(corpus: Corpus, split: str) -> Iterator[Omission]:
    """Yields the files of records that dataset_info.json announces for no split."""
    del split
    folder = _tfds_folder(corpus)
    name, lengths = _tfds_lengths(corpus, folder)
    announced = {
        file for split_name in lengths for file in _tfds_files(folder, name, split_name, lengths)
    }
    for path in corpus.files():
        if _FILE.search(path.name) and path not in announced:
            reason = "not announced in dataset_info.json"
            yield Omission(source=corpus.relative(path), reason=reason)
    yield from unfollowed(corpus)


def _read_tfrecord(corpus: Corpus, name: str) -> Iterator[Item | Reject]:
    """Yields the would-be records of one file."""
    path = corpus.folder / name
    yield from note_empty(corpus, path, _items_of_tfrecord(corpus, path))


def _items_of_tfrecord(corpus: Corpus, path: Path) -> Iterator[Item | Reject]:
    # Opened outside of the `try`: a file that cannot be opened may well be whole.
    with corpus.annotation(path).open("rb") as file:
        try:
            for items in _read_record_file(corpus, path, file, "tfrecord", _plain_text):
                yield from items
        except (ValueError, *DAMAGE) as error:
            if is_of_machine(error):
                raise
            yield _reject_example(corpus, path, "tfrecord", f"damaged file: {_damage_of(error)}")


def _damage_of(error: BaseException) -> str:
    """Returns what is damaged; the words of `read_frames` are its own."""
    return str(error) if isinstance(error, ValueError) else reason_of(error)


def split_of(path: Path) -> str:
    """Returns the split in a file's name, as in "coco-Val2017.tfrecord"; "train" if it has none.

    Raises:
      ValueError: if it has several, naming them.
    """
    words = [word.rstrip("0123456789") for word in re.split(r"[._-]", path.name.lower())]
    splits = list(dict.fromkeys(word for word in words if word in SPLITS))
    if len(splits) > 1:
        raise ValueError(
            f"{path.name} must name one split, got {' and '.join(splits)}; rename the file."
        )
    return splits[0] if splits else "train"


def _tfds_units(corpus: Corpus, split: str) -> Iterator[str]:
    """Yields the names of a split's files below the folder, in order."""
    folder = _tfds_folder(corpus)
    _check_feature_names(corpus, folder)
    name, lengths = _tfds_lengths(corpus, folder)
    if split not in lengths:
        splits = ", ".join(lengths) or "none"
        raise FileNotFoundError(f"{folder} has no split {split}; it has {splits}.")
    for path in _tfds_files(folder, name, split, lengths):
        yield path.relative_to(corpus.folder).as_posix()


def _tfds_files(
    folder: Path, name: str, split: str, lengths: Mapping[str, list[str]]
) -> Iterator[Path]:
    num_shards = len(lengths[split])
    for number in range(num_shards):
        yield folder / f"{name}-{split}.tfrecord-{number:05d}-of-{num_shards:05d}"


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
    info: Any = load_dict(corpus, folder / "dataset_info.json")
    if (form := info.get("fileFormat", "tfrecord")) != "tfrecord":
        raise ValueError(f"{folder} must hold files of format tfrecord, got {form}.")
    splits = info.get("splits") or ()
    try:
        return info["name"], {
            split_info["name"]: split_info.get("shardLengths") or [] for split_info in splits
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder / 'dataset_info.json'} must name the data set and its splits: "
            f"{reason_of(error, info)}."
        ) from None


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
            for items in _read_record_file(
                corpus, path, file, "tfds", _class_names(corpus, path.parent)
            ):
                count += 1
                yield from items
        except (ValueError, *DAMAGE) as error:
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
    depths = dict(_feature_depths("", corpus.load_json(folder / "features.json")))
    features = sorted(depths)
    _check_image_feature(corpus, folder, features)
    if unknown := [field for field, name in corpus.features.items() if name not in features]:
        names = with_nearest((corpus.features[field] for field in unknown), features)
        raise ValueError(
            f"{', '.join(f'features.{field}' for field in unknown)} must be one of "
            f"{', '.join(features)} of {folder}, got {names}."
        )
    for field, name in corpus.features.items():
        if depths[name] > (2 if field == "answer" else 1):
            raise ValueError(
                f"features.{field} must be no sequence of sequences, but for answer, which may be "
                f"one of several questions; got {name!r} of {folder}."
            )


def _check_image_feature(corpus: Corpus, path: Path, feature_names: list[str]) -> None:
    if "image" not in corpus.features:
        raise ValueError(
            f"features must name the feature of the image at least, as {{image: image/encoded, "
            f"caption: caption}}, got {dict(corpus.features)}; {path} has "
            f"{', '.join(feature_names)}."
        )


def _feature_depths(prefix: str, feature: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yields the flat name of each feature in features.json, and how many sequences it is in."""
    if "sequence" in feature:
        yield from _feature_depths(prefix, feature["sequence"]["feature"], depth + 1)
    elif "featuresDict" in feature:
        for name, inner in feature["featuresDict"]["features"].items():
            yield from _feature_depths(f"{prefix}/{name}" if prefix else name, inner, depth)
    else:
        yield prefix, depth


def _plain_text(name: str, value: object) -> str:
    # A list of floats has 32 bits of each.
    return answer_of(np.float32(value) if isinstance(value, float) else value, name)


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
            names_of[name] = corpus.read_text(path).splitlines() if has_names else []
        names = names_of[name]
        return names[value] if 0 <= value < len(names) else str(value)

    return text


def _read_record_file(
    corpus: Corpus, path: Path, file: BinaryIO, kind: str, text: Callable[[str, object], str]
) -> Iterator[list[Item | Reject]]:
    """Yields the items of each record of an open file.

    Raises:
      ValueError: at the first damaged record.
    """
    # In a plain file a picture is found again by its offset in the record, so nothing is copied; in
    # a packed one there are no such offsets, and the picture is unpacked.
    seen: Counter[str] = Counter()
    counts, fields = corpus.omission_counts(path), {f: n for n, f in corpus.features.items()}
    counts.clear()  # A part of a split is read twice.
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
                features, stated = features_of(data), with_partition({}, corpus.relative(path))
                found = {n: text(n, v) for n in stated.keys() & features for v in features[n][:1]}
                for name, value in with_partition(found, corpus.relative(path)).items():
                    features[name] = features.get(name) or (value.encode(),)
                seen.update({_RAGGED.sub("", name) for name in features})
                texts = {
                    field: text(name, value)
                    for field, name in licence_fields(corpus.features).items()
                    for value in features.get(name, ())[:1]
                    if not is_absent(value)
                }
                items = _example_items(corpus, path, kind, number, features, place, text)
                yield [with_licence(item, stated_licence(texts)) for item in items]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                yield [_reject_example(corpus, path, kind, reason_of(error), number)]
    for name, num in seen.items():
        if name not in fields:
            counts.add(f"feature {name}, which no field of features names", num=num)
    for name, field in fields.items():
        if seen and name not in seen:
            hint = with_nearest((name,), seen)
            counts.add(f"feature {hint}, which features.{field} names: no record has it")


@contextlib.contextmanager
def _open_records(file: BinaryIO) -> Iterator[tuple[Iterator[tuple[int, bytes]], bool]]:
    """Yields the records of an open file, and whether it is packed."""
    head = file.read(HEADER_SIZE)
    file.seek(0)
    # A plain record's length may have the bytes with which packed files begin; its checksum tells.
    if is_header(head):
        yield read_frames(file), False
        return
    # Texts may begin as zlib's files do; records may not, so it is here that they are unpacked.
    is_zlib = len(head) > 1 and head[0] & 15 == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0
    zlib_file = io.BufferedReader(_ZlibFile(file)) if is_zlib else None
    with contextlib.nullcontext(zlib_file) if zlib_file else unpack(file) as plain:
        yield read_frames(plain), plain is not file


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
        if f"{name}/ragged_flat_values" in features:
            raise BadInput(f"{name} is a sequence of sequences, which only answers may be")
        # NaN alone is a missing feature; one among numbers is a hole, which no text fills.
        found = features.get(name, ())
        if all(map(is_absent, found)):
            return ()
        texts = tuple(text(name, value) for value in found)
        # A number is an answer, and no caption or question unless it stands for a class.
        for value, written in zip(found, texts, strict=True):
            is_number = not isinstance(value, bytes) and written == _plain_text("", value)
            if field in _WORDS and is_number:
                raise BadInput(f"{name} must be a text, got {written}")
        return texts

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
    answers = _ragged_answers(corpus.features.get("answer", ""), features, text)
    counts = corpus.omission_counts(path)
    yield from _as_web_image(
        corpus, f"{kind}/{key}", next(iter(media)), lang, values, answers, counts
    )


def _ragged_answers(
    name: str, features: Mapping[str, Values], text: Callable[[str, object], str]
) -> list[list[str]] | None:
    """Returns the answers to each question, if they are a sequence of sequences; else None."""
    flat = features.get(f"{name}/ragged_flat_values")
    if flat is None:
        return None
    lengths = features.get(f"{name}/ragged_row_lengths_0", ())
    if f"{name}/ragged_row_lengths_1" in features or sum(map(int, lengths)) != len(flat):
        raise BadInput(f"{name} must list the answers of each question, as a sequence of sequences")
    # Lengths 2 and 1: the answers a b c are a b to the first question, and c to the second.
    texts = iter([text(name, value) for value in flat])
    return [list(itertools.islice(texts, int(length))) for length in lengths]


def _as_web_image(
    corpus: Corpus,
    identity: str,
    media: Media,
    lang: str,
    values: Callable[[str], tuple[str, ...]],
    ragged_answers: list[list[str]] | None,
    counts: OmissionCounts,
) -> Iterator[Item | Reject]:
    """Yields the items of a web image; several captions become suffixes of one item."""
    metadata: dict[str, Any] = {"LANGUAGE": lang}
    for field in _JSON:
        if len(texts := values(field)) > 1:
            raise BadInput(f"{corpus.features[field]} holds {len(texts)} texts, one is read")
        if texts:
            metadata[field] = without_absent(json.loads(texts[0]))
    questions = values("question")
    answers = () if ragged_answers is not None else values("answer")
    # As many answers as questions are pairs. One question may have several people's answers. No
    # other numbers say what belongs together; texts without any question or any answer are of no
    # pair.
    if questions and answers and len(questions) not in (1, len(answers)):
        raise BadInput(
            f"{corpus.features['question']} holds {len(questions)} texts and "
            f"{corpus.features['answer']} {len(answers)}; accepted are as many answers as "
            f"questions, or one question and several people's answers"
        )
    if ragged_answers is not None and len(questions) != len(ragged_answers):
        raise BadInput(f"{len(questions)} questions, answers to {len(ragged_answers)}")
    if len(questions) == 1 and ragged_answers is None:
        ragged_answers = [list(answers)] if answers else []
    answered = zip(questions, answers if ragged_answers is None else ragged_answers, strict=False)
    pairs = [{"question": q, "answer": a, "lang": lang} for q, a in answered]
    if pairs:
        metadata["qa"] = [*rows_under(metadata, "qa"), *pairs]
    captions = tuple(caption for caption in values("caption") if caption.strip())
    sample = WebImage(id=identity, media=media, captions=captions, metadata=metadata)
    for reason in sample.unread_fields(()):
        counts.add(reason, identity)
    yield from web_image_items(sample, per_task=corpus.per_task, tasks=corpus.tasks)


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
        has_clips=False,
        units=units,
        list_unit=list_unit,
        unit_files=unit_files,
        omissions=omissions,
    )
    for name, units, list_unit, unit_files, omissions in (
        (
            "tfrecord",
            _tfrecord_units,
            _read_tfrecord,
            lambda corpus, unit: [corpus.folder / unit],
            _tfrecord_omissions,
        ),
        ("tfds", _tfds_units, _read_tfds, _tfds_own_files, _tfds_omissions),
    )
)
