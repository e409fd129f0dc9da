"""Reading a dataset from a bucket on the loopback against a disk: bytes moved, records/s.

Another case is one pass over it that several hosts share, each reading its rows of every batch.

    python -m perf.ranged_reads

The server is this project's own, a separate process on the same cores, which slows the readers.
"""

import argparse
import dataclasses
import json
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from model.data.loader import Loader
from model.files import TOKENIZER
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer
from model.train.config import TrainConfig
from perf.bucket import bucket, stored
from perf.loader import PX, in_process, write_data
from perf.timing import table


def read(place: str, tokenizer: Path, train: TrainConfig, host: int, num_hosts: int) -> list[float]:
    """Returns how many records a host reads in all steps, and how long it takes [s]."""
    began = time.perf_counter()
    loader = Loader(
        place,
        train.batches,
        tokenizer=Tokenizer(tokenizer),
        mask_codec=None,
        image_px=PX,
        seeds=Seeds.of(0),
        host=host,
        num_hosts=num_hosts,
    )
    records = sum(len(batch["text"]) for batch in loader.batches(0, train.total_steps))
    loader.close()
    return [records, time.perf_counter() - began]


def moved(url: str) -> tuple[int, float]:
    """Returns the number of requests for objects' data so far, and the bytes sent [MB]."""
    with urllib.request.urlopen(f"{url}/_control/requests") as answer:
        media = json.load(answer).get("media", {})
    return media.get("requests", 0), media.get("bytes_out", 0) / 1e6


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=64, help="of 32 records, of one host")
    parser.add_argument("--hosts", type=int, default=4, help="that share one pass")
    parser.add_argument("--cores", type=int, default=2, help="of a reader")
    parser.add_argument("--latency-ms", type=float, default=20, help="of every answer")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "data")
        write_data(folder, args.records, 1)
        size = sum(path.stat().st_size for path in folder.glob("*.tfrecord")) / 1e6
        with bucket(args.latency_ms, Path(root, "reader")) as url:
            place = stored(folder, Path(root, "maker"))
            few = TrainConfig(batch_size=32, text_len=32, total_steps=args.steps)
            # One pass shared by all hosts, with batches large enough to give each host a lane.
            batch = max(32 * args.hosts, 64)
            many = dataclasses.replace(few, batch_size=batch, total_steps=args.records // batch)
            readers = [("disk", str(folder), few, 0, 1), ("bucket", place, few, 0, 1)]
            readers += [
                (f"bucket, host {host} of {args.hosts}", place, many, host, args.hosts)
                for host in range(args.hosts)
            ]
            rows = []
            for name, place, train, host, num_hosts in readers:
                # Each reader is a new process, like a host, so that none finds another's data.
                before, given = moved(url), (place, folder / TOKENIZER, train, host, num_hosts)
                records, seconds = in_process(args.cores, read, *given)
                requests, megabytes = (b - a for a, b in zip(before, moved(url), strict=True))
                rows.append(
                    [
                        name,
                        f"{records:.0f}",
                        f"{records / seconds:.0f}",
                        f"{requests:.0f}",
                        f"{megabytes:.1f}",
                    ]
                )
    print(f"{args.records} records, {size:.0f} MB, {args.latency_ms:.0f} ms a request")
    print(table(["from", "records", "records/s", "requests", "MB moved"], rows))


if __name__ == "__main__":
    main()
