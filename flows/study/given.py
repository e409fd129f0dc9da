"""Files a study is given rather than makes: a tokenizer, a mask codec, a checkpoint to start from.

They are noted by content before anything runs, so that a changed file is a changed input.
"""

from pathlib import Path

from flows.steps.kinds.files import FilesSpec
from flows.study.config import StudyConfig
from flows.study.load import ConfigError
from infra.store.digest import file_sha256
from model.files import DIGEST, TOKENIZER


def paths_of(config: StudyConfig) -> dict[str, Path]:
    """Returns what a study is given, by the key of its config.

    Raises:
      ConfigError: if one of them does not exist, or a start comes without its tokenizer.
    """
    found = {key: Path(path) for key, path in config.given.items()}
    for key, path in found.items():
        if key != "start" and not path.is_file():
            raise ConfigError(f"{key} must be an existing file, got {path}.")
    if start := found.get("start"):
        if not (start / DIGEST).is_file():
            raise ConfigError(
                f"start must be the folder of a checkpoint, as parcel convert writes it, got "
                f"{start}."
            )
        if "tokenizer.path" not in found:
            raise ConfigError(
                f"tokenizer.path must be given with start, whose embedding it fits; its own may be "
                f"{start / TOKENIZER}."
            )
    return found


def files_of(path: Path) -> FilesSpec:
    """Returns a file, or the files of a folder, by digest."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    root = path.parent if path.is_file() else path
    return FilesSpec(
        files=tuple(
            (file.relative_to(root).as_posix(), file_sha256(file), file.stat().st_size)
            for file in files
        )
    )


def inventory_of(
    reader: str, split: str, data_root: str, path: str
) -> tuple[tuple[str, str, int], ...]:
    """Returns the raw files that a dataset is made from, as (path, sha256, size [bytes]) each."""
    from pipelines.sources.listing import inventory

    found = inventory(reader, split, data_root, path=path or None)
    return tuple((file.path, file.sha256, file.size) for file in found)
