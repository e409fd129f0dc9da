"""`parcel model spectral` from images to figures and numbers, on random parameters."""

import csv
import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from flows.steps.kinds.dataset import DatasetSpec
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
from model import vlm
from model.analysis import spectral
from model.checkpoint.folder import load_params, save_checkpoint
from model.data.pixels import decode_images
from pipelines.prepare.config import PrepareConfig
from pipelines.records.dataset import Dataset
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer
from tests.model.tiny_models import tiny_config

KINDS = ("parcel", "m3", "mqt")


pytestmark = pytest.mark.usefixtures("fast_compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of three connectors, and three images of stripes and noise."""
    folder = tmp_path_factory.mktemp("spectral")
    tokenizer = write_tokenizer(folder / "tokenizer.model")
    rng = np.random.default_rng(0)
    for kind in KINDS:
        cfg, out = tiny_config(kind), folder / kind
        out.mkdir()
        params = jax.tree.map(
            lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), vlm.abstract_params(cfg)
        )
        save_checkpoint(out, model=cfg, params=params, tokenizer=tokenizer, mask_codec=None)
    for i, cycles in enumerate((1, 3, 6)):
        wave = 128 + 90 * np.sin(2 * np.pi * cycles * np.arange(64) / 64)
        pixels = wave[:, None, None] + rng.normal(0, 25, (64, 48, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    (folder / "broken.png").write_bytes((folder / "0.png").read_bytes()[:80])
    write_dataset(folder / "data", {"color": [color_record(i) for i in range(7)]})
    return folder


@pytest.fixture
def spectral_of(folder: Path, parcel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    return functools.partial(parcel, "model", "spectral")


@pytest.mark.slow
def test_figures_and_numbers_of_several_checkpoints(spectral_of, folder: Path):
    others = [word for kind in KINDS[1:] for word in ("--compare", kind)]
    code, out, err = spectral_of("parcel", "0.png", "1.png", "2.png", *others, "--out", "all")
    assert (code, err) == (0, "")
    written = [Path(line).name for line in out.splitlines()]
    assert written == ["concentration.png", "profiles.png", "spectra.json", "spectra.csv"]
    for name in written[:2]:
        with Image.open(folder / "all" / name) as figure:
            assert (figure.format, figure.width > 900) == ("PNG", True)
    report = json.loads((folder / "all" / "spectra.json").read_text())
    assert report["num_images"] == 3
    curves = {
        (entry["label"], curve["what"], curve["budget"]): curve
        for entry in report["checkpoints"]
        for curve in entry["curves"]
    }
    assert set(curves) == {
        *((kind, "features", None) for kind in KINDS),
        ("parcel", "pooled", 64),
        ("parcel", "pooled", 256),
        ("parcel", "queries", 256),
        ("m3", "pooled", 64),
        ("m3", "pooled", 256),
        ("mqt", "queries", 64),
        ("mqt", "queries", 256),
    }
    assert curves["parcel", "pooled", 64] == curves["parcel", "pooled", 256] | {"budget": 64}
    assert curves["m3", "pooled", 64]["radius"] == [1, 2, 3, 4]
    assert curves["mqt", "queries", 64]["radius"] == list(range(1, 9))
    for curve in curves.values():
        assert sum(curve["normalized_power"]) == pytest.approx(1)
        assert curve["cumulative_power"][-1] == pytest.approx(1)
    with (folder / "all" / "spectra.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(curve["radius"]) for curve in curves.values())
    first = curves["parcel", "features", None]
    assert [float(row["mean_power"]) for row in rows[:8]] == first["mean_power"]


def test_numbers_are_those_of_the_model(spectral_of, folder: Path):
    code, _, _ = spectral_of(
        "m3", "--data", "data", "--limit", "3", "--budget", "16", "--out", "few"
    )
    assert code == 0
    (entry,) = json.loads((folder / "few" / "spectra.json").read_text())["checkpoints"]
    cfg = tiny_config("m3")
    (part,) = Dataset(str(folder / "data")).parts.values()
    records = [part[i] for i in (0, 2, 4)]  # 3 of 7, at even distances.
    pixels = np.stack([decode_images(record.images, 1, 32) for record in records])
    tower = jax.jit(vlm.image_features, static_argnums=0)
    features = tower(vlm.structure(cfg), load_params(folder / "m3"), pixels)
    grids = np.asarray(features)[:, 0].reshape(3, 16, 16, 12)
    pooled = grids.reshape(3, 4, 4, 4, 4, 12).mean(axis=(2, 4))
    for curve, grid in zip(entry["curves"], (grids, pooled), strict=True):
        expected = spectral.radial_mean_power(spectral.power_spectrum(grid)).mean(axis=0)
        np.testing.assert_allclose(curve["mean_power"], expected, rtol=1e-4)


@pytest.mark.slow
def test_the_limit_is_spread_over_the_images_of_records(spectral_of, folder: Path):
    def power(name: str, *, images: int) -> list[float]:
        write_dataset(folder / name, {"color": [color_record(i, images=images) for i in range(2)]})
        assert spectral_of("m3", "--data", name, "--limit", "2", "--out", f"{name}-out")[0] == 0
        (entry,) = json.loads((folder / f"{name}-out/spectra.json").read_text())["checkpoints"]
        return entry["curves"][0]["mean_power"]

    assert power("clips", images=3) == power("singles", images=1)


def test_the_papers_setting_is_every_picture_of_chartqas_questions_by_people(
    spectral_of, folder: Path
):
    store = Store(folder / "store")
    # More pictures than the usual limit; beside another split, and a part of the same one.
    for split, limit, count in (
        ("test_augmented", None, 71),
        ("test_human", None, 67),
        ("test_human", 3, 3),
    ):
        prepare = PrepareConfig(image_px=32, limit=limit)
        spec = DatasetSpec(reader="chartqa", path="", split=split, prepare=prepare)
        records = [color_record(i) for i in range(count)]
        made = write_dataset(folder / f"of-{count}", {"color": records})
        attempt = Attempt(store, Recipe(kind="dataset", name=f"prepare {split}", config=spec))
        shutil.copytree(made, attempt.path, dirs_exist_ok=True)
        attempt.commit({})
    code, _, err = spectral_of(
        "m3", "--paper", "--budget", "16", "--store", "store", "--out", "own"
    )
    assert (code, err) == (0, "")
    assert json.loads((folder / "own" / "spectra.json").read_text())["num_images"] == 67


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parcel"], "must give at least one image"),
        (["parcel", "nowhere.png"], "nowhere.png: No such file"),
        (["parcel", "broken.png"], "broken.png"),
        (["nowhere", "0.png"], "got nowhere: no such folder"),
        (["m3", "0.png", "--budget", "18"], "budget must be one of 4, 16, 64, 256"),
        (["m3", "--data", "m3"], "--data must be a prepared dataset, got m3"),
        (["m3", "0.png", "--paper"], "--paper must be without IMAGE"),
        (
            ["m3", "--paper", "--store", "empty"],
            "--paper needs ChartQA's test_human at 32 px in empty",
        ),
        (["m3", "0.png", "--limit", "0"], "should be greater than or equal to 1"),
    ],
)
def test_refusals_are_one_line(spectral_of, words: list[str], message: str):
    code, _, err = spectral_of(*words, "--out", "refused")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not Path("refused").exists()
