"""`parcel convert` from the terminal: what it prints, writes and returns."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.model.checkpoint.converted import big_vision, ours
from tests.model.parity_models import FOLDER

PARCEL = str(Path(sys.executable).with_name("parcel"))


def convert(*words: str | Path) -> subprocess.CompletedProcess[str]:
    arguments = [PARCEL, "convert", *map(str, words)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=600)


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "folder"),
    [("hf_paligemma2_tiny", "hf_paligemma2_tiny"),
     ("bv_paligemma2_tiny/checkpoint.npz", "bv_paligemma2_tiny")],
)  # fmt: skip
def test_check_passes_on_the_reference_and_fails_beyond_tolerance(tmp_path, source, folder):
    if not (FOLDER / folder).is_dir():
        pytest.skip(f"needs the reference model {folder} in ../shared/parity")
    done = convert(FOLDER / source, tmp_path / "a", "--check", FOLDER / folder / "expected.npz")
    assert done.returncode == 0, done.stderr
    with np.load(FOLDER / folder / "expected.npz") as file:
        expected = dict(file)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    for key in ("logits", "greedy_ids"):
        assert lines[key].endswith("ok")
    expected["logits"] = expected["logits"] * np.float32(1.01)
    np.savez(tmp_path / "wrong.npz", **expected)
    done = convert(FOLDER / source, tmp_path / "b", "--check", tmp_path / "wrong.npz")
    assert done.returncode == 1
    assert done.stderr.startswith("parcel: --check: beyond tolerance: logits (")
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["logits"].endswith("WRONG")
    assert lines["greedy_ids"].endswith("ok")


def test_there_and_back(tmp_path):
    np.savez(tmp_path / "x.npz", **big_vision())
    there = convert(tmp_path / "x.npz", tmp_path / "a")
    assert there.returncode == 0, there.stderr
    assert "parameters, digest" in there.stdout
    assert "no tokenizer.model" in there.stdout
    back = convert(tmp_path / "a", tmp_path / "b.npz")
    assert back.returncode == 0, back.stderr
    with np.load(tmp_path / "b.npz") as file:
        for key, x in big_vision().items():
            np.testing.assert_array_equal(file[key], x, strict=True)


def test_wrong_requests_are_the_callers_mistake(tmp_path):
    folder = ours(tmp_path / "ours")
    (tmp_path / "words.txt").write_text("hello")
    target = tmp_path / "out"
    for words, told in (
        ([tmp_path / "none", target], "SRC must be an .npz of big_vision"),
        ([tmp_path / "words.txt", target], "got something else"),
        ([target], "arguments must be SRC and DST"),
        ([target, "--siglip", "x.npz"], "--siglip and --gemma must be given together"),
        ([folder, target, "--dtype", "int8"], "--dtype must be float32 or bfloat16"),
        ([folder, target, "--tokenizer", "t.model"], "--tokenizer is for imports"),
        ([folder, folder], "DST must not exist yet"),
        ([folder, target, "--check", "gone.npz"], "--check must be an .npz file"),
    ):
        done = convert(*words)
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    assert not target.exists()


def test_a_file_that_lacks_parameters_is_a_failure_in_one_line(tmp_path):
    arrays = big_vision()
    del arrays["params/img/head/bias"]
    np.savez(tmp_path / "x.npz", **arrays)
    done = convert(tmp_path / "x.npz", tmp_path / "out")
    assert done.returncode == 1
    assert "missing ['img/head/bias'] and unknown []" in done.stderr
    assert done.stderr.count("\n") == 1
