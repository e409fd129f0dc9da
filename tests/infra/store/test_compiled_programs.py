"""Compiled programs of a machine: shared, bounded, and never other ones than would be compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.store.compiled_programs import autotuning_digests, share_compiled_programs
from infra.store.digest import file_sha256
from tests.model.tiny_data import color_record, write_dataset, write_tokenizer


def test_the_users_own_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    share_compiled_programs(tmp_path)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == ""
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("PARCEL_PROGRAMS_GB", "1e-8")
    path = tmp_path / "kind" / "one-cache"
    path.parent.mkdir()
    path.write_bytes(b"x" * 11)
    share_compiled_programs(tmp_path)
    folder = Path(os.environ.pop("JAX_COMPILATION_CACHE_DIR"))
    assert folder.parent == tmp_path
    assert folder.is_dir()
    assert not path.exists()


def test_what_xla_timed_is_named_by_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert autotuning_digests() == {}
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert autotuning_digests() == {}  # As on a machine without a GPU.
    # As XLA names and fills them: the digest of a kernel, and what was fastest.
    folder = tmp_path / "xla_gpu_per_fusion_autotune_cache_dir"
    folder.mkdir()
    name = "3oIYgq7VXP2xeWR-KmTNuA9LZcQ0sF1hBdEfGjHk4Mw="
    path = folder / f"{name}.textproto"
    path.write_text("triton { block_m: 64 block_n: 128 block_k: 32 split_k: 1 num_warps: 4 }")
    (tmp_path / "jit_step-5c41-cache").write_bytes(b"a program")
    assert autotuning_digests() == {name: file_sha256(path)}


def test_jax_keeps_what_xla_timed_in_the_folder_that_is_read(tmp_path: Path):
    code = (
        "import pathlib, sys; from infra.store.compiled_programs import share_compiled_programs;"
        "share_compiled_programs(pathlib.Path(sys.argv[1])); import jax;"
        "print(jax.config.jax_compilation_cache_dir);"
        "print(jax.config.jax_persistent_cache_enable_xla_caches)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    programs, setting = out.splitlines()
    assert Path(programs).parent == tmp_path
    assert setting == "xla_gpu_per_fusion_autotune_cache_dir"


CHILD = """
import json, pathlib, sys
from infra.store.compiled_programs import share_compiled_programs
data, tokenizer, out, *cache = sys.argv[1:]
if cache:
    share_compiled_programs(pathlib.Path(cache[0]))
import jax.monitoring
seen = []
jax.monitoring.register_event_listener(lambda name, **_: seen.append(name.rpartition("/")[2]))
from model.seeds import Seeds
from model.train.config import TrainConfig
from model.train.loop import StagePaths, fit
from tests.model.tiny_model import tiny_model
train = TrainConfig(batch_size=6, total_steps=3, text_len=16, peak_lr=3e-3, dropout=0.1)
pathlib.Path(out).mkdir()
paths = StagePaths(data=data, tokenizer=tokenizer, scratch=out + "-scratch", out=out)
list(fit(tiny_model(), train, paths, Seeds.of(5)))
counts = {name: seen.count(name) for name in ("cache_hits", "cache_misses")}
print(json.dumps(counts | {"digest": pathlib.Path(out, "digest.txt").read_text()}))
"""


@pytest.mark.deep
def test_shared_torn_or_none_a_training_ends_with_the_same_bytes(tmp_path: Path):
    data = write_dataset(tmp_path / "data", {"color": [color_record(i) for i in range(11)]})
    tokenizer = write_tokenizer(tmp_path / "tokenizer.model")
    cache = tmp_path / "jax"
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    env |= {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }

    def begin(name: str, *cache: str) -> subprocess.Popen[str]:
        words = [str(data), str(tokenizer), str(tmp_path / name), *cache]
        command = [sys.executable, "-W", "ignore", "-c", CHILD, *words]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def ended(child: subprocess.Popen[str]) -> dict[str, Any]:
        told, _ = child.communicate(timeout=800)
        assert child.returncode == 0
        return json.loads(told.splitlines()[-1])

    alone = ended(begin("alone"))
    assert alone["cache_hits"] == alone["cache_misses"] == 0
    cache.mkdir()
    first = [begin(name, str(cache)) for name in ("one", "two")]  # They write the same entries.
    assert {ended(child)["digest"] for child in first} == {alone["digest"]}
    later = ended(begin("later", str(cache)))
    assert later == {
        "cache_hits": later["cache_hits"],
        "cache_misses": 0,
        **{"digest": alone["digest"]},
    }
    assert later["cache_hits"] > 3
    for entry in cache.glob("*/jit_*"):  # Their writer was killed.
        os.truncate(entry, entry.stat().st_size // 2)
    torn = ended(begin("torn", str(cache)))
    assert torn["cache_hits"] == 0
    assert torn["digest"] == alone["digest"]
