"""`parcel data export`: a prepared dataset as plain TFRecords or webdataset archives."""

from pathlib import Path

from flows.study.load import ConfigError
from flows.study.runs import find_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.export import Format, export


def export_dataset(
    name: str,
    out: Path,
    form: Format,
    *,
    part: str | None,
    records_per_file: int,
    store: str,
) -> dict[str, int]:
    """Writes a dataset, and returns the records of each part.

    Args:
      name: its folder or artifact.
      out: absent or empty.
      form: "tfrecord" or "webdataset".
      part: only this one; None takes all.
      records_per_file: at most.
      store: where artifacts are.

    Raises:
      ConfigError: if there is no such dataset or part, or `out` is not empty.
    """
    dataset = Dataset(find_dataset(name, store))
    try:
        return export(dataset, out, form, part=part, records_per_file=records_per_file)
    except ValueError as error:
        raise ConfigError(str(error)) from None
