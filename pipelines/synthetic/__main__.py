"""Command line: `python -m pipelines.synthetic --out corpus --num-web 200 --seed 7`."""

import argparse
import dataclasses
import sys
import time

from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus


def main(arguments: list[str] | None = None) -> int:
    """Renders a corpus and returns the exit code: 0, or 2 for a wrong request."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.synthetic",
        description="Renders a corpus of drawn pictures, charts and clips, in published layouts.",
        epilog="example: python -m pipelines.synthetic --out corpus --num-web 200 --seed 7",
    )
    parser.add_argument("--out", required=True, help="an empty or absent folder")
    # An option per field, so that a new field needs no line here.
    for field in dataclasses.fields(CorpusConfig):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=field.default, help="default: %(default)s")
    options = vars(parser.parse_args(arguments))
    out = options.pop("out")
    began = time.monotonic()
    try:
        render_corpus(CorpusConfig(**options), out, on_progress=_print_progress)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"\nrendered {out} in {time.monotonic() - began:.1f} s")
    return 0


def _print_progress(num_done: int, total: int, corpus: str) -> None:
    if num_done % 50 == 0 or num_done == total:
        print(f"\rrendering {corpus}: {num_done}/{total}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
