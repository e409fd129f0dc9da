"""`Record` ⇄ `tf.train.Example` bytes, without TensorFlow."""

import json

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pipelines.records.licence import Licence
from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput, Record

# Field name in the Example -> field of `Record`, for lists of texts or bytes.
BYTES = {
    "id": "id",
    "image": "images",
    "prefix": "prefix",
    "suffix": "suffixes",
    "task": "task",
    "lang": "lang",
    "source": "source",
    "source_sha256": "source_sha256",
    "answer": "answers",
    "mask_rle": "masks",
}
FLOATS = {"frame_requested": "frame_requested", "frame_decoded": "frame_decoded"}
LICENCE = {"licence": "licence", "licence_holder": "holder", "licence_address": "address"}
"""Field name in the Example -> field of `Licence`; a record lacks those that are not stated."""
SINGLE = ("id", "prefix", "task", "lang", "source", "source_sha256")


def encode_example(record: Record) -> bytes:
    """Returns the serialized `tf.train.Example`; equal records give equal bytes."""
    example = _Example()
    feature = example.features.feature  # pyright: ignore[reportAttributeAccessIssue]
    # Access creates a key, so each is there even if its list is empty; `decode_example` relies on
    # that.
    for key, field in BYTES.items():
        value = getattr(record, field)
        values = [value] if key in SINGLE else value
        feature[key].bytes_list.value.extend(
            v if isinstance(v, bytes) else v.encode() for v in values
        )
    for key, field in FLOATS.items():
        feature[key].float_list.value.extend(getattr(record, field))
    feature["prefixes"].bytes_list.value.extend(
        json.dumps(prefixes, ensure_ascii=False).encode() for prefixes in record.prefixes
    )
    # Only conversations have it, so all other records are as they were without.
    if record.turns:
        feature["turns"].bytes_list.value.extend(
            json.dumps(turn, ensure_ascii=False).encode() for turn in record.turns
        )
    # `decode_example` takes 1 where it is absent, so records of pictures do without.
    if record.num_windows > 1:
        feature["num_windows"].int64_list.value.append(record.num_windows)
    for key, field in LICENCE.items():
        if value := getattr(record.licence, field):
            feature[key].bytes_list.value.append(value.encode())
    # Keys are sorted, so that equal records give equal bytes.
    meta = json.dumps(record.meta, sort_keys=True, ensure_ascii=False)
    feature["meta"].bytes_list.value.append(meta.encode())
    return example.SerializeToString(deterministic=True)


def decode_example(data: bytes) -> Record:
    """Returns the record of a serialized Example.

    Raises:
      ValueError: if a required feature is missing, named in the message; or a value is wrong.
    """
    try:
        return _decode_example_bytes(data)
    except (
        DecodeError,
        IndexError,
        TypeError,
        AttributeError,
        RecursionError,
        ValueError,
    ) as error:
        if type(error) is ValueError:  # Of this module and the schema's, whose words are clear.
            raise
        raise ValueError(f"it is no Example of a record: {reason_of(error)}.") from None


def _decode_example_bytes(data: bytes) -> Record:
    example = _Example.FromString(data)
    feature = example.features.feature  # pyright: ignore[reportAttributeAccessIssue]
    values: dict[str, object] = {}
    for key, field in BYTES.items():
        if key not in feature:
            raise ValueError(f"feature {key!r} is missing from the Example; has {sorted(feature)}.")
        # A slice: iterating over the values takes three times as long.
        items = feature[key].bytes_list.value[:]
        if key in SINGLE:
            values[field] = items[0].decode()
        else:
            values[field] = tuple(items if key == "image" else map(bytes.decode, items))
    for key, field in FLOATS.items():
        values[field] = tuple(feature[key].float_list.value[:])
    prefixes = [json.loads(text) for text in feature["prefixes"].bytes_list.value[:]]
    if not all(isinstance(p, list) and all(isinstance(text, str) for text in p) for p in prefixes):
        raise ValueError(f"prefixes must be lists of texts, got {prefixes!r:.100}.")
    values["prefixes"] = tuple(map(tuple, prefixes))
    turns = [json.loads(text) for text in feature["turns"].bytes_list.value[:]]
    if not all(
        isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) for text in turn)
        for turn in turns
    ):
        raise ValueError(f"turns must be pairs of texts, got {turns!r:.100}.")
    values["turns"] = tuple(map(tuple, turns))
    values["num_windows"] = next(iter(feature["num_windows"].int64_list.value), 1)
    meta = json.loads(feature["meta"].bytes_list.value[0])
    if not isinstance(meta, dict):
        raise ValueError(f"meta must be an object, got {meta!r:.100}.")
    values["meta"] = meta
    stated = {field: key for key, field in LICENCE.items() if key in feature}
    if stated:
        texts = {field: feature[key].bytes_list.value[0].decode() for field, key in stated.items()}
        values["licence"] = Licence(**texts)
    return Record(**values)  # type: ignore[arg-type]


def features_of(data: bytes) -> dict[str, tuple[bytes | int | float, ...]]:
    """Returns the values of every feature of any serialized Example.

    Raises:
      BadInput: if `data` is no Example.
    """
    try:
        example = _Example.FromString(data)
    except DecodeError as error:
        raise BadInput(f"record is no tf.train.Example: {error}") from error
    if unknown := sorted({field.field_number for field in UnknownFieldSet(example)}):
        # An Example has one field; a SequenceExample has the same and its lists, field 2.
        raise BadInput(f"record is no tf.train.Example: it has the fields 1 and {unknown[0]}")
    feature = example.features.feature  # pyright: ignore[reportAttributeAccessIssue]
    return {
        name: tuple(getattr(value_list, value_list.WhichOneof("kind")).value)
        if value_list.WhichOneof("kind")
        else ()
        for name, value_list in feature.items()
    }


def _example_class():
    """Builds tf.train.Example from its published fields (tensorflow/core/example/*.proto).

    It is in a separate pool, since TensorFlow registers the same names in the default pool.
    """
    field = descriptor_pb2.FieldDescriptorProto
    # message Example  { Features features = 1; }
    # message Features { map<string, Feature> feature = 1; }
    # message Feature  { oneof kind { BytesList, FloatList or Int64List; numbers 1 to 3 } }
    file = descriptor_pb2.FileDescriptorProto(
        name="parcel/example.proto", package="tensorflow", syntax="proto3"
    )

    def message(name: str):
        return file.message_type.add(name=name)

    def repeated(owner, kind: int, *, packed: bool = False) -> None:
        value_field = owner.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
        if packed:
            value_field.options.packed = True

    repeated(message("BytesList"), field.TYPE_BYTES)
    repeated(message("FloatList"), field.TYPE_FLOAT, packed=True)
    repeated(message("Int64List"), field.TYPE_INT64, packed=True)
    feature = message("Feature")
    # A feature holds one kind of list; the three fields below share this `oneof`.
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        snake = {"BytesList": "bytes_list", "FloatList": "float_list"}.get(name, "int64_list")
        feature.field.add(
            name=snake,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".tensorflow.{name}",
            oneof_index=0,
        )
    features = message("Features")
    # On the wire, a map is a repeated message with a key and a value.
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Feature",
    )
    features.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Features.FeatureEntry",
    )
    message("Example").field.add(
        name="features",
        number=1,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Features",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _example_class()
