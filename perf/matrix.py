"""Memory, traffic and time of every program of some studies on every kind of chip, compiled.

    python -m perf.matrix --cache matrix --limit 10
    python -m perf.matrix --config configs/pali3b_8gpu.yaml --topology h100:8 --only "intermediary"

No chip is needed. The compilers run in a child process, by the Python that `--compiler` or
PARCEL_CHIP_PYTHON names; chips whose compiler is not there are skipped, with the reason. Each
outcome is kept in the cache, so an interrupted matrix goes on where it ended: the rows that were
not compiled yet are counted below the table. A GPU's seconds are a formula over the FLOPs and bytes
of its kernels, a lower bound; a TPU's are the compiler's cycles.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.config.load import load
from flows.plan.study_programs import HOST_STEPS, programs_of
from flows.report.markdown import markdown_table
from infra.chips.topology import GIB, Topology
from model.chips.compiler import CompilationError, Compiler, CompilerMissingError
from model.chips.outcome import Outcome
from model.chips.programs import DeviceProgram
from perf.accelerator import chip_programs
from perf.programs import PromptProgram

CONFIGS = (
    "configs/paper_224.yaml",
    "configs/paper_448.yaml",
    "configs/pali3b_8gpu.yaml",
    "configs/pali3b_1gpu.yaml",
)
"""The studies of the whole matrix."""

ACCELERATOR = "perf.accelerator"
"""In place of a study's file: the programs that this command times, on one GPU of each kind. The
state of a training of the 3B model is more than one TPU holds."""

TOPOLOGIES = ("v4:8x8x4", "v5e:16x16", "v6e:16x16", "h100:8", "a100:8")
"""The chips of the whole matrix."""

_HEAD = ["study", "program", "chips", "GiB/chip", "fits", "GB sent", "time [s]", "compiled [s]"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A program of a study on some chips.

    Attributes:
      study: name of the study.
      names: the program's places in it.
      topology: the chips.
      outcome: what compiling told; None where the compiler refused it.
      error: the refusal; "" without one.
    """

    study: str
    names: tuple[str, ...]
    topology: str
    outcome: Outcome | None = None
    error: str = ""

    @property
    def spare_bytes(self) -> float | None:
        """Memory of a chip that is left, negative if the program does not fit; None if refused."""
        chip = Topology.parse(self.topology).chip
        return None if self.outcome is None else chip.program_bytes - self.outcome.memory_bytes

    def cells(self) -> list[str]:
        """Returns the row's cells in the table."""
        first, *others = self.names
        more = f" (and {len(others)} more)" if others else ""
        head = [self.study, first + more, self.topology]
        if self.outcome is None or self.spare_bytes is None:
            return [*head, "", self.error, "", "", ""]
        fits = "yes" if self.spare_bytes >= 0 else f"no, by {-self.spare_bytes / GIB:.1f} GiB"
        outcome, time, sent = self.outcome, "", ""
        if outcome.compute_s is not None and outcome.interconnect_s is not None:
            time = f"{outcome.compute_s:.3g} + {outcome.interconnect_s:.3g}"
            sent = f"{(outcome.traffic_bytes or 0.0) / 1e9:.1f}"
        memory, took = f"{outcome.memory_bytes / GIB:.1f}", f"{outcome.compile_s:.0f}"
        return [*head, memory, fits, sent, time, took]


def rows_of(
    config: str, topology: Topology, only: re.Pattern[str], overrides: Sequence[str] = ()
) -> Iterator[tuple[Row, DeviceProgram | PromptProgram]]:
    """Yields a row without outcome for each program of which a name matches, and the program."""
    if config == ACCELERATOR:
        one = str(Topology(topology.kind, (1,)))
        if topology.chip.is_gpu:
            for name, program in chip_programs():
                if only.search(name):
                    yield Row(study=ACCELERATOR, names=(name,), topology=one), program
        return
    study = load(config, overrides=[*overrides, f"compute.topology={topology}"])
    for each in programs_of(study, topology):
        if any(only.search(name) for name in each.names):
            yield Row(study=study.name, names=each.names, topology=str(topology)), each.program


def matrix(
    configs: Sequence[str],
    topologies: Sequence[str],
    compiler: Compiler,
    *,
    overrides: Sequence[str] = (),
    only: str = "",
    limit: int | None = None,
) -> Iterator[Row | str]:
    """Yields the matrix's rows, and lines on what is not in it.

    Args:
      configs: files of studies, or `ACCELERATOR`.
      topologies: names of chips.
      compiler: compiles, and has the outcomes of earlier calls.
      overrides: changes of the studies, as "key.path=value".
      only: pattern of the names of programs; "" takes all.
      limit: most programs to compile now; None compiles all. Earlier outcomes do not count.
    """
    pattern, num_compiled, num_left = re.compile(only), 0, 0
    for name in topologies:
        topology = Topology.parse(name)
        try:
            for config in configs:
                for row, program in rows_of(config, topology, pattern, overrides):
                    chips = Topology.parse(row.topology)
                    is_over = limit is not None and num_compiled >= limit
                    try:
                        outcome = compiler.outcome(program, chips, only_cached=True)
                    except LookupError:
                        if is_over:
                            num_left += 1
                            continue
                        num_compiled += 1
                        try:
                            outcome = compiler.outcome(program, chips)
                        except CompilationError as error:
                            yield dataclasses.replace(row, error=str(error))
                            continue
                    except CompilationError as error:
                        yield dataclasses.replace(row, error=str(error))
                        continue
                    yield dataclasses.replace(row, outcome=outcome)
        except CompilerMissingError as error:
            yield f"{name} is skipped: {error}"
    if num_left:
        yield f"{num_left} more programs are not compiled yet: --limit {limit} is reached"
    yield from HOST_STEPS


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table as Markdown, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    configs = [*(c for c in CONFIGS if Path(c).is_file()), ACCELERATOR]
    parser.add_argument("--config", nargs="+", default=configs, help=f"or {ACCELERATOR}")
    parser.add_argument("--topology", nargs="+", default=TOPOLOGIES, help="v4:8x8x4, h100:8, ...")
    parser.add_argument("--set", nargs="+", default=(), metavar="KEY=VALUE", help="in each study")
    parser.add_argument("--only", default="", metavar="PATTERN", help="of the names of programs")
    parser.add_argument("--limit", type=int, help="most programs to compile now")
    parser.add_argument("--compiler", metavar="PYTHON", help="Python that has the compilers")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/parcel/programs"))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(words)
    rows: list[Row] = []
    lines: list[str] = []
    with Compiler(args.cache.expanduser(), args.compiler) as compiler:
        chosen = {"overrides": args.set, "only": args.only, "limit": args.limit}
        for row in matrix(args.config, args.topology, compiler, **chosen):
            # Told at once: a program takes minutes.
            text = row if isinstance(row, str) else " | ".join(row.cells())
            print(text, file=sys.stderr, flush=True)
            if isinstance(row, str):
                lines.append(row)
            else:
                rows.append(row)
    if args.json:
        print(json.dumps({"rows": [dataclasses.asdict(row) for row in rows], "lines": lines}))
    else:
        print(markdown_table(_HEAD, [row.cells() for row in rows], left=[0, 1, 2]))
        print("\n".join(f"- {line}" for line in lines))


if __name__ == "__main__":
    main()
