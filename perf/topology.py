"""Memory and time of a train step of the 3B model on a TPU slice, compiled for it without a TPU.

    python -m perf.topology v4:8x8x4 --replicas 8       # the paper's pod and batch
    python -m perf.topology v5e:16x16 --replicas 16 --budget 64

Needs `libtpu`, which the extra `tpu` installs. Nothing runs: memory is the compiler's figure for
one chip, and time is an estimate (see `infra.chips.program_cost`).
"""

import argparse
import dataclasses
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from infra.chips.topology import GIB, Topology
from model import presets
from model.analysis.flops import Modality, update_flops
from model.chips.programs import TrainProgram
from model.connector.budgets import check_budget
from model.connector.config import ConnectorConfig
from model.train.config import TrainConfig
from perf.timing import aligned_table

_HEAD = [
    "topology",
    "mesh",
    "connector",
    "tokens",
    "remat",
    "state [GiB]",
    "in use [GiB]",
    "computes [s]",
    "interconnect [s]",
    "step [s]",
    "samples/s",
    "MFU",
    "compiled [s]",
]


def main() -> None:
    """Compiles one step, and prints its memory and time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("topology", help="v4:8x8x4, v5e:16x16, v6e:16x16, ...")
    parser.add_argument("--replicas", type=int, default=1, help="copies of the weights")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--text-len", type=int, default=128)
    parser.add_argument("--pack", type=int, help="places for text of an example; none: not packed")
    parser.add_argument("--image-px", type=int, default=224)
    parser.add_argument("--connector", default="parcel")
    parser.add_argument("--remat", default="minimal", help="none, minimal or full")
    parser.add_argument("--loss-chunk", type=int, default=64)
    args = parser.parse_args()
    topology = Topology.parse(args.topology)
    connector = ConnectorConfig(kind=args.connector)
    model = dataclasses.replace(
        presets.paligemma2_3b(connector, image_px=args.image_px),
        dtype="bfloat16",
        remat=args.remat,
        loss_chunk=args.loss_chunk,
    )
    try:
        check_budget(model, args.budget)
    except ValueError as error:
        parser.error(str(error))
    train = TrainConfig(
        batch_size=args.batch, text_len=args.text_len, num_replicas=args.replicas, pack=args.pack
    )
    # The compiler needs the topology, not the chips; the step is only estimated from what it reads.
    started = time.monotonic()
    program = TrainProgram(model=model, train=train, tokens=args.budget)
    ahead = program.lower(topology).compile()
    took = time.monotonic() - started
    computes = ahead.cost.compute_s(topology)
    interconnect = ahead.cost.interconnect_s(topology)
    # Added, as if a chip never sent while it computes.
    step = computes + interconnect
    prompt = Modality(name="image", num_images=1, text_tokens=args.pack or args.text_len)
    flops = update_flops(model, args.budget, prompt, args.batch)
    row = [str(topology), f"{args.replicas} x {topology.num_chips // args.replicas}"]
    row += [args.connector, str(args.budget), args.remat]
    row += [f"{size / GIB:.1f}" for size in (ahead.argument_bytes, ahead.peak_bytes)]
    row += [f"{seconds:.3f}" for seconds in (computes, interconnect, step)]
    row += [f"{args.batch / step:.0f}"]
    row += [f"{flops / step / topology.num_chips / topology.chip.peak_flops:.1%}", f"{took:.0f}"]
    print(aligned_table(_HEAD, [row]))


if __name__ == "__main__":
    main()
