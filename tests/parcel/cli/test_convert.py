"""`parcel model convert` from the terminal: what it prints, writes and returns."""

import functools

import numpy as np
import pytest

from tests.model.checkpoint.converted import big_vision, ours
from tests.model.parity_models import FOLDER

pytestmark = pytest.mark.usefixtures("fast_compiler")


@pytest.fixture
def convert(parcel):
    return functools.partial(parcel, "model", "convert")


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("hf_paligemma2_tiny", "hf_paligemma2_tiny"),
        ("bv_paligemma2_tiny/checkpoint.npz", "bv_paligemma2_tiny"),
    ],
)
def test_check_passes_on_the_reference_and_fails_beyond_tolerance(
    convert, tmp_path, source, folder
):
    if not (FOLDER / folder).is_dir():
        pytest.skip(f"needs the reference model {folder} in ../shared/parity")
    done = convert(FOLDER / source, tmp_path / "a", "--check", FOLDER / folder / "expected.npz")
    assert done.code == 0, done.err
    with np.load(FOLDER / folder / "expected.npz") as file:
        expected = dict(file)
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    for key in ("logits", "greedy_ids"):
        assert lines[key].endswith("ok")
    expected["logits"] = expected["logits"] * np.float32(1.01)
    np.savez(tmp_path / "wrong.npz", **expected)
    done = convert(FOLDER / source, tmp_path / "b", "--check", tmp_path / "wrong.npz")
    assert done.code == 1
    assert done.err.startswith("parcel: --check: beyond tolerance: logits (")
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert lines["logits"].endswith("WRONG")
    assert lines["greedy_ids"].endswith("ok")


def test_there_and_back(convert, tmp_path):
    np.savez(tmp_path / "x.npz", **big_vision())
    there = convert(tmp_path / "x.npz", tmp_path / "a")
    assert there.code == 0, there.err
    assert "parameters, digest" in there.out
    assert "no tokenizer.model" in there.out
    back = convert(tmp_path / "a", tmp_path / "b.npz")
    assert back.code == 0, back.err
    with np.load(tmp_path / "b.npz") as file:
        for key, x in big_vision().items():
            np.testing.assert_array_equal(file[key], x, strict=True)


def test_wrong_requests_are_the_callers_mistake(convert, tmp_path):
    folder = ours(tmp_path / "ours")
    (tmp_path / "words.txt").write_text("hello")
    target = tmp_path / "out"
    for words, told in (
        ([tmp_path / "none", target], "SRC must be an .npz of big_vision"),
        ([tmp_path / "words.txt", target], "got something else"),
        ([target], "arguments must be SRC and DST"),
        ([target, "--vision", "x.npz"], "--vision and --text must be given together"),
        ([folder, target, "--projector", "mlp"], "--projector is for --vision and --text"),
        ([folder, target, "--dtype", "int8"], "--dtype must be float32 or bfloat16"),
        ([folder, target, "--tokenizer", "t.model"], "--tokenizer is for imports"),
        ([folder, folder], "DST must not exist yet"),
        ([folder, target, "--check", "gone.npz"], "--check must be an .npz file"),
    ):
        done = convert(*words)
        assert done.code == 2, done.err
        assert told in done.err
        assert done.err.count("\n") == 1
    assert not target.exists()


def test_a_file_that_lacks_parameters_is_a_failure_in_one_line(convert, tmp_path):
    arrays = big_vision()
    del arrays["params/img/head/bias"]
    np.savez(tmp_path / "x.npz", **arrays)
    done = convert(tmp_path / "x.npz", tmp_path / "out")
    assert done.code == 1
    assert "missing ['img/head/bias'] and unknown []" in done.err
    assert done.err.count("\n") == 1
