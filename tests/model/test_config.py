"""Tests of configs: which fields change a step's identity, and which reach the data loader."""

import dataclasses

from infra.store.digest import canonical_json
from model.config import ModelConfig
from model.data.config import BatchConfig
from model.train.config import TrainConfig


def test_the_layout_in_memory_is_no_part_of_the_identity():
    plain = ModelConfig()
    for change in ({"remat": "none"}, {"scan_layers": False}, {"loss_chunk": 7}):
        assert canonical_json(dataclasses.replace(plain, **change)) == canonical_json(plain)
    other = dataclasses.replace(plain, dtype="bfloat16")
    assert canonical_json(other) != canonical_json(plain)


def test_the_loader_gets_the_stages_own_numbers():
    numbers = {"batch_size": 3, "text_len": 9, "mixture": (("a", 1.0),), "max_frames": 2}
    assert TrainConfig(**numbers).batches == BatchConfig(**numbers)
    assert TrainConfig().batches == BatchConfig()
