"""How near the order of visits is to a full shuffle.

    python -m perf.order

An example's companions are the other examples of its batch that are from the same block. If all
records of a block were alike, the variance of a batch's mean would be 1 + companions times that of
a batch drawn from the whole part.
"""

import argparse
import collections
from collections.abc import Sequence

import numpy as np

from model.data.order import Order, lanes_of
from perf.timing import table

HEADER = ["batch", "lanes", "companions", "in a full shuffle", "rank correlation"]


def measure(length: int, block: int, batch: int, batches: int) -> list[str]:
    """Returns a row of the table.

    Args:
      length: length of the part [records].
      block: neighbours that are read together [records].
      batch: examples per batch.
      batches: number of batches to examine, spread over a pass.
    """
    lanes = lanes_of(batch)
    order = Order(length, block, 0, lanes=lanes)
    companions, visits, positions = [], [], []
    for number in np.linspace(0, length // batch - 1, batches).astype(int).tolist():
        drawn = range(number * batch, (number + 1) * batch)
        found = [order.position(visit) for visit in drawn]
        counts = collections.Counter(position // block for position in found)
        companions.append(sum(n * (n - 1) for n in counts.values()) / batch)
        visits += drawn
        positions += found
    ranks = np.argsort(np.argsort([visits, positions], axis=1), axis=1)
    full = (batch - 1) * (block - 1) / (length - 1)
    correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return [
        str(batch),
        str(lanes),
        f"{np.mean(companions):.2f}",
        f"{full:.4f}",
        f"{correlation:+.3f}",
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--block", type=int, default=32, help="records; of 33 kB each, 32")
    parser.add_argument("--examples", type=int, default=65_536, help="looked at, at least")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 32, 256, 1024, 8192])
    args = parser.parse_args(words)
    rows = [
        measure(args.records, args.block, batch, max(4, args.examples // batch))
        for batch in args.batch
    ]
    print(f"{args.records:,} records in blocks of {args.block}")
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
