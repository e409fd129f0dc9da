"""`python -m pipelines.prepare`: an option per field of `PrepareConfig`."""

import argparse
import dataclasses
import gc
import sys
import typing
from collections.abc import Sequence

from infra.terminal import escape_output
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import group_omissions, omission_lines
from pipelines.sources.reading.corpus import WEB_TASKS, parse_features
from pipelines.sources.registry import SOURCES

_LISTS = {
    "runner_options": "further Beam options, without --: project=p",
    "tasks": f"kinds of records made of web images: {', '.join(WEB_TASKS)}; default: all",
}
"""Option that takes several values -> its help text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepares one dataset; returns 0, 1 (the work failed) or 2 (the request was wrong)."""
    options = vars(_prepare_parser().parse_args(arguments))
    # These say what is prepared and where it goes; every other option is a field of the config.
    request = {name: options.pop(name) for name in ("source", "split", "data_root", "out", "path")}
    options["runner_options"] = tuple(f"--{option}" for option in options["runner_options"])
    options["tasks"] = tuple(options["tasks"])
    features = options.pop("features")
    try:
        request["features"] = parse_features(features)
        # Options that are left out are None, and the config's own defaults hold.
        config = PrepareConfig(**{k: v for k, v in options.items() if v is not None})
        info = prepare_dataset(config, **request, on_progress=_print_progress)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:  # For example a full disk or an unreadable folder.
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{info.name}: {info.num_inputs} inputs = {info.num_records} records + "
        f"{info.num_rejected} rejects, in {request['out']}"
    )
    for line in omission_lines(group_omissions(Dataset(request["out"]).omissions())):
        print(line)
    if info.num_composed:
        print(f"{info.num_composed} records show the background {config.background}")
    for decoder, num in info.decoders.items():
        print(f"{num} records of clips were decoded by {decoder}")
    return 0


def _print_progress(num_done: int, total: int) -> None:
    print(f"{num_done} of {total} items", file=sys.stderr)


def _prepare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.prepare",
        description="Writes a TFRecord dataset from a corpus in its published layout.",
        epilog="example: python -m pipelines.prepare chartqa val --data-root data --out prepared",
    )
    parser.add_argument("source", choices=list(SOURCES))
    parser.add_argument(
        "split", help='such as "train", or "train+val"; web, images and videos: "train"'
    )
    parser.add_argument("--data-root", required=True, help="folder that holds the source's own")
    parser.add_argument("--out", required=True, help="the dataset's folder, new or empty")
    parser.add_argument("--path", help="the source's folder below data-root; default: its name")
    parser.add_argument(
        "--features",
        nargs="*",
        default=(),
        help="of tfrecord and tfds, which feature holds what: image=image/encoded caption=caption",
    )
    # An option per field of the config, so that a new field needs no line here.
    types = typing.get_type_hints(PrepareConfig)
    for field in dataclasses.fields(PrepareConfig):
        option = f"--{field.name.replace('_', '-')}"
        if field.name in _LISTS:
            parser.add_argument(option, nargs="*", default=(), help=_LISTS[field.name])
            continue
        # An optional number (`int | None`) is an option of the number's type.
        kinds = [t for t in typing.get_args(types[field.name]) if t is not type(None)]
        kind = kinds[0] if kinds else types[field.name]
        parser.add_argument(option, type=kind, help=f"default: {field.default}")
    return parser


if __name__ == "__main__":
    escape_output()
    status = main()
    gc.freeze()  # The process ends: to collect Beam's modules would take a quarter of a second.
    raise SystemExit(status)
