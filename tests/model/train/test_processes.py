"""Of a state that two processes hold together, each holds a part; nobody holds it whole."""

import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from infra.gang.local import LocalGang
from model.checkpoint import params_files
from model.checkpoint.folder import save_checkpoint
from model.train.start import starting_params
from tests.model.tiny_model import tiny_model

_EACH = """
import dataclasses
import sys
import jax
rank = int(sys.argv[1])
jax.distributed.initialize(sys.argv[2], 2, rank)
import numpy as np
from model import sharding
from model.checkpoint import params_files
from model.checkpoint.digest import flatten_params, unflatten_params
from model.train.config import TrainConfig
from model.train.lora import whole_weights
from model.train.lora_config import LoraConfig
from model.train.start import starting_params
from model.train.packing import packed_batches
from model.train.step import LENGTH, make_state
from tests.model.tiny_model import tiny_model
sharding._MIN_BYTES = 256
sharding._MOST_PADDING = 100
mesh = sharding.make_mesh()
assert mesh.size == 2 and mesh.is_multi_process

model = tiny_model("parcel", (30, 64))
params = starting_params(model, None, 0)
state = make_state(model, params, TrainConfig(), mesh)
whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
here = sum(leaf.addressable_data(0).nbytes for leaf in jax.tree.leaves(state))
assert 0.45 * whole < here < 0.6 * whole, (here, whole)
embedding = state.trained["text/embedding"]
moments = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.shape == embedding.shape]
assert len(moments) == 2
for leaf in (embedding, *moments):
    assert leaf.addressable_data(0).shape == (leaf.shape[0] // 2, leaf.shape[1])
for path, leaf in dict(flatten_params(params)).items():
    np.testing.assert_array_equal(sharding.on_host(state.trained[path]), leaf)

# Of a checkpoint each reads its parts; what is fitted to the model, and what is small, all of it.
read = []
checked = params_files.ParamsReader._checked
def counted(self, file, first, stop):
    data = checked(self, file, first, stop)
    read.append(len(data))
    return data
params_files.ParamsReader._checked = counted
of_file = starting_params(model, sys.argv[3], 0)
assert not read
begun = make_state(model, of_file, TrainConfig(), mesh)
size = sum(leaf.nbytes for leaf in dict(flatten_params(params)).values())
assert 0.45 * size < sum(read) < 0.75 * size, (sum(read), size)
for path, leaf in dict(flatten_params(params)).items():
    np.testing.assert_array_equal(sharding.on_host(begun.trained[path]), leaf + 1)

# Frozen matrices are held in the dtype of the activations, and each process reads its parts.
rounded = dataclasses.replace(model, dtype="bfloat16")
lora = TrainConfig(lora=LoraConfig(rank=2), freeze_vision=True)
held = make_state(rounded, of_file, lora, mesh)
again = make_state(rounded, unflatten_params({**begun.trained}), lora, mesh)
table = dict(flatten_params(params))["text/embedding"] + 1
for state in (held, again):
    embedding = state.frozen["text/embedding"]
    assert embedding.addressable_data(0).shape == (table.shape[0] // 2, table.shape[1])
    np.testing.assert_array_equal(sharding.on_host(embedding), table.astype("bfloat16"))
    whole = dict(whole_weights(lora.lora, state.trained, state.frozen))
    assert {leaf.dtype.name for leaf in whole.values()} == {"float32"}
    assert whole["text/embedding"].sharding == embedding.sharding

rows = np.arange(6).reshape(3, 2) + 100 * rank
batch = sharding.shard_batch({"text": rows}, mesh)["text"]
assert batch.shape == (6, 2)
np.testing.assert_array_equal(batch.addressable_data(0), rows)
np.testing.assert_array_equal(sharding.on_host(batch)[:, 0], [0, 2, 4, 100, 102, 104])

# A batch is packed where all processes have theirs packed; here the second of three is not.
class Batches:
    def batches(self, start, stop, arrange):
        for step in range(start, stop):
            ends = np.array([3, 3, 3, 1] if (step, rank) == (1, 1) else [3, 1, 1, 1])
            learned = (np.arange(6) == ends[:, None]).astype(np.int32)
            yield arrange({"mask_loss": learned})

train = TrainConfig(batch_size=8, text_len=5, pack=2, microbatch=2)
both = list(packed_batches(Batches(), train, mesh, 0, 4))
assert [LENGTH in batch for batch in both] == [True, False, True, True]
assert all(sorted(batch["number"]) == list(range(4 * rank, 4 * rank + 4)) for batch in both)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_each_process_holds_its_parts_and_gives_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(params_files, "PIECE", 256)
    monkeypatch.setattr(params_files, "_READ", 4096)
    model = tiny_model("parcel", (30, 64))
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, starting_params(model, None, 0))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    save_checkpoint(checkpoint, model=model, params=params, tokenizer=None, mask_codec=None)

    def command(rank: int, coordinator: str) -> list[str]:
        return [sys.executable, "-c", _EACH, str(rank), coordinator, str(checkpoint)]

    gang = LocalGang(command, 2, tmp_path)
    try:
        while None in gang.exit_codes().values():
            time.sleep(0.1)
        codes = gang.exit_codes()
    finally:
        gang.kill()
    said = "".join((tmp_path / f"{rank}.log").read_text() for rank in (0, 1))
    assert codes == {0: 0, 1: 0}, said
