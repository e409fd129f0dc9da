"""A prepared dataset for people who train with `tf.data`: `as_tf_dataset`.

TensorFlow is imported when it is called: it takes ten seconds, and nothing else here needs it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.records.dataset import read_info
from pipelines.records.example import BYTES, FLOATS, SINGLE

if TYPE_CHECKING:
    import tensorflow as tf


def as_tf_dataset(folder: str | Path, part: str | None = None) -> "tf.data.Dataset":
    """Returns the records of a prepared dataset as a `tf.data.Dataset`, in the order of the disk.

        rows = as_tf_dataset("prepared/mixture", "caption").shuffle(10_000, seed=0)
        rows = rows.map(lambda row: (tf.io.decode_image(row["image"][0]), row["suffix"][0]))

    An element is a dictionary with every feature of a record (docs/howto/data.md). Those that are
    one text, and `num_windows`, are scalars; the others are vectors of any length, empty ones too.

    Args:
      folder: a prepared dataset, on this machine.
      part: the only part to read; None reads all parts, one after the other.

    Raises:
      ModuleNotFoundError: if TensorFlow is not installed.
      ValueError: if there is no such part.
    """
    try:
        import tensorflow  # noqa: F401
    except ModuleNotFoundError as error:
        # A TensorFlow that is there but lacks something else shows its own error.
        if error.name != "tensorflow":
            raise
        raise ModuleNotFoundError(
            "tensorflow is not installed, and as_tf_dataset needs it: "
            "pip install 'parcel-pipeline[tf]'",
            name="tensorflow",
        ) from None
    parts = read_info(folder).parts
    if part is not None and part not in parts:
        raise ValueError(f"part must be one of {', '.join(parts)}, got {part!r}.")
    names = sorted(parts) if part is None else [part]
    paths = [str(Path(folder) / shard) for name in names for shard in parts[name].shards]
    return read_shards(paths)


def read_shards(paths: Sequence[str]) -> "tf.data.Dataset":
    """Returns the records of some shards, as `as_tf_dataset` does."""
    import tensorflow as tf

    features = _tensorflow_feature_specs(tf)
    # The type is stated for a dataset without shards.
    shards = tf.data.TFRecordDataset(tf.constant(paths, tf.string))
    return shards.map(
        lambda data: tf.io.parse_single_example(data, features),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _tensorflow_feature_specs(tf: Any) -> dict[str, Any]:
    """Returns feature name -> how TensorFlow reads it, for what `example.encode` writes."""

    def vector(kind: Any) -> Any:
        return tf.io.FixedLenSequenceFeature([], kind, allow_missing=True)

    text = tf.io.FixedLenFeature([], tf.string)
    return {
        **{name: text if name in SINGLE else vector(tf.string) for name in BYTES},
        **{name: vector(tf.float32) for name in FLOATS},
        "prefixes": vector(tf.string),
        "num_windows": tf.io.FixedLenFeature([], tf.int64, default_value=1),
        "meta": text,
    }
