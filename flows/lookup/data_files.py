"""`parcel data show` and `parcel data export`: finds a prepared dataset, and writes files of it."""

from pathlib import Path

from flows.lookup.runs import find_dataset
from infra.errors import ConfigError
from pipelines.records.dataset import Dataset
from pipelines.records.export import ExportFormat, export_records
from pipelines.sheet.cards import make_sheet


def show_records(
    name: str, out: Path, *, store: str, limit: int, part: str | None, rejects: int
) -> tuple[int, int]:
    """Writes a contact sheet to `out`, and returns how many records and rejects are on it.

    Args:
      name: a dataset's folder, or an artifact's key, or its beginning.
      out: an .html or .png file.
      store: the store that holds artifacts [URI].
      limit: most records on the sheet.
      part: the only part to show; None shows all.
      rejects: most rejects on the sheet.

    Raises:
      ConfigError: if there is no such dataset or part, or `out` cannot be written.
    """
    # The ending is checked before a dataset is looked for, since it costs nothing.
    suffix = out.suffix.lower()
    if suffix not in (".html", ".png"):
        raise ConfigError(f"--out must end in .html or .png, got {out}.")
    place = find_dataset(name, store)
    try:
        sheet = make_sheet(place, limit=limit, part=part, rejects=rejects)
    except KeyError as error:
        raise ConfigError(f"--{error.args[0]}") from None
    try:
        # Only one of the two writers is imported.
        if suffix == ".html":
            from pipelines.sheet.html import to_html

            out.write_text(to_html(sheet), encoding="utf-8")
        else:
            from pipelines.sheet.png import to_png

            to_png(sheet).save(out, "PNG")
    except OSError as error:
        raise ConfigError(f"--out must be a file to write, got {out}: {error.strerror}.") from None
    return len(sheet.cards), len(sheet.rejects)


def export_dataset(
    name: str,
    out: Path,
    form: ExportFormat,
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
