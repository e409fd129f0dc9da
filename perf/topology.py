"""What a train step of the 3B model asks of a TPU topology, compiled for it without a TPU.

    python -m perf.topology v4:8x8x4 --replicas 8       # the paper's pod and batch
    python -m perf.topology v5e:16x16 --replicas 16 --budget 64

Needs `libtpu`, which the extra `tpu` installs. Nothing runs: memory is the compiler's own account,
of one chip.
"""

import argparse
import dataclasses
import os
import time
from typing import Any

# Another process of this machine may hold libtpu's lock, and nothing here touches a device.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from model import presets, vlm
from model.checkpoint.digest import flatten
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.sharding import AXES, make_mesh, specs
from model.train.config import TrainConfig
from model.train.optimizer import init_optimizer, split_frozen
from model.train.step import Rates, State, StepPrograms
from perf.timing import table

_MEGACORE = {"v4": "megacore"}
"""Chips whose two cores are one device to JAX, and libtpu's name for that."""


def mesh_of(topology: str, num_replicas: int) -> Mesh:
    """Returns the mesh of a slice that need not exist.

    Args:
      topology: as libtpu names it: v4:8x8x4, v5e:16x16, v6e:16x16.
      num_replicas: copies of the weights.
    """
    config = _MEGACORE.get(topology.partition(":")[0])
    options = {"chip_config_name": config} if config else {}
    found = topologies.get_topology_desc(topology, "tpu", **options)
    return make_mesh(found.devices, num_replicas=num_replicas)


def compile_step(model: ModelConfig, train: TrainConfig, mesh: Mesh, budget: int) -> Any:
    """Returns the compiled update of one batch with one picture per example."""
    trained, frozen = split_frozen(dict(flatten(vlm.abstract_params(model))), train)
    moments = jax.eval_shape(lambda params: init_optimizer(train, params), trained)
    state = State(trained, frozen, moments)

    def placed(leaf: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    def rows(*shape: int, dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        return placed(jax.ShapeDtypeStruct((train.batch_size, *shape), dtype), P(AXES))

    side = model.vision.image_px
    batch = {name: rows(train.text_len + 1) for name in ("text", "mask_ar", "mask_loss")}
    batch["image"] = rows(1, side, side, 3, dtype=np.uint8)
    number: Any = jax.ShapeDtypeStruct((), np.float32)
    slots = vlm.Slots(budget, budget)
    args = jax.tree.map(placed, state, specs(state, mesh)), batch, slots, Rates(number, number)
    return StepPrograms(model, train, mesh).compile(args)


def main() -> None:
    """Compiles one step, and prints what it asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("topology", help="v4:8x8x4, v5e:16x16, v6e:16x16, ...")
    parser.add_argument("--replicas", type=int, default=1, help="copies of the weights")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--text-len", type=int, default=128)
    parser.add_argument("--image-px", type=int, default=224)
    parser.add_argument("--connector", default="parcel")
    args = parser.parse_args()
    connector = ConnectorConfig(kind=args.connector)
    model = presets.paligemma2_3b(connector, image_px=args.image_px)
    model = dataclasses.replace(model, dtype="bfloat16")
    train = TrainConfig(batch_size=args.batch, text_len=args.text_len)
    mesh, started = mesh_of(args.topology, args.replicas), time.monotonic()
    memory = compile_step(model, train, mesh, args.budget).memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    row = [args.topology, f"{args.replicas} x {mesh.size // args.replicas}", str(args.budget)]
    row += [f"{size / 2**30:.1f}" for size in sizes] + [f"{time.monotonic() - started:.0f}"]
    head = [
        "topology",
        "mesh",
        "tokens",
        "state [GiB/chip]",
        "temporaries [GiB/chip]",
        "compiled [s]",
    ]
    print(table(head, [row]))


if __name__ == "__main__":
    main()
