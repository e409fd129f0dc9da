"""`parcel data show`: finds the dataset, and writes its contact sheet."""

from pathlib import Path

from flows.lineage.runs import find_dataset
from infra.errors import ConfigError
from pipelines.sheet.cards import make_sheet


def show_records(
    name: str, out: Path, *, store: str, limit: int, part: str | None, rejects: int
) -> tuple[int, int]:
    """Writes the sheet to `out`, and returns how many records and rejects are on it.

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
