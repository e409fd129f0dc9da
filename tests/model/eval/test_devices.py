"""Evaluations on several devices, and in parts: the answers are those of one device."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from model import vlm
from model.decode.config import DecodeConfig, Decoding
from model.decode.memory import row_bytes, rows_that_fit
from model.decode.rows import decoding_params
from model.eval import run
from model.presets import paligemma2_3b
from tests.model.tiny_data import color_record, write_dataset
from tests.model.tiny_model import tiny_model, write_checkpoint

BUDGETS = (16, 64)

ANSWER = """
import sys
import jax
jax.config.update("jax_disable_most_optimizations", True)
from tests.model.eval.test_devices import answer
assert jax.local_device_count() == int(sys.argv[1])
answer(*sys.argv[2:])
"""


def answer(checkpoint: str, data: str, root: str) -> None:
    """Answers a split greedily, by beam search and by draws, on all devices of this process."""
    devices: set[jax.Device] = set()
    decode_rows = run.decode_rows

    def noted(*args, **options):
        tokens = decode_rows(*args, **options)
        devices.update(tokens.sharding.device_set)
        return tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "decode_rows", noted)
        for name, decoding, budgets in (
            ("greedy", Decoding(), BUDGETS),
            ("beams", Decoding(beams=2), (16,)),
            ("draws", Decoding(temperature=1.0), (16,)),
        ):
            out = {budget: f"{root}/{name}-{budget}" for budget in budgets}
            for folder in out.values():
                Path(folder).mkdir(parents=True)
            config = DecodeConfig(batch_size=3, text_len=6, decoding=decoding)
            for _ in run.predict(checkpoint, data=data, config=config, out=out):
                pass
    assert len(devices) == jax.local_device_count()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that answers nonsense."""
    return write_checkpoint(tmp_path_factory.mktemp("given"), tiny_model("parcel", (30, 64)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A split of pictures and clips: eight batches of three."""
    clips = [color_record(i, images=2, part="clips") for i in range(5)]
    parts = {"clips": clips, "color": [color_record(i) for i in range(17)]}
    return write_dataset(tmp_path_factory.mktemp("data") / "data", parts)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A split of pictures alone: six batches of three, the last with two records."""
    parts = {"color": [color_record(i) for i in range(17)]}
    return write_dataset(tmp_path_factory.mktemp("pictures") / "data", parts)


def contents(root: Path) -> dict[str, bytes]:
    return {
        folder.name: (folder / "predictions.jsonl").read_bytes()
        for folder in sorted(root.iterdir())
    }


@pytest.mark.slow
def test_one_two_and_eight_devices_give_the_same_answers(
    checkpoint: str, pictures: str, tmp_path: Path
):
    answer(checkpoint, pictures, str(tmp_path / "1"))
    one = contents(tmp_path / "1")
    assert len(one) == 4
    assert one["greedy-16"] != one["draws-16"]
    # Six batches: on two devices three rounds, on eight a round in which two have nothing to do.
    for count in (2, 8):
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
        root = str(tmp_path / str(count))
        subprocess.run(
            [sys.executable, "-c", ANSWER, str(count), checkpoint, pictures, root],
            env={**os.environ, "XLA_FLAGS": flags},
            cwd=Path(__file__).parents[3],
            check=True,
        )
        assert contents(tmp_path / str(count)) == one


def test_a_batch_that_does_not_fit_is_decoded_in_parts_with_the_same_answers(
    checkpoint: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sizes: list[int] = []
    decode_rows = run.decode_rows

    def noted(*args, **options):
        sizes.append(len(args[2].text))
        return decode_rows(*args, **options)

    def answer(root: Path) -> dict[str, bytes]:
        out = {budget: str(root / str(budget)) for budget in BUDGETS}
        for folder in out.values():
            Path(folder).mkdir(parents=True)
        config = DecodeConfig(batch_size=4, text_len=6)
        for _ in run.predict(checkpoint, data=data, config=config, out=out):
            pass
        return contents(root)

    monkeypatch.setattr(run, "decode_rows", noted)
    whole = answer(tmp_path / "whole")
    assert set(sizes) == {4}
    sizes.clear()
    model = tiny_model("parcel", (30, 64))
    needed = row_bytes(model, 64, num_images=1, text_len=6, new_tokens=6, beams=1)
    # Room for two pictures' rows; of clips, a row needs more.
    monkeypatch.setattr(run, "free_bytes", lambda device: 2.5 * needed)
    assert answer(tmp_path / "parts") == whole
    # Of 17 pictures, four batches take two parts each and the last picture one; each of five clips
    # is a part. No part is all filler.
    num = len(BUDGETS)
    assert {size: sizes.count(size) for size in set(sizes)} == {2: 9 * num, 1: 5 * num}


def test_prompts_are_padded_to_one_of_a_few_lengths():
    lengths = {run.prompt_length(longest, 128) for longest in range(1, 200)}
    assert lengths == {32, 64, 128}
    assert [run.prompt_length(n, 64) for n in (5, 16, 17, 33, 70)] == [16, 16, 32, 64, 64]
    assert run.prompt_length(5, 6) == 6
    assert run.prompt_length(9, 6) == 6


def test_rows_that_fit_divide_the_batch():
    assert rows_that_fit(32, 1.0, None) == 32
    assert rows_that_fit(32, 1.0, 32.0) == 32
    assert rows_that_fit(32, 1.0, 31.0) == 16
    assert rows_that_fit(24, 1.0, 13.0) == 12
    assert rows_that_fit(32, 1.0, 0.5) == 1


def test_memory_of_a_row_grows_with_frames_and_beams():
    model = paligemma2_3b()
    sizes = {"num_images": 1, "text_len": 64, "new_tokens": 64, "beams": 1}
    picture = row_bytes(model, 256, **sizes)
    video = row_bytes(model, 256, **{**sizes, "num_images": 16})
    assert 0.1 * 2**30 < picture < 0.5 * 2**30
    # Of the video, the logits of a block of its 4,160 tokens exist at a time, not those of all.
    assert 1.5 * 2**30 < video < 2 * 2**30
    assert row_bytes(model, 256, **{**sizes, "beams": 4}) > picture


def test_matrices_are_cast_once_and_scales_stay_float32():
    model = tiny_model("parcel", (30, 64))
    low = dataclasses.replace(model, dtype="bfloat16")
    params = vlm.init_params(model, 0)
    cast = decoding_params(low, params)
    dtypes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.dtype.name
        for path, leaf in jax.tree_util.tree_leaves_with_path(cast)
    }
    for path, dtype in dtypes.items():
        stays = path.endswith(("/scale", "/bias")) or path.startswith("connector/")
        assert dtype == ("float32" if stays else "bfloat16"), path
    assert dtypes["text/embedding"] == dtypes["text/blocks/gate"] == "bfloat16"
    # What is computed with them is what was computed before.
    batch = np.zeros((2, 1, 32, 32, 3), np.uint8)
    text = np.array([[2, 7, 8, 0], [2, 9, 0, 0]], np.int32)
    prompt = vlm.Prompt(batch, text, text > 0)
    inputs = prompt, vlm.Slots(16, 16)
    before = vlm.text_logits(vlm.structure(low), params, *inputs)
    after = vlm.text_logits(vlm.structure(low), cast, *inputs)
    np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
