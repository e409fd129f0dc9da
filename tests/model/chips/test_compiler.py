"""Tests of the child process that compiles, of the outcomes that are kept, and of refusals."""

import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path

import jax
import pytest

from infra.chips.topology import Topology
from model import presets
from model.chips import programs
from model.chips.compiler import PYTHON, CompilationError, Compiler, CompilerMissingError
from model.chips.outcome import CompilationOutcome
from model.chips.programs import (
    AnswerProgram,
    AttentionProgram,
    HeldOutProgram,
    TowerProgram,
    TrainProgram,
)
from model.chips.worker import missing_compiler
from model.connector.config import ConnectorConfig
from model.train.config import TrainConfig
from perf.attention import AttentionKernel
from perf.programs import PromptProgram
from tests.slices import deep_slice

TINY = presets.tiny(ConnectorConfig(kind="parcel"))
GPU, TPU = Topology.parse("h100:2"), Topology.parse("v5e:2x2")
TRAIN = TrainConfig(batch_size=8, text_len=16)
FULL = TINY.vision.num_patches
PROGRAMS = {
    "train": TrainProgram(model=TINY, train=TRAIN, tokens=FULL),
    "held out": HeldOutProgram(model=TINY, train=TRAIN, tokens=FULL),
    "answers": AnswerProgram(model=TINY, budget=FULL, rows=4, text_len=16, new_tokens=8),
    "tower": TowerProgram(model=TINY, rows=4),
    "attention": AttentionProgram(model=TINY, budget=FULL, rows=8),
    "prefill": PromptProgram(model=TINY, budget=FULL, rows=2, text_len=16),
    "tokens": PromptProgram(model=TINY, budget=FULL, rows=2, text_len=16, new_tokens=4),
    "kernel": AttentionKernel(implementation="ours", rows=2, length=32, backward=False),
}


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is not None, reason="a plugin is installed here"
)
def test_without_its_compiler_a_chip_is_refused_with_the_cure(monkeypatch, tmp_path: Path):
    monkeypatch.delenv(PYTHON, raising=False)
    with (
        Compiler(tmp_path) as compiler,
        pytest.raises(CompilerMissingError, match=r"'\.\[compilers\]', or name .* PARCEL_CHIP_PY"),
    ):
        compiler.outcome(PROGRAMS["train"], GPU)


def test_a_python_that_cannot_run_the_child_is_an_error_of_one_line(tmp_path: Path):
    with (
        Compiler(tmp_path, "/bin/false") as compiler,
        pytest.raises(CompilationError, match=r"process, /bin/false, ended with 1"),
    ):
        compiler.outcome(PROGRAMS["train"], GPU)


def test_an_outcome_that_an_earlier_version_kept_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Compiler, "_version", lambda self, topology: "1")
    compiler = Compiler(tmp_path, "/bin/false")
    compiler._digest_file(PROGRAMS["train"], GPU).write_text("digest")
    kept = {"memory_bytes": 5.0, "compile_s": 1.0, "flops": 2.0, "touched_bytes": 3.0}
    (tmp_path / "digest.json").write_text(json.dumps(kept))
    outcome = compiler.cached_outcome(PROGRAMS["train"], GPU)
    assert outcome == CompilationOutcome(memory_bytes=5.0, compile_s=1.0)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("num_chips", [1, 2])
def test_a_program_is_traced_for_its_chips_and_not_for_this_machine(
    name: str, num_chips: int, monkeypatch: pytest.MonkeyPatch
):
    def asked() -> str:
        raise AssertionError("the process's own device decides what is lowered")

    # CPUs stand for the chips, so that no compiler is needed.
    for module in (programs, sys.modules[type(PROGRAMS[name]).__module__]):
        monkeypatch.setattr(
            module, "devices_of", lambda _: jax.devices()[:num_chips], raising=False
        )
    jax.clear_caches()
    monkeypatch.setattr(jax, "default_backend", asked)
    assert PROGRAMS[name].lower(Topology("h100", (num_chips,))).text


def test_chips_that_do_not_divide_a_batch_are_refused():
    expected = r"batch_size must be a multiple of the 3 chips of h100:3, got 8"
    with pytest.raises(ValueError, match=expected):
        PROGRAMS["train"].lower(Topology("h100", (3,)))


def has_compiler(topology: Topology) -> bool:
    """Whether some Python here compiles for a topology; one that is named is trusted."""
    return PYTHON in os.environ or not missing_compiler(topology)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "topology"), deep_slice([*itertools.product(PROGRAMS, (GPU, TPU))], 3)
)
def test_each_program_compiles_once_for_chips_that_are_not_here(
    name: str, topology: Topology, tmp_path: Path
):
    if not has_compiler(topology):
        pytest.skip(missing_compiler(topology))
    with Compiler(tmp_path) as compiler:
        try:
            assert compiler.cached_outcome(PROGRAMS[name], topology) is None
        except CompilerMissingError as error:
            pytest.skip(str(error))
        outcome = compiler.outcome(PROGRAMS[name], topology)
    assert 0 < (outcome.argument_bytes or 0) < outcome.memory_bytes < 2**30
    if topology == TPU:
        assert 0 < (outcome.compute_s or 0) < 0.1
    else:
        assert outcome.compute_s is None
    # Of these, only training gathers weights; the loss of all rows is a sum of one number.
    assert ((outcome.traffic_bytes or 0) > 1000) == (name == "train")
    assert compiler.num_compiled == 1
    (digest,) = tmp_path.glob("*.digest")
    with Compiler(tmp_path, os.environ.get(PYTHON) or sys.executable) as again:
        assert again.cached_outcome(PROGRAMS[name], topology) == outcome
        digest.unlink()
        # Of other code, say, it may still be the same program.
        assert again.outcome(PROGRAMS[name], topology) == outcome
        assert again.num_compiled == 0
        # What one chip computes is one program in slices of all sizes.
        if name not in ("train", "held out"):
            larger = Topology(topology.kind, tuple(2 * side for side in topology.shape))
            assert again.outcome(PROGRAMS[name], larger) == outcome
            assert again.num_compiled == 0
