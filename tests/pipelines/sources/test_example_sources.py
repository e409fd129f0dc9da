"""Foreign `tf.train.Example` corpora: TFRecord files with a feature map, and TFDS folders."""

import gzip
import json
from pathlib import Path

import pytest

from infra.store.disk import Disk
from pipelines.prepare.run import PrepareConfig, prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.tfrecord import write_shard
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.registry import source_spec
from tests.pipelines.sources.writing import put_json, put_text

MAP = {"image": "image/encoded", "caption": "image/caption", "id": "image/id"}
tensorflow = pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")


def example(**features) -> bytes:
    """Serialized by TensorFlow, as others write them."""
    train = tensorflow.train

    def feature(values):
        values = values if isinstance(values, list) else [values]
        if isinstance(values[0], int):
            return train.Feature(int64_list=train.Int64List(value=values))
        values = [v.encode() if isinstance(v, str) else v for v in values]
        return train.Feature(bytes_list=train.BytesList(value=values))

    named = {name.replace("__", "/"): feature(value) for name, value in features.items()}
    return train.Example(features=train.Features(feature=named)).SerializeToString()


def put_records(path: Path, *records: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_shard(path, records)
    path.with_suffix(".idx").unlink()
    return path


def read(root: Path, name: str, split: str = "train", features=MAP, **more):
    with (root / "unpacked").open("wb") as unpacked:
        corpus = Corpus(root, name, UnpackedMedia(unpacked, "unpacked"), features=features, **more)
        found = list(source_spec(name).read_splits(corpus, split))
    return [i for i in found if isinstance(i, Item)], [i for i in found if not isinstance(i, Item)]


def pixels(root: Path, items: list[Item]) -> list[bytes]:
    reader = MediaReader(root, Disk(root))
    return [reader.read(media) for item in items for media in item.media]


def test_a_sequence_example_is_none(tmp_path, encoded):
    plain = example(image__encoded=encoded(seed=1), image__caption="Noise")
    lists = tensorflow.train.FeatureLists(
        feature_list={"boxes": tensorflow.train.FeatureList(feature=[tensorflow.train.Feature()])}
    )
    sequence = tensorflow.train.SequenceExample.FromString(plain)
    sequence.feature_lists.CopyFrom(lists)
    path = tmp_path / "tfrecord/train.tfrecord"
    put_records(path, plain, sequence.SerializeToString())
    items, (reject,) = read(
        tmp_path, "tfrecord", features={k: MAP[k] for k in ("image", "caption")}
    )
    assert len(items) == 1
    assert "no tf.train.Example: it has the fields 1 and 2" in reject.reason


def test_bytes_are_found_in_the_record(tmp_path, encoded):
    records = [
        example(image__encoded=encoded(seed=n), image__caption=f"Noise {n}", image__id=f"a{n}")
        for n in range(3)
    ]
    put_records(tmp_path / "tfrecord/x-00000-of-00001.tfrecord", *records)
    items, rejects = read(tmp_path, "tfrecord")
    assert [(i.id, i.prefix, i.suffixes) for i in items] == [
        (f"tfrecord/a{n}#caption.en", "caption en", (f"Noise {n}",)) for n in range(3)
    ]
    assert pixels(tmp_path, items) == [encoded(seed=n) for n in range(3)]
    assert not rejects
    assert (tmp_path / "unpacked").stat().st_size == 0


def test_packed_files_are_unpacked_once(tmp_path, encoded):
    path = put_records(
        tmp_path / "tfrecord/x.tfrecord", example(image__encoded=encoded(), image__caption="Packed")
    )
    path.with_name("x.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    ((item,), _) = read(tmp_path, "tfrecord")
    assert item.id == "tfrecord/x.tfrecord.gz/000000000#caption.en"
    assert pixels(tmp_path, [item]) == [encoded()]


def test_splits_are_words_of_names(tmp_path, encoded):
    for name in ("a-train.tfrecord", "a-val.tfrecord-00000-of-00001", "rest.tfrec"):
        record = example(image__encoded=encoded(), image__caption=name)
        put_records(tmp_path / "tfrecord" / name, record)
    assert [i.suffixes[0] for i in read(tmp_path, "tfrecord")[0]] == [
        "a-train.tfrecord",
        "rest.tfrec",
    ]
    assert len(read(tmp_path, "tfrecord", "val")[0]) == 1
    with pytest.raises(FileNotFoundError, match=r"split test; .*train, val"):
        read(tmp_path, "tfrecord", "test")


@pytest.mark.parametrize("name", ["tfrecord", "tfds"])
def test_files_are_listed_apart(tmp_path, encoded, name):
    put_tfds(tmp_path, encoded)
    for number in range(2):
        record = example(image=encoded(seed=number), label=number)
        put_records(tmp_path / f"tfrecord/x-{number}.tfrecord", record)
    spec, features = source_spec(name), {"image": "image", "caption": "label"}
    corpus = Corpus(tmp_path, name, UnpackedMedia(), features=features)
    units = spec.units_of(corpus, "train")
    assert len(units) == 2
    whole = list(spec.read_splits(corpus, "train"))
    assert [one for unit in units for one in spec.read_unit(corpus, "train", unit)] == whole
    told = {corpus.relative(file) for unit in units for file in spec.files_of_unit(corpus, unit)}
    assert corpus.annotations <= told
    assert spec.units_of(corpus, "train[:50%]") == [""]


def test_questions_with_several_answers(tmp_path, encoded):
    record = example(image=encoded(), question="What?", answers=["a dog", "dog"])
    put_records(tmp_path / "tfrecord/x.tfrecord", record)
    features = {"image": "image", "question": "question", "answer": "answers"}
    items, _ = read(tmp_path, "tfrecord", features=features)
    told = {i.task: (i.prefix, i.suffixes) for i in items}
    assert told == {
        "vqa": ("answer en What?", ("a dog", "dog")),
        "question": ("question en a dog", ("What?",)),
    }
    only, _ = read(tmp_path, "tfrecord", features=features, tasks=["question"])
    assert [i.task for i in only] == ["question"]


def test_prefix_and_suffix_are_taken_as_they_are(tmp_path, encoded):
    record = example(
        image=[encoded(), encoded(seed=1)], prefix="answer en Same?", suffix="no", task="pairs"
    )
    put_records(tmp_path / "tfrecord/x.tfrecord", record)
    names = ("image", "prefix", "suffix", "task")
    ((item,), _) = read(tmp_path, "tfrecord", features={name: name for name in names})
    assert (item.part, item.prefix, item.suffixes) == ("pairs", "answer en Same?", ("no",))
    assert pixels(tmp_path, [item]) == [encoded(), encoded(seed=1)]


def test_odd_records_are_rejects(tmp_path, encoded):
    records = [
        example(image__caption="no picture"),
        b"no example\xff",
        example(image__encoded=encoded()),
        example(image__encoded=encoded(), image__caption="Ok"),
    ]
    path = put_records(tmp_path / "tfrecord/x.tfrecord", *records)
    items, rejects = read(tmp_path, "tfrecord")
    assert [i.suffixes for i in items] == [("Ok",)]
    reasons = [r.reason for r in rejects]
    assert reasons[0] == "image/encoded holds 0 pictures, 1 or 2 are read"
    assert reasons[1].startswith("record is no tf.train.Example")
    assert reasons[2] == "no caption or annotation"
    assert len({r.id for r in rejects}) == 3
    path.write_bytes(path.read_bytes()[:-21])
    items, rejects = read(tmp_path, "tfrecord")
    assert not items
    assert "is damaged or cut off" in rejects[-1].reason


def test_a_map_is_asked_for_with_the_names_there_are(tmp_path, encoded):
    put_records(tmp_path / "tfrecord/x.tfrecord", example(img=encoded(), text="?"))
    with pytest.raises(ValueError, match=r"features must name .*x\.tfrecord has img, text\."):
        read(tmp_path, "tfrecord", features={})
    with pytest.raises(ValueError, match=r"features .*image, .*got picture"):
        read(tmp_path, "tfrecord", features={"picture": "img"})


def test_a_damaged_file_is_named_before_a_map_is_asked_for(tmp_path, encoded):
    path = put_records(tmp_path / "tfrecord/x.tfrecord", example(img=encoded(), text="?"))
    path.write_bytes(path.read_bytes()[:-21])
    with pytest.raises(ValueError, match=r"x\.tfrecord is damaged: record 0 bytes in is damaged"):
        read(tmp_path, "tfrecord", features={})


def put_tfds(root: Path, encoded, *, lengths=("1", "2")) -> Path:
    folder = root / "tfds/pets/1.0.0"
    text = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}
    nested = {"featuresDict": {"features": {"text": text, "id": {"tensor": {"dtype": "int64"}}}}}
    features = {
        "image": {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}}},
        "captions": {"sequence": {"feature": nested}},
        "label": {"classLabel": {"numClasses": "2"}},
    }
    put_json(folder / "features.json", {"featuresDict": {"features": features}})
    split = {
        "name": "train",
        "shardLengths": list(lengths),
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }
    info = {"name": "pets", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    put_json(folder / "dataset_info.json", info)
    put_text(folder / "label.labels.txt", "cat\ndog\n")
    for shard, count in enumerate((1, 2)):
        records = [
            example(
                image=encoded(seed=n),
                captions__text=[f"One {n}", f"Two {n}"],
                captions__id=[1, 2],
                label=n % 2,
            )
            for n in range(count)
        ]
        put_records(folder / f"pets-train.tfrecord-0000{shard}-of-00002", *records)
    return folder


def test_tfds_folder_with_nested_features_and_classes(tmp_path, encoded):
    put_tfds(tmp_path, encoded)
    features = {"image": "image", "caption": "captions/text"}
    items, rejects = read(tmp_path, "tfds", features=features)
    assert [i.suffixes for i in items] == [
        ("One 0", "Two 0"),
        ("One 0", "Two 0"),
        ("One 1", "Two 1"),
    ]
    assert pixels(tmp_path, items) == [encoded(seed=n) for n in (0, 0, 1)]
    assert not rejects
    classes = {"image": "image", "prefix": "label", "suffix": "label"}
    assert [i.suffixes for i in read(tmp_path, "tfds", features=classes)[0]] == [
        ("cat",),
        ("cat",),
        ("dog",),
    ]


def test_tfds_says_what_is_wrong(tmp_path, encoded):
    folder = put_tfds(tmp_path, encoded, lengths=("1", "3"))
    features = {"image": "image", "caption": "captions/text"}
    items, rejects = read(tmp_path, "tfds", features=features)
    assert len(items) == 3
    assert [r.reason for r in rejects] == ["2 records, dataset_info.json says 3"]
    with pytest.raises(FileNotFoundError, match=r"no split val; .*train"):
        read(tmp_path, "tfds", "val", features=features)
    named = r"features.caption must be one of captions/id, captions/text, image, label of"
    with pytest.raises(ValueError, match=named):
        read(tmp_path, "tfds", features={"image": "image", "caption": "caption"})
    (folder / "pets-train.tfrecord-00001-of-00002").unlink()
    with pytest.raises(FileNotFoundError, match=r"00001-of-00002 is missing"):
        read(tmp_path, "tfds", features=features)


@pytest.mark.slow
def test_prepared_by_beam(tmp_path, encoded):
    put_tfds(tmp_path, encoded)
    config = PrepareConfig(image_px=28, num_workers=1, num_shards=1)
    features = {"image": "image", "caption": "captions/text"}
    out = str(tmp_path / "out")
    prepare_dataset(
        config, source="tfds", split="train", data_root=str(tmp_path), out=out, features=features
    )
    records = list(Dataset(out).records())
    assert len(records) == 3
    assert json.dumps([r.suffixes for r in records]).count("Two") == 3
