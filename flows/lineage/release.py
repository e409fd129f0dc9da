"""`parcel release`: writes a checkpoint for transformers, with a card of its lineage."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flows.config.user_checkpoint import checkpoint_config
from flows.lineage.card import CheckpointOrigin, model_card, picture_settings
from flows.lineage.certificate.envelope import public_line, read_key, write_envelope
from flows.lineage.certificate.statement import certify_run
from flows.lineage.export import export_lineage
from flows.lookup.open_store import open_existing_store
from flows.lookup.results import report_of
from flows.lookup.runs import results_artifact
from flows.lookup.target import LookupTarget, checkpoint_of_target, find_target
from flows.report.cells import Cell, CellKey
from flows.steps.step_lookup import find_cast
from infra.errors import ConfigError
from infra.store.store import Artifact, Store
from infra.store.stored_folder import open_stored_folder
from model.checkpoint.array_files import BFLOAT16
from model.checkpoint.release import write_release
from model.checkpoint.target import RequestError, atomic_output
from model.checkpoint.torch_connector import (
    OWN_FILE,
    TorchClass,
    compare_checkpoint,
    torch_class,
)
from model.files import CONFIG

CARD, CROISSANT, CERTIFICATE = "README.md", "croissant", "certificate.json"

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": BFLOAT16}


def release_checkpoint(
    name: str,
    out: Path,
    *,
    licence: str,
    dtype: str,
    store: str,
    torch: str | None = None,
    key: Path | None = None,
) -> Iterator[str]:
    """Writes a release, whole or not at all, and yields lines that say what was written.

    Args:
      name: RUN/BENCHMARK/METHOD/BUDGET[/SEED], a checkpoint's key, or a folder.
      out: folder to write; it must be absent or empty.
      licence: licence for the card, as the Hub spells it; "" states none.
      dtype: dtype of the tensors, "float32" or "bfloat16".
      store: the store that holds artifacts [URI].
      torch: torch class of a connector of one's own, as file.py:Class; None for a built-in one.
      key: private key that signs a certificate of the table beside the weights; None writes none.

    Raises:
      ConfigError: if there is no such checkpoint, or it cannot be released, or its connector and
        the torch class give other tokens on its weights.
    """
    folder = Path(name)
    compared, certificate = "", None
    origin = (
        None
        if (folder / CONFIG).is_file()
        else _checkpoint_origin(open_existing_store(store), name)
    )
    # Weights, card and descriptions go to a temporary folder, which becomes `out` only at the end:
    # a release without its card never looks finished.
    try:
        with atomic_output(out) as target:
            target.mkdir()
            place = folder if origin is None else origin.checkpoint.uri
            author = None if torch is None else torch_class(torch)
            if author is not None:
                compared = _check_torch_connector(place, author, origin, store)
            pictures = {} if origin is None else picture_settings(origin)
            cfg = write_release(place, target, _DTYPES[dtype], author, pictures)
            certificate = _write_certificate(origin, key, target) if key else None
            text = model_card(
                cfg,
                origin,
                name=out.absolute().name,
                licence=licence,
                dtype=dtype,
                certificate=certificate,
            )
            (target / CARD).write_text(text, encoding="utf-8")
            described = 0
            # A checkpoint in a folder has no lineage, so there are no datasets to describe.
            if origin is not None:
                roots = LookupTarget(name=name, artifacts=(origin.checkpoint, *origin.scores))
                (target / CROISSANT).mkdir()
                for file, content in export_lineage(origin.store, roots, "croissant"):
                    (target / CROISSANT / file).write_text(f"{content}\n", encoding="utf-8")
                    described += 1
    except RequestError as error:  # Its text names DST, as in `parcel model convert SRC DST`.
        raise ConfigError(str(error).replace("DST", "--out", 1)) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    yield f"{out}: {cfg.connector.kind} for transformers, {dtype}, with its card"
    if compared:
        yield f"{OWN_FILE}: {compared}"
    yield f"{described} datasets described in {CROISSANT}/"
    if certificate:
        yield "{}: signed by {}".format(*certificate)


def _check_torch_connector(
    place: str | Path, author: TorchClass, origin: CheckpointOrigin | None, store: str
) -> str:
    """Returns how near the author's torch class is to the checkpoint's connector.

    Raises:
      ConfigError: if it is not near enough, or cannot be run.
    """
    folder = open_stored_folder(place).local_folder((CONFIG,))
    # The class of the connector comes with the checkpoint's code, wherever it is.
    checkpoint_config(folder, "" if origin is None else origin.checkpoint.key, store)
    check = compare_checkpoint(place, author)
    if not check.holds:
        raise ConfigError(f"--torch: {check.detail}.")
    return check.detail


def _write_certificate(origin: CheckpointOrigin | None, key: Path, folder: Path) -> tuple[str, str]:
    """Writes the certificate of the table that a release is from; returns its name and public key.

    Raises:
      ConfigError: if the release is not from a table, or the key is none.
    """
    if origin is None or not origin.cells:
        raise ConfigError(
            "--key certifies the table of a run: name the checkpoint by RUN/BENCHMARK/METHOD/"
            "BUDGET/SEED."
        )
    signer = read_key(key)
    statement = certify_run(origin.store, origin.name.partition("/")[0])
    write_envelope(statement, signer, folder / CERTIFICATE)
    return CERTIFICATE, public_line(signer)


def _checkpoint_origin(store: Store, name: str) -> CheckpointOrigin:
    """Returns the named checkpoint, with its scores and its study's cells.

    Raises:
      ConfigError: if the name means no checkpoint, or several, or the checkpoint's files are gone.
    """
    store = store.snapshot()  # One listing for the release, its card and its descriptions.
    what = find_target(store, name)
    key = checkpoint_of_target(store, what)
    if store.find_pruned(key) is not None:
        cast = find_cast(store, store.get_cached(key))
        rounded = f"; its parameters in bfloat16 are `parcel release {cast.key}`" if cast else ""
        raise ConfigError(
            f"checkpoint {key} was not kept (keep.transfers), or gc deleted its files; `parcel "
            f"lineage replay {key} --into DIR` makes it again{rounded}."
        )
    # A key without its last part names the evaluation whatever code made it; the newest wins.
    evaluated = {}
    for artifact in sorted(store.artifacts("scores"), key=_artifact_start_time):
        predictions = store.get_cached(artifact.manifest.inputs["predictions"].key)
        if predictions.manifest.inputs["checkpoint"].key == key:
            evaluated[artifact.key.rpartition("-")[0]] = artifact
    return CheckpointOrigin(
        store=store,
        name=name,
        checkpoint=store.get_cached(key),
        scores=tuple(evaluated.values()),
        cells=_table_cells_of_method(store, name) if what.seeds else (),
    )


def _artifact_start_time(artifact: Artifact) -> str:
    return artifact.manifest.started


def _table_cells_of_method(store: Store, name: str) -> tuple[Cell, ...]:
    """Returns the cells of a study's table that have the named method, over all seeds."""
    run, _, cell = name.partition("/")
    results = results_artifact(store, run)
    cells = map(CellKey.of_role, results.manifest.inputs)
    method = next(key.method for key in cells if key and cell in (key.cell, str(key)))
    report, _ = report_of(store, results, mixed=False)
    return tuple(
        cell
        for section in report.sections
        for cell in section.cells
        if cell.method == method and cell.mean is not None
    )
