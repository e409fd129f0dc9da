"""The certificate: a study under seeded faults, and the table of what it survived.

    python -m tests.certificate --faults 200 --seed 1

The seed and a trial's number alone give the trial, so `--first 17 --trials 1` repeats number 17.
"""

import argparse
import collections
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from tests.certificate.kinds import KINDS, OF_STORES, WITH_CHECKSUMS
from tests.certificate.places import SERVERS
from tests.certificate.shim import compile_shim
from tests.certificate.trials import Outcome, Trial, Trials, draw


def table(outcomes: Iterable[tuple[Trial, Outcome]]) -> str:
    """Returns a line for each kind: faults that were tried, struck and survived, and time lost."""
    tried: collections.Counter[str] = collections.Counter()
    struck: collections.Counter[str] = collections.Counter()
    survived: collections.Counter[str] = collections.Counter()
    lost: dict[str, list[float]] = collections.defaultdict(list)
    for trial, outcome in outcomes:
        for fault, seen in zip(trial.faults, outcome.seen, strict=True):
            tried[fault.kind] += 1
            if seen:
                struck[fault.kind] += 1
                survived[fault.kind] += not outcome.wrong
                # What a trial lost is shared among the faults that struck in it.
                lost[fault.kind].append(outcome.lost / sum(map(bool, outcome.seen)))
    lines = ["| fault | tried | struck | survived | lost, median [s] | most [s] |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for kind in filter(tried.__contains__, KINDS):
        spent = lost[kind]
        cells = [f"{statistics.median(spent):.0f}", f"{max(spent):.0f}"] if spent else ["", ""]
        counts = [str(counter[kind]) for counter in (tried, struck, survived)]
        lines.append(f"| {' | '.join([kind, *counts, *cells])} |")
    spent = [each for values in lost.values() for each in values]
    cells = [f"{statistics.median(spent):.0f}", f"{max(spent):.0f}"] if spent else ["", ""]
    counts = [str(counter.total()) for counter in (tried, struck, survived)]
    lines.append(f"| {' | '.join(['all', *counts, *cells])} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the trials that the command line says; returns 1 if one was not survived."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.certificate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--faults", type=int, default=200, help="trials go on until as many struck")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--trials", type=int, help="how many, instead of --faults")
    parser.add_argument("--only", choices=tuple(KINDS), help="trials of one kind")
    parser.add_argument("--stores", action="store_true", help="all in buckets, with their faults")
    parser.add_argument(
        "--bucket", choices=tuple(SERVERS), default="gs", help="kind of the buckets"
    )
    parser.add_argument("--lanes", type=int, default=2, help="trials at a time")
    parser.add_argument("--folder", type=Path, help="for stores and logs, kept; none is temporary")
    given = parser.parse_args()
    began, outcomes = time.monotonic(), list[tuple[Trial, Outcome]]()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        library = compile_shim(folder)
        if library is None:
            parser.error("cc is not on PATH: a C compiler makes what strikes disks and clocks")
        trials = Trials(folder, library, given.bucket)
        beside = OF_STORES if given.stores else tuple(KINDS)
        if given.bucket == "az":
            beside = tuple(kind for kind in beside if kind not in WITH_CHECKSUMS)
        kinds = (given.only,) if given.only else beside
        at = ("bucket", "") if given.stores else ("", "")
        numbers = itertools.count(given.first)
        if given.trials is not None:
            numbers = iter(range(given.first, given.first + given.trials))
        struck = 0
        with ThreadPoolExecutor(given.lanes) as pool:

            def begin(count: int) -> dict[Future[Outcome], Trial]:
                drawn = [
                    draw(n, given.seed, kinds, at, beside) for n in itertools.islice(numbers, count)
                ]
                return {pool.submit(trials.run, trial): trial for trial in drawn}

            under_way = begin(given.lanes)
            while under_way:
                for done in wait(under_way, return_when=FIRST_COMPLETED).done:
                    trial, outcome = under_way.pop(done), done.result()
                    outcomes.append((trial, outcome))
                    struck += sum(map(bool, outcome.seen))
                    end = outcome.wrong or "survived"
                    seen = "; ".join(what or "did not strike" for what in outcome.seen)
                    print(f"{trial}: {seen}; lost {outcome.lost:.0f} s: {end}", flush=True)
                    if given.trials is not None or struck < given.faults:
                        under_way |= begin(1)
    print(f"\n{table(outcomes)}\n")
    failed = sum(bool(outcome.wrong) for _, outcome in outcomes)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{struck} faults in {len(outcomes)} trials of seed {given.seed}; "
        f"{failed} trials were not survived; {minutes:.0f} min"
    )
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
