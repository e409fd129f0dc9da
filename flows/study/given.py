"""Files a study is given rather than makes: raw data, a tokenizer, a checkpoint to start from, ...

They are looked for before anything runs; all but raw data are noted by content there and then, so
that a changed file is a changed input.
"""

from pathlib import Path

from flows.steps.kinds.files import FilesSpec
from flows.steps.kinds.raw_files import MEMORY
from flows.study.config import StudyConfig
from flows.study.load import ConfigError
from flows.study.own import corpus_named
from flows.study.transfer import source_of, train_data, trained_on
from infra.store.places import BUCKET, open_files
from infra.store.raw_files import RawFiles
from infra.store.raw_path import raw_path
from infra.store.store import Store
from model.files import DIGEST, TOKENIZER
from pipelines.sources.registry import get
from pipelines.synthetic.render import FOLDERS


def paths_of(config: StudyConfig) -> dict[str, Path]:
    """Returns the path of each file a study is given, by the key of its config.

    Raises:
      ConfigError: if one of them does not exist, raw data included, or a start comes without its
        tokenizer.
    """
    _check_data_root(config)
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


def raw_files(store: Store) -> RawFiles:
    """Returns the digests of files outside a store that it remembers."""
    return RawFiles(store.cache("raw_files") / MEMORY)


def _check_data_root(config: StudyConfig) -> None:
    if config.data_root is not None:
        _check_exists(config.data_root)
        root = raw_path(config.data_root)
        if missing := sorted(f for f in _folders(config) if not (root / f).is_dir()):
            raise ConfigError(
                f"data_root must hold the folders that are read, got {config.data_root} without "
                f"{', '.join(missing)}. Get them (parcel data fetch --list), give their path, or "
                f"leave out what reads them."
            )
        return
    drawn = {
        Path(folder).parts[0]
        for corpus, folder in FOLDERS.items()
        if getattr(config.corpus, f"num_{corpus}")
    }
    if missing := sorted(_folders(config) - drawn):
        raise ConfigError(
            f"data_root must be given, the folder that holds {', '.join(missing)}: without it a "
            f"corpus is drawn, of {', '.join(sorted(drawn)) or 'nothing'}. Add data_root=DIR."
        )


def _folders(config: StudyConfig) -> set[str]:
    """Returns the folders below the data root that a study reads."""
    read = {
        source.path or get(corpus_named(f"sources.{i}.reader", source.reader)).folder
        for i, source in enumerate(config.sources)
    }
    for name, transfer in config.transfers.items():
        trained = trained_on(name)
        folder, _ = train_data(name, config.transfers)
        read |= {
            transfer.path or get(source_of(name, transfer)).folder,
            folder or get(source_of(trained, config.transfers.get(trained))).folder,
        }
    return read


def _check_exists(data_root: str) -> None:
    if not data_root.startswith(BUCKET):
        if not Path(data_root).is_dir():
            raise ConfigError(f"data_root must be an existing folder, got {data_root}.")
        return
    try:
        found = next(open_files(data_root).walk(""), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"data_root cannot be read, got {data_root}: {error}") from error
    if found is None:
        raise ConfigError(f"data_root must be the beginning of objects' names, got {data_root}.")


def files_of(path: Path, known: RawFiles | None = None) -> FilesSpec:
    """Returns a file, or the files of a folder, by digest."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    root = path.parent if path.is_file() else path
    digests = (known or RawFiles()).digests(files)
    return FilesSpec(
        files=tuple(
            (file.relative_to(root).as_posix(), digest.sha256, digest.size)
            for file, digest in zip(files, digests, strict=True)
        )
    )
