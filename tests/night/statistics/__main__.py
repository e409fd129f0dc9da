"""Prints a line of judgement for each shape."""

import argparse

from tests.night.statistics.judge import judge
from tests.night.statistics.shapes import SHAPES


def main() -> None:
    """Judges the shapes that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=200, help="studies of each shape")
    parser.add_argument("--only", default="", help="part of the names of the shapes")
    parser.add_argument("--seed", type=int, default=46)
    given = parser.parse_args()
    print(f"{'shape':<56} {'95 %':>6} {'99.8 %':>7} {'stars':>6} {'width':>6}   means: 95 % width")
    for name, shape in SHAPES.items():
        if given.only in name:
            of = judge(shape, given.studies, given.seed)
            print(
                f"{name:<56} {100 * of.held:6.1f} {100 * of.held_far:7.2f} "
                f"{100 * of.starred:6.1f} {of.width:6.2f}   {100 * of.mean_held:12.1f} "
                f"{of.mean_width:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
