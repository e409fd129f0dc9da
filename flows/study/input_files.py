"""Files that a study reads instead of making them: raw data, tokenizer, start checkpoint, ...

Before anything runs, this module checks that they exist. All but raw data are identified by the
digests of their contents at that time, so that a changed file is a changed input.
"""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from flows.config.benchmark import source_of, train_data, trained_on
from flows.config.references import corpus_reference
from flows.config.server_limits import check_served_function, check_served_path
from flows.steps.kinds.files import FilesSpec
from flows.steps.kinds.raw_files import MEMORY
from flows.study.settings import REFERENCE
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.errors import ConfigError
from infra.store.raw_files import RawDigestCache
from infra.store.raw_path import raw_path
from infra.store.store import Store
from infra.store.stored_folder import BUCKET_SCHEME, open_backend
from model.config import ModelConfig
from model.connector.registry import KINDS, has_parameters
from model.files import CONFIG, DIGEST, TOKENIZER
from pipelines.fetch.fetch import FETCH_NOTES, check_fetched
from pipelines.sources.registry import source_spec
from pipelines.synthetic.render import FOLDERS


def check_study_files(view: StudyView) -> None:
    """Checks the files that a study of one backbone is given.

    Raises:
      ConfigError: if one is missing, raw data included; or if `start` has no tokenizer beside
        it, or is no checkpoint that the study's first stage can continue from.
    """
    _check_data_root(view)
    paths = {key: Path(path) for key, path in view.input_paths.items()}
    # A start is a folder or a file of several formats; everything else is one file.
    for key, path in paths.items():
        if not key.startswith("start") and not path.is_file():
            raise ConfigError(f"{key} must be an existing file, got {path}.")
    for key, path in paths.items():
        if key.startswith("start"):
            _check_start_checkpoint(view, key, path)
            if "tokenizer.path" not in paths:
                raise ConfigError(
                    f"tokenizer.path must be given with {key}, whose embedding it fits; its own "
                    f"may be {path / TOKENIZER}."
                )


def check_served_files(config: StudyConfig, stated: StudyConfig | None) -> None:
    """Checks that this process may read the files that a form names.

    Args:
      config: the study with the form's changes.
      stated: the study as its file or its record states it, which may name any file; None if that
        is no study without the form's changes: then all files are checked.

    Raises:
      ConfigError: if it may not, before any of them is touched.
    """
    known = {} if stated is None else _local_paths(stated)
    for key, path in _local_paths(config).items():
        if known.get(key) != path:
            check_served_path(key, path)


def _local_paths(config: StudyConfig) -> dict[str, str]:
    paths = config.input_paths
    if config.data_root is not None:
        # Joined as the reader does: an absolute folder stands for itself.
        root = config.data_root
        folders = {f"data_root/{f}": os.path.join(root, f) for f in data_folders(config.views)}
        paths |= {"data_root": config.data_root, **folders}
    return paths


def _check_start_checkpoint(view: StudyView, key: str, path: Path) -> None:
    """Checks, by a checkpoint's model config, that the first stage can continue from it."""
    checkpoint, ours = _checkpoint_model(key, path), view.model
    for part in ("vision", "text"):
        theirs = dataclasses.asdict(getattr(checkpoint, part))
        # `image_px` may differ: position embeddings are resized when a stage begins.
        for name, value in dataclasses.asdict(getattr(ours, part)).items():
            if name != "image_px" and theirs[name] != value:
                raise ConfigError(
                    f"{key} must be a checkpoint of the study's model, whose {part}.{name} is "
                    f"{value}, got one of {theirs[name]}: {path}."
                )
    if checkpoint.projector != ours.projector:
        raise ConfigError(
            f"{key} must be a checkpoint of the study's model, whose projector is "
            f"{ours.projector}, got one of {checkpoint.projector}: {path}."
        )
    kind = checkpoint.connector.kind
    # A connector without parameters, such as pooling, fits every method.
    if not has_parameters(kind):
        return
    # `start` is shared by all that begin with it; `start.parcel` is for that method alone.
    _, _, start_method = key.partition(".")
    methods = [REFERENCE] if view.stage1 else map(view.connector_of, view.methods)
    first = [start_method] if start_method else [*methods]
    if other_methods := [method for method in first if method != kind]:
        raise ConfigError(
            f"{key} must be a checkpoint without a connector, or with the connector of "
            f"{other_methods[0]}, which continues from it; got connector {kind}: {path}. Without "
            f"stage1 each method may have its own start: start={{{kind}: …}}."
        )


def _checkpoint_model(key: str, path: Path) -> ModelConfig:
    """Returns the model config of a checkpoint, ours or another codebase's; reads no parameters."""
    from model.checkpoint.config_json import connector_kind
    from model.checkpoint.folder import load_config
    from model.checkpoint.importer import open_source
    from model.checkpoint.target import RequestError

    try:
        if not (path / DIGEST).is_file():
            return open_source(path).model
        # The kind is looked at before the config is made, which would import a class it names.
        kind = connector_kind(path / CONFIG)
        if kind not in KINDS:
            check_served_function(f"the connector of {key}", kind)
        return load_config(path)
    except RequestError as error:
        message = str(error).replace("SRC", key, 1)
        raise ConfigError(message) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} cannot be read, got {path}: {error}") from None


def raw_digest_cache(store: Store) -> RawDigestCache:
    """Returns the store's memory of the digests of files outside it."""
    # Where there is no store yet, to look at a study makes none.
    return RawDigestCache(store.cache("raw_files") / MEMORY) if store.is_there else RawDigestCache()


def _check_data_root(view: StudyView) -> None:
    # Two cases. With a root, its folders must be there. Without one, a corpus is drawn, which has
    # the folders of some sources only:
    #
    #   data_root=~/data, source web             ~/data/web must exist
    #   no data_root, a transfer to docvqa       refused: nothing is drawn for it
    if view.data_root is not None:
        _check_data_root_exists(view.data_root)
        root = raw_path(view.data_root)
        if missing := sorted(f for f in data_folders(view.resolutions) if not (root / f).is_dir()):
            raise ConfigError(
                f"data_root must hold the folders that are read, got {view.data_root} without "
                f"{', '.join(missing)}. Get them (parcel data fetch --list), give their path, or "
                f"leave out what reads them."
            )
        return
    # Only of corpora that the config draws anything of: `num_web: 0` draws none.
    drawn_folders = {
        Path(folder).parts[0]
        for corpus, folder in FOLDERS.items()
        if getattr(view.corpus, f"num_{corpus}")
    }
    if missing := sorted(data_folders(view.resolutions) - drawn_folders):
        raise ConfigError(
            f"data_root must be given, the folder that holds {', '.join(missing)}: without it a "
            f"corpus is drawn, of {', '.join(sorted(drawn_folders)) or 'nothing'}. Add "
            f"data_root=DIR."
        )


def data_folders(views: Iterable[StudyView]) -> set[str]:
    """Returns the folders below the data root that views of a study read."""
    folders: set[str] = set()
    # Of a benchmark both folders: that of its rows, and that of the split it is trained on, which
    # is its parent's for a zero-shot one.
    for view in views:
        folders |= {
            source.path
            or source_spec(corpus_reference(f"sources.{i}.reader", source.reader)).folder
            for i, source in enumerate((*view.sources, *(view.watch.sources if view.watch else ())))
        }
        for name, transfer in view.transfers.items():
            folders.add(transfer.path or source_spec(source_of(name, transfer)).folder)
            if transfer.zero_shot:
                continue
            training_benchmark = trained_on(name)
            folder, _ = train_data(name, view.transfers)
            folders |= {
                folder
                or source_spec(
                    source_of(training_benchmark, view.transfers.get(training_benchmark))
                ).folder,
            }
    return folders


def _check_data_root_exists(data_root: str) -> None:
    if not data_root.startswith(BUCKET_SCHEME):
        if not Path(data_root).is_dir():
            raise ConfigError(f"data_root must be an existing folder, got {data_root}.")
        return
    try:
        first_object = next(open_backend(data_root).walk(""), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"data_root cannot be read, got {data_root}: {error}") from error
    if first_object is None:
        raise ConfigError(f"data_root must be the beginning of objects' names, got {data_root}.")


def input_files_spec(path: Path, digest_cache: RawDigestCache | None = None) -> FilesSpec:
    """Returns the digests of a file, or of all files in a folder.

    Raises:
      ConfigError: if `parcel data fetch` noted another digest of one of them.
    """
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    root = path.parent if path.is_file() else path
    # What was fetched is known by its bytes, not by where it came from.
    files = [file for file in files if file != root / FETCH_NOTES]
    digests = (digest_cache or RawDigestCache()).digests(files)
    entries = tuple(
        (file.relative_to(root).as_posix(), digest.sha256, digest.size)
        for file, digest in zip(files, digests, strict=True)
    )
    check_fetched(root, {name: sha256 for name, sha256, _ in entries})
    return FilesSpec(files=entries)
