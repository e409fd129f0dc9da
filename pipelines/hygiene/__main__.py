"""`python -m pipelines.hygiene DATASET --against NAME=DATASET ... --out FOLDER`."""

import argparse
import sys
from collections.abc import Sequence

from infra.terminal import escape_output
from pipelines.hygiene.screen import HygieneConfig, screen_dataset


def main(arguments: Sequence[str] | None = None) -> int:
    """Screens one dataset; returns 0, 1 (the work failed) or 2 (the request was wrong)."""
    options = _hygiene_parser().parse_args(arguments)
    against = {}
    for entry in options.against:
        # "chartqa=prepared/chartqa", or a folder alone, which then is its own name.
        name, _, folder = entry.rpartition("=")
        against[name or folder] = folder
    # A missing folder is a wrong request (2); other errors of the disk are failures (1).
    try:
        config = HygieneConfig(
            contamination=options.contamination,
            duplicates=options.duplicates,
            min_likeness=options.min_likeness,
        )
        counts = screen_dataset(options.dataset, config, against=against, out=options.out)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(", ".join(f"{name} {value}" for name, value in sorted(counts.items())))
    return 0


def _hygiene_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.hygiene",
        description="Reports, or removes, duplicates and pictures of evaluation sets.",
        epilog="example: python -m pipelines.hygiene prepared/web "
        "--against chartqa=prepared/chartqa --contamination remove --out screened/web",
    )
    parser.add_argument("dataset", help="folder of a prepared training dataset")
    parser.add_argument(
        "--against", nargs="*", default=(), metavar="NAME=FOLDER", help="evaluation datasets"
    )
    parser.add_argument("--out", required=True, help="the screened dataset's folder, new or empty")
    for kind in ("contamination", "duplicates"):
        parser.add_argument(f"--{kind}", default="report", help="off, report (default) or remove")
    # Read off the config, so that the help cannot state another default.
    default = HygieneConfig().min_likeness
    parser.add_argument("--min-likeness", type=float, default=default, help=f"default: {default}")
    return parser


if __name__ == "__main__":
    escape_output()
    raise SystemExit(main())
