"""`parcel model predict` from files to an answer, on a tiny checkpoint that knows three colours."""

import io
import json
import re
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from flows.lookup.predict import draw_answer, read_pixels
from flows.lookup.runs import end_run_record
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
from model.data.pixels import decode_images
from model.seeds import Seeds
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from pipelines.images.square import ImageSpec, prepare_image
from pipelines.records.schema import Record
from tests.model.tiny_data import COLORS, color_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model

pytestmark = pytest.mark.usefixtures("fast_compiler")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parcel checkpoint of the tiny model, trained until it tells the colours apart."""
    folder = tmp_path_factory.mktemp("predict")
    data = write_dataset(folder / "data", {"color": [color_record(i) for i in range(12)]})
    out = folder / "checkpoint"
    out.mkdir()
    train = TrainConfig(
        batch_size=6, total_steps=60, peak_lr=2e-2, text_len=24, budgets=(16, 30), log_steps=60
    )
    paths = StagePaths(
        data=data,
        tokenizer=write_tokenizer(folder / "tokenizer.model"),
        scratch=str(folder / "scratch"),
        out=str(out),
    )
    for _ in fit(tiny_model("parcel", (30, 64)), train, paths, Seeds.of(1)):
        pass
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one colour, of unequal sides, and a video of blue."""
    folder = tmp_path_factory.mktemp("files")
    for name, color in COLORS.items():
        Image.new("RGB", (60, 40), color).save(folder / f"{name}.png")
    with av.open(str(folder / "blue.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        frame = np.full((48, 64, 3), COLORS["blue"], np.uint8)
        for _ in range(50):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    (folder / "broken.png").write_bytes((folder / "red.png").read_bytes()[:60])
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.fixture
def predict(checkpoint: Path, parcel):
    def call(*words: object, prompt: str = "which color?") -> tuple[int, str, str]:
        return parcel("model", "predict", checkpoint, *words, "--prompt", prompt)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("color", COLORS)
def test_tells_the_color_of_an_image(predict, files: Path, color: str):
    assert predict(files / f"{color}.png", "--budget", 16) == (0, f"{color}\n", "")


def test_json_says_what_ran(predict, files: Path):
    code, out, _ = predict(files / "red.png", "--budget", 24, "--max-tokens", 9, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["answer"], found["budget"], found["bucket"]) == ("red", 24, 30)
    assert (found["tokens"][-1], found["images"]) == (1, 1)
    assert set(found["seconds"]) == {"load", "read", "compile", "answer"}
    assert all(value >= 0 for value in found["seconds"].values())


@pytest.mark.slow
def test_pair_video_beams_and_draws(predict, files: Path):
    pair = predict(files / "red.png", files / "red.png", "--budget", 30, "--beams", 2, "--json")
    assert (pair[0], json.loads(pair[1])["images"]) == (0, 2)
    video = files / "blue.mp4", "--budget", 16, "--frames", 4, "--stride", 10
    assert json.loads(predict(*video, "--json")[1])["images"] == 4
    drawn = [predict(*video, "--temperature", 3, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_checkpoint_may_be_an_artifact(
    checkpoint: Path,
    files: Path,
    tmp_path: Path,
    parcel,
):
    store = Store(tmp_path / "store")
    step = Recipe(kind="checkpoint", name="c", inputs={}, config=None, code="0" * 64, seed=0)
    with store.lock(step.key):
        attempt = Attempt(store, step)
        shutil.copytree(checkpoint, attempt.path, dirs_exist_ok=True)
        key = attempt.commit({}).key
    words = files / "green.png", "--prompt", "which color?", "--budget", 30
    done = parcel("model", "predict", key, *words, "--store", tmp_path / "store")
    assert done == (0, "green\n", "")
    code, _, err = parcel("model", "predict", "nothing", *words, "--store", tmp_path / "store")
    assert (code, err.count("\n")) == (2, 1)
    assert "checkpoint must be" in err


def test_a_checkpoint_is_named_by_its_cell_as_a_release_is(
    checkpoint: Path, files: Path, tmp_path: Path, parcel
):
    store = Store(tmp_path / "store")

    def commit(kind: str, name: str, config: object = None, folder: Path | None = None, **inputs):
        read = {role: made.as_input for role, made in inputs.items()}
        step = Recipe(kind=kind, name=name, inputs=read, config=config, code="0" * 64, seed=0)
        attempt = Attempt(store, step)
        (attempt.path / "name.txt").write_text(name)
        if folder:
            shutil.copytree(folder, attempt.path, dirs_exist_ok=True)
        return attempt.commit({})

    cells = {}
    for seed in (5, 6):
        tuned = commit("checkpoint", f"transfer {seed}", seed, folder=checkpoint)
        answers = commit("predictions", f"evaluate {seed}", checkpoint=tuned)
        cells[f"colors/mqt/16/{seed}"] = commit("scores", f"score {seed}", predictions=answers)
    results = commit("results", "results", **cells)
    end_run_record(store, {"name": "toy"}, "1" * 12, results=results.key, artifacts=[], failed=[])

    words = files / "green.png", "--prompt", "which color?", "--budget", 30, "--store", store.uri
    assert parcel("model", "predict", "toy/colors/mqt/16/6", *words) == (0, "green\n", "")
    release = "--out", tmp_path / "x", *words[-2:]
    for command, options in ((["model", "predict"], words), (["release"], release)):
        code, _, err = parcel(*command, "toy/colors/mqt/16", *options)
        assert code == 2
        assert re.search("2 seeds; .*toy/colors/mqt/16/5, toy/colors/mqt/16/6", err)
        code, _, err = parcel(*command, "toy/colors/mqt/16/1", *options)
        assert code == 2
        assert re.search("colors/mqt/16 .* 5, 6, got '1'", err)
    code, _, err = parcel("lineage", "trace", "toy/colours/mqt/16", "--store", store.uri)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"did you mean colors/mqt/16\? .*colors/mqt/16", err)


def test_a_table_without_cells_says_so(tmp_path: Path, parcel):
    store = Store(tmp_path / "store")
    table = Attempt(store, Recipe(kind="results", name="results", config=None, code="0" * 64))
    (table.path / "results.json").write_text("{}")
    key = table.commit({}).key
    end_run_record(store, {"name": "toy"}, "1" * 12, results=key, artifacts=[], failed=[])
    code, _, err = parcel("lineage", "trace", "toy/a/b/1", "--store", store.uri)
    assert code == 2
    assert re.fullmatch("parcel: .*toy .*'a/b/1'.*\n", err)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["absent.png", "--budget", 16], r"absent.png: No such file"),
        (["broken.png", "--budget", 16], r"broken.png is refused: undecodable"),
        (["notes.txt", "--budget", 16], r"notes.txt is neither an image \(.*\) nor a video: "),
        (["blue.mp4", "red.png", "--budget", 16], r"a video must be alone, got .* among 2 files"),
        (["red.png", "--budget", 17], r"budget must be one of 16, 18, .*, 64 .*, got 17"),
        (
            ["red.png", "--budget", "most"],
            r"--budget': Input should be a valid integer.*, got 'most'",
        ),
        (["red.png", "--budget", 16, "--beams", 0], r"beams must be at least 1"),
        (["red.png", "--budget", 16, "--source", "x"], r"source must be one of .*, got 'x'"),
        (["blue.mp4", "--budget", 16, "--frames", 0], r"num_frames.* must be positive, got 0"),
        (["red.png", "--budget", 16, "--tokenizer", "no"], r"tokenizer must be .* got no"),
    ],
)
def test_wrong_requests_are_one_line(
    predict, files: Path, monkeypatch: pytest.MonkeyPatch, words: list, told: str
):
    monkeypatch.chdir(files)
    code, out, err = predict(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("parcel: ")
    assert re.search(told, err), err


def test_checkpoint_without_a_tokenizer(
    checkpoint: Path,
    files: Path,
    tmp_path: Path,
    parcel,
):
    bare = tmp_path / "bare"
    shutil.copytree(checkpoint, bare)
    pieces = (bare / "tokenizer.model").rename(tmp_path / "pieces.model")
    words = bare, files / "red.png", "--prompt", "which color?", "--budget", 16
    code, _, err = parcel("model", "predict", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "tokenizer" in err
    assert parcel("model", "predict", *words, "--tokenizer", pieces)[:2] == (0, "red\n")


@pytest.mark.parametrize("source", [None, "nlvr"])
def test_pixels_are_those_of_the_record(files: Path, tmp_path: Path, source: str | None):
    rng = np.random.default_rng(0)
    noise = tmp_path / "noise.png"
    Image.fromarray(rng.integers(0, 255, (90, 70, 3), dtype=np.uint8)).save(noise)
    spec = ImageSpec(image_px=32, antialias=source is None)  # "nlvr" is not filtered.
    record = Record(
        id="x",
        images=(prepare_image(noise.read_bytes(), spec)[0],),
        prefix="",
        suffixes=(),
        task="t",
        source="noise.png",
        source_sha256="0",
    )
    stored = decode_images(record.images, 1, 32)
    np.testing.assert_array_equal(read_pixels([str(noise)], 32, source=source), stored)


def test_draws_boxes_and_masks_on_the_image(checkpoint: Path, tmp_path: Path):
    path, out = tmp_path / "black.png", tmp_path / "out.png"
    Image.new("RGB", (100, 50)).save(path)
    box = "<loc0256><loc0512><loc0768><loc1023>"
    assert draw_answer([str(path)], f"{box} cat ; {box}", checkpoint, str(out)) == 2
    drawn = np.asarray(Image.open(io.BytesIO(out.read_bytes())))
    ys, xs = np.nonzero(drawn.any(axis=-1))
    assert (ys.min(), ys.max(), xs.min(), xs.max()) == (12, 36, 50, 99)
    # Padded, the middle half of the square is the whole height of the picture.
    assert draw_answer([str(path)], box, checkpoint, str(out), aspect="pad") == 1
    drawn = np.asarray(Image.open(io.BytesIO(out.read_bytes())))
    ys, xs = np.nonzero(drawn.any(axis=-1))
    assert drawn.shape == (50, 100, 3)
    assert (ys.min(), ys.max(), xs.min(), xs.max()) == (0, 49, 50, 99)
