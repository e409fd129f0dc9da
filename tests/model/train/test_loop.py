"""Training end to end on tiny data: it learns, resumes bit-exactly, and refuses what cannot fit."""

import dataclasses
import gc
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from infra.progress import COMPILING, Progress
from model import vlm
from model.checkpoint.digest import flatten_params
from model.checkpoint.folder import load_config
from model.decode.config import DecodeConfig
from model.eval.run import predict
from model.eval.score import score
from model.seeds import Seeds
from model.train.config import TrainConfig
from model.train.loop import PeriodicAction, StagePaths, fit
from model.train.start import starting_params
from tests.model.tiny_data import color_record, mask_record, write_dataset, write_tokenizer
from tests.model.tiny_model import tiny_model, without_compiling

TRAIN = TrainConfig(
    batch_size=6, total_steps=7, text_len=16, save_steps=2, log_steps=1, warmup=0.0, peak_lr=3e-3
)

MODEL = tiny_model("parcel", (30, 64))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("inputs")
    data = write_dataset(root / "data", {"color": [color_record(i) for i in range(11)]})
    tokenizer = write_tokenizer(root / "tokenizer.model")
    return {"data": data, "tokenizer": tokenizer}


def run(
    root: Path, inputs: dict[str, Any], model=None, train=TRAIN, profile=(0, 0)
) -> Iterator[Progress]:
    (root / "out").mkdir(parents=True, exist_ok=True)
    paths = StagePaths(scratch=str(root / "scratch"), out=str(root / "out"), **inputs)
    model = model or tiny_model("parcel", (30, 64))
    return without_compiling(fit(model, train, paths, Seeds.of(5), profile=profile))


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (False, False, [6, 9]),
        (True, False, [5, 6, 9]),
        (False, True, [6, 9, 10]),
        (True, True, [5, 6, 9, 10]),
    ],
)
def test_an_action_is_due_at_its_interval_and_at_either_end_if_it_says_so(first, last, expected):
    action = PeriodicAction(3, lambda update: None, after_first=first, after_last=last)
    # An attempt that resumed after 4 of 10 updates.
    assert [done for done in range(5, 11) if action.is_due(done, 4, 10)] == expected


def test_an_action_of_the_last_update_alone_is_due_once():
    action = PeriodicAction(5, lambda update: None)
    assert [done for done in range(1, 6) if action.is_due(done, 0, 5)] == [5]
    never = PeriodicAction(5, lambda update: None, after_last=False)
    assert not any(never.is_due(done, 0, 5) for done in range(1, 6))


@pytest.mark.slow
def test_killed_and_resumed_equals_undisturbed(tmp_path: Path, inputs: dict[str, Any]):
    train = dataclasses.replace(TRAIN, dropout=0.2)
    steps = [p.done for p in run(tmp_path / "a", inputs, train=train)]
    assert steps == list(range(1, 8))
    for progress in run(tmp_path / "b", inputs, train=train):
        if progress.done == 5:
            break
    assert not (tmp_path / "b/out/digest.txt").exists()
    (whole,) = (tmp_path / "b/scratch/resume").glob("4-*")
    half = shutil.copytree(whole, whole.with_name("6-half"))
    (half / "0.json").unlink()
    told = [(p.done, p.happened) for p in run(tmp_path / "b", inputs, train=train)]
    assert told == [(4, True), (5, False), (6, False), (7, False)]
    digests = [(tmp_path / name / "out/digest.txt").read_text() for name in "ab"]
    assert digests[0] == digests[1]
    rows = (tmp_path / "b/out/metrics.jsonl").read_text().splitlines()
    told = [json.loads(row) for row in rows]
    assert [row["step"] for row in told] == steps
    assert told[3]["lost"]["again"] == 0.0 < told[4]["lost"]["again"]  # Step 5, which was undone.
    assert all(a["seconds"] <= b["seconds"] for a, b in itertools.pairwise(told))
    assert not (tmp_path / "b/out/profile").exists()
    assert load_config(tmp_path / "a/out") == tiny_model("parcel", (30, 64))


@pytest.mark.slow
def test_a_restored_state_is_the_only_one_in_memory(tmp_path: Path, inputs: dict[str, Any]):
    for progress in run(tmp_path, inputs):
        if progress.done == 5:
            break
    del progress
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    # No first state is made, so what it would start from is not even looked for.
    resumed = run(tmp_path, {**inputs, "init": str(tmp_path / "gone")})
    assert next(resumed).done == 5
    size = sum(4 * leaf.size for _, leaf in flatten_params(vlm.abstract_params(MODEL)))
    live = sum(array.nbytes for array in jax.live_arrays()) - before
    # Parameters and two moments, once.
    assert 3 * size <= live < 3.5 * size
    resumed.close()


@pytest.mark.slow
def test_it_learns_and_scores_itself(tmp_path: Path, inputs: dict[str, Any]):
    train = TrainConfig(batch_size=12, total_steps=60, text_len=16, peak_lr=1e-2, log_steps=20)
    losses = [p.loss for p in run(tmp_path, inputs, tiny_model(), train)]
    assert losses[-1] < 0.2 < losses[0]
    out = tmp_path / "score"
    out.mkdir()
    config = DecodeConfig(batch_size=4, text_len=16)
    ckpt, data = str(tmp_path / "out"), inputs["data"]
    told = list(predict(ckpt, data=data, config=config, out={64: str(out)}))
    assert [p.note for p in told if not p.done] == [COMPILING]
    steps = list(without_compiling(iter(told)))
    assert [(p.done, p.total) for p in steps] == [(4, 11), (8, 11), (11, 11)]
    list(score({out: out}, data=data, metric="exact_match"))
    assert json.loads((out / "score.json").read_text()) == {
        "metric": "exact_match",
        "score": 100.0,
        "num": 11,
        "sum": 11.0,
    }
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"color/{i:03d}" for i in range(11)]
    assert rows[1]["prediction"] == "green"
    assert rows[1]["answers"] == ["green"]
    with pytest.raises(ValueError, match="budget must be one of 64"):
        list(predict(ckpt, data=data, config=config, out={16: str(out)}))


@pytest.mark.slow
def test_pictures_and_clips_are_learned_from_and_answered_apart(tmp_path: Path, inputs):
    pictures = [color_record(i) for i in range(7)]
    clips = [color_record(i, images=3, part="clips") for i in range(5)]
    windows = [
        dataclasses.replace(clip, images=clip.images + pictures[0].images * 3, num_windows=2)
        for clip in clips
    ]
    data = write_dataset(tmp_path / "both", {"clips": windows, "color": pictures})
    train = dataclasses.replace(TRAIN, total_steps=4)
    list(run(tmp_path / "fit", {**inputs, "data": (data,)}, tiny_model(), train, (2, 3)))
    assert list((tmp_path / "fit/out/profile").rglob("*.xplane.pb"))
    config, ckpt = DecodeConfig(batch_size=3, text_len=16), str(tmp_path / "fit/out")

    def answers(folder: str) -> list[str]:
        out = tmp_path / f"{Path(folder).name}-score"
        out.mkdir()
        list(predict(ckpt, data=folder, config=config, out={64: str(out)}))
        return (out / "predictions.jsonl").read_text().splitlines()

    apart = [
        line
        for name, records in (("clips", clips), ("color", pictures))
        for line in answers(write_dataset(tmp_path / name, {name: records}))
    ]
    assert answers(data) == apart


@pytest.mark.slow
def test_connector_is_fresh_and_the_rest_is_loaded(monkeypatch: pytest.MonkeyPatch):
    from model.train import start

    vanilla = starting_params(tiny_model(), None, 1)
    monkeypatch.setattr(start, "load_params", lambda path: vanilla)
    started = dict(flatten_params(starting_params(tiny_model("parcel"), "checkpoint", 2)))
    for path, value in flatten_params(vanilla):
        np.testing.assert_array_equal(started[path], value, err_msg=path)
    assert {path for path in started if path not in dict(flatten_params(vanilla))} == {
        path for path in started if path.startswith("connector/")
    }
    broken = {key: value for key, value in vanilla.items() if key != "projector"}
    monkeypatch.setattr(start, "load_params", lambda path: broken)
    with pytest.raises(ValueError, match=r"missing \['projector/"):
        starting_params(tiny_model(), "checkpoint", 2)


def test_vocabulary_must_hold_the_tokenizer(tmp_path: Path, inputs: dict[str, Any]):
    model = tiny_model()
    small = dataclasses.replace(model, text=dataclasses.replace(model.text, vocab_size=1000))
    with pytest.raises(ValueError, match=r"text\.vocab_size .*at least 1\d\d\d .*got 1000"):
        next(run(tmp_path, inputs, small))


@pytest.mark.slow
def test_masks_are_trained_on(tmp_path: Path, inputs: dict[str, Any]):
    from model.masks.codec import MaskCodec
    from model.masks.config import MaskCodecConfig
    from model.masks.training import collect_crops, fit_codec

    data = write_dataset(tmp_path / "masks", {"segment": [mask_record(i) for i in range(5)]})
    crops = collect_crops([data])
    assert crops.shape == (5, 64, 64)
    list(fit_codec(crops, MaskCodecConfig(width=8, embed_dim=8, train_steps=6), str(tmp_path), 0))
    codec = str(tmp_path / "mask_codec.npz")
    train = TrainConfig(batch_size=3, total_steps=2, text_len=48)
    given = {**inputs, "data": (data,), "mask_codec": codec}
    assert [p.total for p in run(tmp_path / "fit", given, tiny_model(), train)] == [2, 2]
    out = tmp_path / "score"
    out.mkdir()
    config = DecodeConfig(batch_size=5, text_len=24)
    list(predict(str(tmp_path / "fit/out"), data=data, config=config, out={64: str(out)}))
    with pytest.raises(ValueError, match="metric 'miou' needs a mask codec"):
        next(score({out: out}, data=data, metric="miou"))
    decode_mask = MaskCodec.load(codec).decode
    list(score({out: out}, data=data, metric="miou", decode_mask=decode_mask))
    assert json.loads((out / "score.json").read_text())["num"] == 5
