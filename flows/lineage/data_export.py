"""`parcel data export`: a prepared dataset as plain TFRecords or webdataset archives."""

from pathlib import Path

from flows.lineage.runs import find_dataset
from infra.errors import ConfigError
from pipelines.records.dataset import Dataset
from pipelines.records.export import Format, export_records


def export_dataset(
    name: str,
    out: Path,
    form: Format,
    *,
    part: str | None,
    records_per_file: int,
    store: str,
) -> dict[str, int]:
    """Writes a dataset, and returns part -> number of its records.

    Args:
      name: the dataset's folder or artifact.
      out: folder to write; it must be absent or empty.
      form: format of the files, "tfrecord" or "webdataset".
      part: the only part to write; None writes all.
      records_per_file: largest number of records in a file.
      store: the store that holds artifacts [URI].

    Raises:
      ConfigError: if there is no such dataset or part, or `out` is not empty.
    """
    dataset = Dataset(find_dataset(name, store))
    try:
        return export_records(dataset, out, form, part=part, records_per_file=records_per_file)
    except ValueError as error:
        raise ConfigError(str(error)) from None
