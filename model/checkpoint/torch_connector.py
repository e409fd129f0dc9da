"""A connector in torch: names and layouts of its parameters, and its author's own class.

A release runs in torch, so the class of a connector of one's own is needed there, too. It is built
from the release's configuration and called with features (images, patches, width) and a budget:

    class Ripple(nn.Module):
        def __init__(self, config): …          # config.vision["width"], config.connector[…]
        def forward(self, features, budget): …

Its parameters have the names that ours have, with torch's words for the layers:

    connector/far/query/kernel (in, out)   ->   far.q_proj.weight (out, in)

`compare` runs it in another Python, since torch is no dependency of this project.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from infra.errors import one_line_message
from infra.references import file_reference, module_reference
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.folder import Checkpoint, load_config, params_of
from model.checkpoint.target import RequestError
from model.config import ModelConfig
from model.connector import budgets
from model.connector.build import build_connector
from model.connector.contract import PromiseCheck, drawn_features, drawn_params
from model.connector.registry import KINDS, connector_class
from model.prompt.registry import prompt_facts
from model.text.registry import decoder_facts
from model.vision.registry import tower_facts

CODE = Path(__file__).with_name("released")
OWN_FILE = "own_connector.py"
"""Name of the file of an author's class, in a release and where it is compared."""

TORCH_TOLERANCE = 1e-5
"""Largest difference of tokens, relative to the largest one, between torch and ours in float32."""

_PYTHON = "PARCEL_TORCH_PYTHON"
_BUDGETS, _SHOWN = 128, 6
"""Number of budgets that are compared, and of those whose difference is shown."""

_LAYERS = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "up": "fc1",
    "down": "fc2",
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
}
"""Our name of a connector's layer or array -> its name in torch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchClass:
    """A connector's torch class, as its author wrote it.

    Attributes:
      file: the file, which imports torch, installed packages and `.modeling_parcel` only.
      name: the class's name.
    """

    file: Path
    name: str


def torch_class(reference: str) -> TorchClass:
    """Returns the class that "file.py:Class" or "module:Class" names; nothing is imported.

    Raises:
      RequestError: if there is no such file or module.
    """
    if named := file_reference(reference):
        file, name = named
    elif named := module_reference(reference):
        module, name = named
        try:
            spec = importlib.util.find_spec(module)  # Imports the packages that it lies in.
        except Exception as error:
            raise RequestError(f"--torch: {module}: {one_line_message(error)}.") from None
        file = Path(spec.origin if spec and spec.origin else f"{module}.py")
    else:
        raise RequestError(
            f"--torch must be a class as file.py:Class or module:Class, got {reference!r}."
        )
    if not file.is_file():
        raise RequestError(f"--torch: there is no file {file}; name it as file.py:Class.")
    return TorchClass(file=file, name=name)


def torch_name(path: str) -> str:
    """Returns torch's name of a connector's parameter, whose path is joined by "/"."""
    return ".".join(_LAYERS.get(part, part) for part in path.split("/"))


def torch_layout(path: str, array: np.ndarray) -> np.ndarray:
    """Returns a connector's parameter as torch has it."""
    # torch's layers keep their weights as (out, in, …), ours as (…, in, out).
    return np.moveaxis(array, (-1, -2), (0, 1)) if path.endswith("/kernel") else array


def torch_settings(cfg: ModelConfig) -> dict[str, Any]:
    """Returns our configuration as the torch code reads it, a `ParcelConfig`."""
    routing = cfg.connector.routing
    return {
        "vision": dataclasses.asdict(cfg.vision),
        "text": dataclasses.asdict(cfg.text),
        "connector": dataclasses.asdict(cfg.connector),
        "routing": {
            "module": connector_class(cfg.connector.kind).__name__,
            "reads": routing.reads,
            "anchor_counts": routing.anchor_counts(cfg.vision.grid),
        },
        "projector": cfg.projector,
        # Of the families and the prompt template: the torch code knows none by name.
        "facts": {
            "vision": tower_facts(cfg.vision.family),
            "text": decoder_facts(cfg.text.family),
            "prompt": prompt_facts(cfg.prompt),
        },
        "attn_softcap": cfg.attn_softcap,
        "final_softcap": cfg.final_softcap,
        "budgets": budgets.supported_budgets(cfg),
    }


def compare_checkpoint(checkpoint: Checkpoint, author: TorchClass) -> PromiseCheck:
    """Returns how an author's class compares with ours on the weights of a checkpoint.

    Raises:
      RequestError: if the connector is a built-in one, whose torch class is here; see `compare`.
    """
    cfg = load_config(checkpoint)
    if cfg.connector.kind in KINDS:
        raise RequestError(
            f"--torch is for a connector of your own, got {cfg.connector.kind!r}; leave it out."
        )
    arrays = params_of(checkpoint).arrays
    paths = {path: path.removeprefix("connector/") for path in arrays}
    flat = {short: arrays[path] for path, short in paths.items() if short != path}
    return compare(cfg, author, unflatten_params(flat))


def compare(
    cfg: ModelConfig, author: TorchClass, params: dict[str, Any] | None = None
) -> PromiseCheck:
    """Returns how an author's class compares with ours on equal weights, at each budget.

    Args:
      cfg: config of the model that the connector is part of.
      author: the class.
      params: parameters of the connector; None draws them.

    Raises:
      RequestError: if there is no Python with torch; says the cure.
    """
    python = _torch_python()
    weights: dict[str, Any] = drawn_params(cfg) if params is None else params
    features = drawn_features(cfg)
    with tempfile.TemporaryDirectory(prefix="parcel-torch-") as name:
        # The files lie as in a release, so that the class is imported here as there.
        folder = Path(name)
        (folder / "release").mkdir()
        for file in CODE.glob("*_parcel.py"):
            shutil.copyfile(file, folder / "release" / file.name)
        shutil.copyfile(author.file, folder / "release" / OWN_FILE)
        settings = {"class": author.name, "file": str(author.file), "config": torch_settings(cfg)}
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        np.save(folder / "features.npy", features)
        arrays = {
            torch_name(path): torch_layout(path, np.asarray(leaf))
            for path, leaf in flatten_params(weights)
        }
        np.savez(folder / "weights.npz", allow_pickle=False, **arrays)
        for budget, tokens in _our_connector_tokens(cfg, weights, features):
            np.save(folder / f"tokens{budget}.npy", tokens)
        return _check_of(_run_torch_connector(python, folder), author.name)


def _our_connector_tokens(
    cfg: ModelConfig, params: dict[str, Any], features: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields budgets, and what our connector makes of the features at each of them."""
    structure = nnx.split(nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0))))[0]

    @functools.partial(jax.jit, static_argnums=0)
    def run(bucket: int, params: Any, budget: Any) -> Any:
        return nnx.merge(structure, params)(jnp.asarray(features), bucket=bucket, budget=budget)

    supported = budgets.supported_budgets(cfg)
    stride = -(-len(supported) // _BUDGETS)
    for budget in reversed(supported[::-stride]):
        # In the program that training runs it in, so that a few are compiled.
        bucket = budgets.bucket_of(cfg, budget)
        yield budget, np.asarray(run(bucket.size, params, np.int32(budget)))[:, :budget]


def _torch_python() -> str:
    """Returns a Python that has torch and transformers."""
    if named := os.environ.get(_PYTHON):
        if python := shutil.which(Path(named).expanduser()):
            return python
        raise RequestError(f"{_PYTHON} must name a Python, got {named}: no such program.")
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return sys.executable
    raise RequestError(
        f"--torch needs {_PYTHON}, a Python that has torch and transformers, and it is not set: "
        f"python3 -m venv ~/torch && ~/torch/bin/pip install torch transformers; "
        f"export {_PYTHON}=~/torch/bin/python."
    )


def _run_torch_connector(python: str, folder: Path) -> Mapping[str, Any]:
    """Runs `run_connector.py` on a folder, and returns the content of its `result.json`."""
    # What this Python imports is not for that one, and nothing is fetched.
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [python, str(CODE / "run_connector.py"), str(folder)],
        env=kept | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    result = folder / "result.json"
    if not result.is_file():
        last = done.stderr.strip().rpartition("\n")[2] or "without a word"
        raise RequestError(
            f"{_PYTHON}: {python} ended with {done.returncode}: {last:.300}; it must have torch "
            f"and transformers."
        )
    return json.loads(result.read_text(encoding="utf-8"))


def _check_of(result: Mapping[str, Any], name: str) -> PromiseCheck:
    """Returns one line about what `run_connector.py` found out."""
    check = functools.partial(PromiseCheck, name="torch")
    if "refusal" in result:
        return check(holds=False, detail=result["refusal"])
    # budget -> largest difference and where it is, an image, a token and a channel; as JSON has no
    # NaN, a difference that is no number is null.
    found: dict[int, tuple[float, list[int]]] = {
        int(budget): (float("inf") if size is None else size, place)
        for budget, (size, place) in result["differences"].items()
    }
    broken = [budget for budget, (size, _) in found.items() if not size <= TORCH_TOLERANCE]
    shown = (broken or [*found])[:: -(-len(broken or found) // _SHOWN)]
    listed = ", ".join(f"{budget}: {found[budget][0]:.0e}" for budget in shown)
    if not broken:
        worst = max(found, key=lambda budget: found[budget][0])
        return check(
            holds=True,
            detail=f"{name} is within {TORCH_TOLERANCE:.0e} of ours at {len(found)} budgets, at "
            f"most {found[worst][0]:.1e} at {worst}; {listed}",
        )
    size, (image, token, channel) = found[broken[0]]
    return check(
        holds=False,
        detail=f"{name} differs from ours by {size:.1e} at budget {broken[0]}, most in image "
        f"{image}, token {token}, channel {channel}; above {TORCH_TOLERANCE:.0e} at {len(broken)} "
        f"of {len(found)} budgets, {listed}",
    )
