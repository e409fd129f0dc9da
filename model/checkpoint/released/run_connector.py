"""Runs a connector's torch class on equal weights; a script for a Python that has torch.

    python run_connector.py FOLDER

    FOLDER/release/…          the code of a release, with the class in own_connector.py
    FOLDER/settings.json      name of the class, and the release's configuration
    FOLDER/weights.npz        torch's name of a parameter -> array
    FOLDER/features.npy       (B, P, C)
    FOLDER/tokens16.npy       what it must give at budget 16, (B, 16, C)
    FOLDER/result.json        written here: {"differences": …}, or {"refusal": one line}

It is no part of a release; `torch_connector.compare` runs it.
"""

import difflib
import importlib
import json
import math
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


class RefusalError(Exception):
    """The class cannot be compared; the message is one line."""


def main(folder: Path) -> None:
    """Writes the result of a folder."""
    torch.set_grad_enabled(False)
    try:
        result: dict[str, Any] = {"differences": differences(folder)}
    except RefusalError as refusal:
        result = {"refusal": " ".join(str(refusal).split())}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def differences(folder: Path) -> dict[int, tuple[float | None, list[int]]]:
    """Returns for each budget the largest difference, relative to the largest token, and where.

    Raises:
      RefusalError: if the class cannot be built or run, or its parameters are others.
    """
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    name = settings["class"]
    module = build(folder, settings)
    load(module, name, np.load(folder / "weights.npz"))
    features = torch.from_numpy(np.load(folder / "features.npy"))
    found = {}
    for file in sorted(folder.glob("tokens*.npy"), key=lambda f: int(f.stem[6:])):
        budget, expected = int(file.stem[6:]), np.load(file)
        try:
            tokens = module(features, budget)
        except Exception as error:
            raise RefusalError(f"{name}.forward(features, {budget}): {error_line(error)}") from None
        if not torch.is_tensor(tokens) or tuple(tokens.shape) != expected.shape:
            raise RefusalError(
                f"{name}.forward(features, {budget}) must give {expected.shape} (images, tokens, "
                f"width), got {tuple(getattr(tokens, 'shape', ())) or type(tokens).__name__}"
            )
        off = np.abs(tokens.double().numpy() - expected)
        off = np.where(np.isnan(off), np.inf, off)
        place = np.unravel_index(int(np.argmax(off)), off.shape)
        size = float(off[place] / max(float(np.abs(expected).max()), 1e-30))
        found[budget] = size if math.isfinite(size) else None, [int(i) for i in place]
    return found


def build(folder: Path, settings: dict[str, Any]) -> nn.Module:
    """Returns the connector, built as a release builds it.

    Raises:
      RefusalError: if that is not possible.
    """
    sys.path.insert(0, str(folder))
    config = importlib.import_module("release.configuration_parcel").ParcelConfig(
        **settings["config"]
    )
    importlib.import_module("release.modeling_parcel")
    file, name = settings["file"], settings["class"]
    try:
        own = importlib.import_module("release.own_connector")
    except (Exception, SystemExit) as error:
        raise RefusalError(f"{file} cannot be imported: {error_line(error)}") from None
    connector = getattr(own, name, None)
    if not isinstance(connector, type) or not issubclass(connector, nn.Module):
        raise RefusalError(f"{file} must define {name}, a torch.nn.Module, got {connector!r:.60}")
    try:
        return connector(config).eval().float()
    except Exception as error:
        raise RefusalError(
            f"{name}(config) cannot be built: {error_line(error)}; a release builds it from its "
            f"configuration alone, such as config.vision['width']"
        ) from None


def load(module: nn.Module, name: str, weights: Any) -> None:
    """Gives a module our weights.

    Raises:
      RefusalError: unless each weight has its place, each place its weight, and no value is
        elsewhere: only parameters are in a release.
    """
    places = dict(module.named_parameters())
    for ours in weights:
        if ours not in places:
            near = difflib.get_close_matches(ours, places, n=1, cutoff=0.0)
            hint = f"; the nearest it has is {near[0]}" if near else "; it has no parameters"
            raise RefusalError(f"our weight {ours} has no place in {name}{hint}")
        if tuple(places[ours].shape) != weights[ours].shape:
            raise RefusalError(
                f"{ours} must be {weights[ours].shape} in torch, got {tuple(places[ours].shape)}"
            )
    if spare := [theirs for theirs in places if theirs not in weights]:
        raise RefusalError(f"{name} has the parameter {spare[0]}, for which we have no weight")
    if buffers := [theirs for theirs, _ in module.named_buffers()]:
        raise RefusalError(
            f"{name} has the buffer {buffers[0]}, whose values no release holds; compute it in "
            f"forward"
        )
    for ours, parameter in places.items():
        parameter.copy_(torch.from_numpy(np.array(weights[ours])))


def error_line(error: BaseException) -> str:
    """Returns an error in one line, with where the author's file raised it."""
    lines = [f for f in traceback.extract_tb(error.__traceback__) if "own_connector" in f.filename]
    where = f" (line {lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}{where}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
